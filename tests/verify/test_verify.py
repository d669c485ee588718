from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import outrider.sampling.choose as choose_module
import outrider.verify.traversal as traversal_module
from outrider.core.params import SamplingParams
from outrider.core.request import Request
from outrider.core.tree import TokenTree
from outrider.sampling.choose import NO_TOKEN
from outrider.sampling.counts import Counts
from outrider.sampling.noise import Key
from outrider.sampling.rows import ProcessorError, Row, RowError, tree_rows
from outrider.verify import pass_can_choose, verify, verify_chosen
from tests.verify.loops import LONG, decode

V = 70
METHODS = ("coupled", "traversal")
OPTIONS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.0},
    {"temperature": 0.7, "top_p": 0.9},
    {"repetition_penalty": 1.3, "frequency_penalty": 0.5, "top_k": 20},
    {"min_tokens": 6, "min_p": 0.05, "logit_bias": {3: 2.0}},
]


def target(rows: list[Row]) -> Tensor:
    """[rows, vocabulary] float32: a fixed function of the whole text."""
    texts = [row.request.tokens + row.path for row in rows]
    drawn = [np.random.default_rng(text).normal(scale=2.5, size=V) for text in texts]
    return torch.from_numpy(np.stack(drawn)).float()


def make_requests() -> list[Request]:
    stop = frozenset([5])
    return [
        Request(f"r{i}", [i, 1], SamplingParams(**OPTIONS[i % 5]), seed=i * i << 30, stop_ids=stop)
        for i in range(10)
    ]


def guess(request: Request, truth: list[int], random: np.random.Generator) -> TokenTree:
    """A random tree that holds some of what the target is going to say, at random places."""
    parents = [int(random.integers(-1, node)) for node in range(int(random.integers(0, 8)))]
    tokens: list[int] = []
    depths = TokenTree([0] * len(parents), parents, "guess").depths
    for depth in depths:
        at = request.position + depth - 1
        right = random.random() < 0.6 and at < len(truth)
        tokens.append(truth[at] if right else int(random.integers(V)))
    return TokenTree(tokens, parents, "guess")


def run(requests: list[Request], length: int, truth: list[list[int]] | None) -> list[list[int]]:
    """Decode with guessed trees, or plainly; returns the outputs."""
    random, counts = np.random.default_rng(0), Counts(V)
    while todo := [i for i, request in enumerate(requests) if request.position < length]:
        trees = [guess(requests[i], truth[i], random) if truth else TokenTree.empty() for i in todo]
        batch = [requests[i] for i in todo]
        logits = target(tree_rows(trees, batch))
        verdicts = verify(trees, batch, logits, counts)
        for request, tree, verdict in zip(batch, trees, verdicts):
            for token in [*(tree.tokens[node] for node in verdict.kept), verdict.next_token]:
                request.append(token)
    return [request.output_ids[:length] for request in requests]


def test_coupled_text_is_plain_decodings_text() -> None:
    plain = run(make_requests(), 12, None)
    assert run(make_requests(), 12, plain) == plain
    assert len({tuple(text) for text in plain}) == len(plain)


def test_choices_everywhere_are_those_of_the_walk_where_it_comes() -> None:
    requests, random = make_requests(), np.random.default_rng(2)
    truth = run(make_requests(), 8, None)
    trees = [guess(request, text, random) for request, text in zip(requests, truth)]
    logits = target(tree_rows(trees, requests))
    some = verify(trees, requests, logits, Counts(V))
    every = verify(trees, requests, logits, Counts(V), everywhere=True)
    assert [v[:2] for v in some] == [v[:2] for v in every] and max(len(v.kept) for v in some) >= 2
    assert all(v.choices is None for v in some)
    for tree, verdict in zip(trees, every):
        assert verdict.choices is not None and len(verdict.choices) == 1 + len(tree)
        said = [verdict.choices[node + 1] for node in (-1, *verdict.kept)]
        assert said == [*(tree.tokens[node] for node in verdict.kept), verdict.next_token]


def test_only_rows_that_are_reached_are_looked_at() -> None:
    """A processor of the user, for one, is called no more often than in plain decoding."""
    truth = run(make_requests()[:1], 4, None)[0]
    seen: list[list[int]] = []

    def processor(text: list[int], logits: Tensor) -> Tensor:
        seen.append(text)
        return logits

    options = SamplingParams(logits_processors=[processor])
    request = Request("r0", [0, 1], options, seed=0, stop_ids=frozenset([5]))
    other = (truth[1] + 1) % V
    tree = TokenTree([truth[0], other, truth[1], other], [-1, 0, 0, 1], "toy")
    [verdict] = verify([tree], [request], target(tree_rows([tree], [request])), Counts(V))
    assert verdict.kept == [0, 2] and seen == [truth[:i] for i in range(3)]


@pytest.mark.parametrize("method", METHODS)
def test_batch_order_does_not_matter(method: Any) -> None:
    requests, random = make_requests(), np.random.default_rng(1)
    trees = [guess(request, [], random) for request in requests]
    together = verify(trees, requests, target(tree_rows(trees, requests)), Counts(V), method)
    order = random.permutation(len(requests)).tolist()
    trees_, requests_ = [trees[i] for i in order], [requests[i] for i in order]
    shuffled = verify(trees_, requests_, target(tree_rows(trees_, requests_)), Counts(V), method)
    assert shuffled == [together[i] for i in order]
    for tree, request, verdict in zip(trees, requests, together):
        logits = target(tree_rows([tree], [request]))
        assert verify([tree], [request], logits, Counts(V), method) == [verdict]


@pytest.mark.parametrize("method", METHODS)
def test_greedy_follows_the_argmax(method: Any) -> None:
    request = Request("a", [1], SamplingParams(temperature=0), seed=0)
    first = int(target([Row(request, [])]).argmax())
    second = int(target([Row(request, [first])]).argmax())
    last = int(target([Row(request, [first, second])]).argmax())
    other = (first + 1) % V
    tree = TokenTree([other, first, first, second], [-1, -1, -1, 1], "toy")
    [verdict] = verify([tree], [request], target(tree_rows([tree], [request])), Counts(V), method)
    assert (verdict.kept, verdict.next_token) == ([1, 3], last)


def test_traversal_never_uses_a_number_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over whole decode loops: no key of draft, accept or residual noise ever recurs."""
    used: list[Key] = []
    clean = choose_module.streams

    def recording(keys: list[Key], device: Any = "cpu") -> Tensor:
        used.extend(keys)
        return clean(keys, device)

    monkeypatch.setattr(choose_module, "streams", recording)
    monkeypatch.setattr(traversal_module, "streams", recording)
    decode(LONG, [Request("toy", [0], SamplingParams(), seed) for seed in range(50)], "traversal")
    assert len(used) > 1000 and len(set(used)) == len(used)


def fails_after(token: int) -> Any:
    def picky(tokens: list[int], logits: Tensor) -> Tensor:
        if tokens and tokens[-1] == token:
            raise RuntimeError("illegal")
        logits[token] = -torch.inf
        return logits

    return picky


@pytest.mark.parametrize("method", METHODS)
def test_processor_may_choke_on_a_draft_that_is_not_kept(method: Any) -> None:
    request = Request("a", [1], SamplingParams(logits_processors=[fails_after(7)]), seed=0)
    tree = TokenTree([7, 7, 3], [-1, 0, 1], "toy")
    [verdict] = verify([tree], [request], target(tree_rows([tree], [request])), Counts(V), method)
    assert verdict.kept == [] and verdict.next_token not in (7, NO_TOKEN)


@pytest.mark.parametrize("method", METHODS)
def test_error_of_a_reached_row_names_its_request(method: Any) -> None:
    def broken(tokens: list[int], logits: Tensor) -> Tensor:
        return logits[:3]

    good = Request("good", [1], SamplingParams(), seed=0)
    bad = Request("bad", [1], SamplingParams(logits_processors=[broken]), seed=0)
    trees = [TokenTree.empty(), TokenTree([3], [-1], "toy")]
    with pytest.raises(ProcessorError, match="request bad: logits processor 'broken'") as caught:
        verify(trees, [good, bad], target(tree_rows(trees, [good, bad])), Counts(V), method)
    assert caught.value.request is bad


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_not_numbers_fail_their_request(method: Any, temperature: float) -> None:
    requests = [Request(n, [1], SamplingParams(temperature=temperature), seed=0) for n in "ab"]
    logits = torch.zeros(2, V)
    logits[1, 3] = torch.nan
    with pytest.raises(RowError, match="request b: no token can be chosen") as caught:
        verify([TokenTree.empty()] * 2, requests, logits, Counts(V), method)
    assert caught.value.request is requests[1]


def test_what_the_pass_has_chosen_counts_for_those_who_need_no_more() -> None:
    """The others have theirs chosen from the logits, whatever the pass said of them."""
    requests, random = make_requests(), np.random.default_rng(4)
    truth = run(make_requests(), 8, None)
    trees = [guess(request, text, random) for request, text in zip(requests, truth)]
    logits = target(tree_rows(trees, requests))
    expected = verify(trees, requests, logits, Counts(V), everywhere=True)
    assert {pass_can_choose(request) for request in requests} == {True, False}
    chosen = [
        token if pass_can_choose(request) else NO_TOKEN
        for request, verdict in zip(requests, expected)
        for token in verdict.choices or ()
    ]
    assert verify_chosen(trees, requests, chosen, lambda: logits, Counts(V)) == expected
    plain = [i for i, request in enumerate(requests) if pass_can_choose(request)][1]
    root = sum(1 + len(tree) for tree in trees[:plain])
    chosen[root] = NO_TOKEN
    with pytest.raises(RowError, match="no token can be chosen") as caught:
        verify_chosen(trees, requests, chosen, lambda: logits, Counts(V))
    assert caught.value.request is requests[plain]


def test_an_error_of_a_request_that_needs_more_than_the_pass_is_its_own() -> None:
    def broken(tokens: list[int], logits: Tensor) -> Tensor:
        return logits[:3]

    good = Request("good", [1], SamplingParams(), seed=0)
    bad = Request("bad", [1], SamplingParams(logits_processors=[broken]), seed=0)
    trees = [TokenTree.empty(), TokenTree([3], [-1], "toy")]
    logits = target(tree_rows(trees, [good, bad]))
    with pytest.raises(ProcessorError, match="request bad: logits processor 'broken'"):
        verify_chosen(trees, [good, bad], [1, 2, 3], lambda: logits, Counts(V))


def test_long_chains_and_wrong_shapes() -> None:
    request = Request("a", [1], SamplingParams(temperature=0), seed=0)
    logits = torch.zeros(2001, 4)
    logits[:, 2] = 1
    chain = TokenTree.chain([2] * 2000, "toy")
    for method in METHODS:
        [verdict] = verify([chain], [request], logits, Counts(4), method)  # type: ignore[arg-type]
        assert len(verdict.kept) == 2000
    with pytest.raises(ValueError, match="2001 rows of logits for 1 roots and nodes"):
        verify([TokenTree.empty()], [request], logits, Counts(4))
    narrow = TokenTree.chain([2], "toy", q=torch.ones(1, 3))
    with pytest.raises(ValueError, match="q has shape"):
        verify([narrow], [request], logits[:2], Counts(4), "traversal")
    impossible = TokenTree.chain([2], "toy", q=torch.eye(4)[:1])
    with pytest.raises(ValueError, match="drafter 'toy': node 0 holds token 2"):
        verify([impossible], [request], logits[:2], Counts(4), "traversal")


def test_traversal_falls_back_to_p_when_rounding_leaves_nothing() -> None:
    class Unlucky:
        def accept(self, node: int, probability: float) -> bool:
            return False

        def pick(self, node: int, weights: Tensor) -> int:
            assert node == -1
            return int(weights.argmax())

    p = torch.tensor([0.25, 0.75], dtype=torch.float64)
    tree = TokenTree.chain([0], "toy", q=p[None])
    verdict = traversal_module.traverse(tree, lambda node: p, Unlucky())
    assert (verdict.kept, verdict.next_token) == ([], 1)
