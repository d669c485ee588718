"""Lookahead: the tree is the published mask, its n-grams are what the target wrote."""

import random
from collections.abc import Callable
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.engine.helpers import (
    Models,
    make_llm,
    mixed_requests,
    random_prompt,
    run,
    run_alone,
    same_results,
)
from tests.tiny import make_tiny
from torch import Tensor

from outrider.core.errors import ConfigError
from outrider.core.params import SamplingParams
from outrider.core.request import Request
from outrider.core.tree import TokenTree, ancestor_mask
from outrider.core.verdict import Verdict
from outrider.drafters.base import DraftConfig
from outrider.drafters.jacobi import NgramPool, Window
from outrider.drafters.lookahead import LookaheadDrafter
from outrider.engine.drafting import Drafting
from outrider.engine.llm import LLM
from outrider.sampling.choose import NO_TOKEN
from outrider.verify.coupled import walk

Target = Callable[[list[int]], int]  # a text -> the next token


def make_drafter(**options: Any) -> LookaheadDrafter:
    return LookaheadDrafter(DraftConfig("lookahead", options=options), None)  # type: ignore


def make_request(prompt: list[int]) -> Request:
    return Request("r", prompt, SamplingParams(), seed=0)


def checked(request: Request, tree: TokenTree, target: Target) -> Verdict:
    paths = [[], *(tree.path_tokens(node) for node in range(len(tree)))]
    choices = [target(request.tokens + path) for path in paths]
    [verdict] = walk([tree], lambda at: [choices[i] for i in at])
    return Verdict(verdict.kept, verdict.next_token, choices)


def step(
    drafter: LookaheadDrafter, request: Request, target: Target, budget: int, reviewed: bool = True
) -> int:
    """One step of one request; how many tokens it wrote. A step may pass the proposal by."""
    (tree,) = drafter.propose([request], [budget])
    assert len(tree) <= budget
    verdict = checked(request, tree, target)
    written = [*(tree.tokens[node] for node in verdict.kept), verdict.next_token]
    if reviewed:
        drafter.review([request], [tree], [verdict])
    else:
        written = [target(request.tokens)]
    for token in written:
        request.append(token)
    return len(written)


def never_the_same() -> Target:
    fresh = count(1000)
    return lambda text: next(fresh)


def follows(token: int) -> int:
    """A target that looks at the last token only: any true chain can be recognised as one."""
    return (5 * token + 3) % 1009


# ---- the tree ----


def test_every_node_sees_what_the_published_mask_shows_it() -> None:
    drafter = make_drafter(window=3, ngram=4, guesses=2)
    request = make_request(list(range(10)))
    target = never_the_same()
    for _ in range(6):
        step(drafter, request, target, drafter.longest)
    state = drafter._states[request]
    guesses = [(500, 501, 502), (600, 601, 602)]
    for guess in guesses:
        state.pool.add((request.tokens[-1], *guess))
    (tree,) = drafter.propose([request], [drafter.longest])
    columns = state.window.columns
    assert [len(column) for column in columns] == state.window.written == [3, 3, 3]
    assert len(tree) == drafter.longest == 3 * (3 + 2)
    mask = ancestor_mask(tree.parents)  # [nodes, nodes]
    seen = [{tree.tokens[i] for i in mask[node].nonzero()[:, 0].tolist()} for node in range(15)]
    place = {token: node for node, token in enumerate(tree.tokens)}  # all tokens differ
    for j, column in enumerate(columns):
        for level, token in enumerate(column):
            feet = {columns[i][0] for i in range(j + 1)}  # level 0 up to j
            assert seen[place[token]] == feet | set(column[: level + 1])  # and its own column
            assert tree.depths[place[token]] == 1 + j + level
    for guess in guesses:
        for i, token in enumerate(guess):
            assert seen[place[token]] == set(guess[: i + 1])  # its own n-gram, never the window
            assert tree.depths[place[token]] == 1 + i


def test_what_paths_share_is_one_node() -> None:
    drafter = make_drafter(window=2, ngram=4, guesses=3)
    request = make_request([1, 2, 3])
    for guess in [(7, 8, 9), (7, 8, 5), (6, 8, 9)]:
        drafter._state(request).pool.add((3, *guess))
    drafter._state(request).window = make_window([[7, 4, 4], [4, 4, 7]], 3, written=3)
    (tree,) = drafter.propose([request], [drafter.longest])
    paths = sorted(tuple(tree.path_tokens(node)) for node in range(len(tree)))
    assert len(paths) == len(set(paths))
    assert {(7,), (7, 4), (7, 4, 4), (7, 4, 4, 7), (7, 8, 9), (7, 8, 5), (6, 8, 9)} <= set(paths)
    assert len(tree) == 4 + 3 + 3  # the second column is the first's continuation


@pytest.mark.parametrize("options", [{}, {"window": 2, "ngram": 5, "guesses": 7}])
def test_a_smaller_budget_shrinks_window_and_guesses_alike(options: Any) -> None:
    drafter = make_drafter(**options)
    request = make_request(list(range(20)))
    target = never_the_same()
    for _ in range(8):
        step(drafter, request, target, drafter.longest)
    for i in range(drafter.guesses):
        drafter._states[request].pool.add(
            (request.tokens[-1], *range(9000 + 10 * i, 8999 + 10 * i + drafter.ngram))
        )
    sizes, widths = [], []
    for budget in range(drafter.longest + 3):
        (tree,) = drafter.propose([request], [budget])
        (again,) = drafter.propose([request], [budget])
        assert (tree.tokens, tree.parents) == (again.tokens, again.parents)
        sizes.append(len(tree))
        widths.append(len(drafter._states[request].proposed.tops))  # type: ignore[union-attr]
        assert len(tree) == drafter.longest or budget - len(tree) < drafter.ngram - 1
    assert sizes == sorted(sizes)
    assert sizes[-1] == drafter.longest
    assert widths == sorted(widths)
    assert widths[0] == 0 and widths[-1] == drafter.window


# ---- the two memories ----


def make_window(columns: list[list[int]], length: int, written: int) -> Window:
    window = Window(len(columns[0]), length)
    window.columns, window.written = columns, [written] * len(columns)
    return window


def test_the_window_moves_on_with_the_text() -> None:
    window = make_window([[1, 2, 3], [4, 5, 6], [7, 8, 9]], length=10, written=3)
    window.written[2] = 2
    assert window.write([30, 60, 90]) == [(1, 2, 3, 30), (4, 5, 6, 60)]
    assert window.columns == [[2, 3, 30], [5, 6, 60], [8, 9, 90]]
    assert window.written == [3, 3, 3]
    assert window.length == 11
    window.move_to(12)  # one more token was accepted
    assert window.columns == [[5, 6, 60], [8, 9, 90]]
    window.fill(4, lambda: 99)
    assert window.columns == [[5, 6, 60], [8, 9, 90], [9, 90, 99], [90, 99, 99]]
    assert window.written == [3, 3, 1, 1]
    window.move_to(40)  # written by others, for a long time
    assert window.columns == window.written == []
    window.fill(1, iter([1, 2, 3]).__next__)
    assert window.columns == [[1, 2, 3]]


def test_columns_that_were_not_asked_about_are_dropped() -> None:
    window = make_window([[1, 2], [3, 4], [5, 6]], length=5, written=2)
    assert window.write([20]) == [(1, 2, 20)]
    assert window.columns == [[2, 20]]


def test_a_column_that_nothing_can_follow_starts_again() -> None:
    window = make_window([[1, 2], [3, 4]], length=5, written=2)
    assert window.write([NO_TOKEN, 40]) == [(3, 4, 40)]
    assert window.columns == [[2, 1], [4, 40]]
    assert window.write([50, 60]) == [(4, 40, 60)]
    assert window.write([70, 80]) == [(1, 50, 70), (40, 60, 80)]


def test_the_pool_keeps_the_newest() -> None:
    pool = NgramPool(size=3, most=2)
    for ngram in [(1, 2, 3), (1, 4, 5), (1, 2, 3), (1, 6, 7), (2, 0, 0)]:
        pool.add(ngram)
    assert pool.after(1) == [(6, 7), (2, 3)]
    assert pool.after(2) == [(0, 0)]
    assert pool.after(9) == []


def test_the_text_is_read_once_and_from_where_it_is_told() -> None:
    pool = NgramPool(size=2, most=9)
    added: list[Any] = []
    pool.add = added.append  # type: ignore[method-assign]
    for end in (2, 3, 3, 6):
        pool.read(list(range(end)), start=1)
    assert added == [(1, 2), (2, 3), (3, 4), (4, 5)]


# ---- what it finds ----


@pytest.mark.parametrize("seed", range(4))
def test_ngrams_are_chains_that_the_target_wrote(seed: int) -> None:
    """Whatever the budgets, and whichever steps passed the drafter by."""
    rng = random.Random(seed)
    drafter = make_drafter(window=4, ngram=4, guesses=3, prompt=False)
    request = make_request([rng.randrange(1009) for _ in range(30)])  # no chain at all
    request.append(follows(request.tokens[-1]))
    for _ in range(60):
        budget = rng.choice([drafter.longest, rng.randrange(drafter.longest)])
        step(drafter, request, lambda text: follows(text[-1]), budget, rng.random() < 0.8)
    pool = drafter._states[request].pool
    ngrams = [(first, *rest) for first in pool._found for rest in pool._found[first]]
    assert len(ngrams) > 60  # more than the text itself has
    for ngram in ngrams:
        assert len(ngram) == 4
        assert all(b == follows(a) for a, b in pairwise(ngram))
    assert all(len(found) <= 3 for found in pool._found.values())


def test_prompts_are_searched_unless_told_otherwise() -> None:
    prompt = [1, 2, 3, 4, 9, 1]
    (tree,) = make_drafter().propose([make_request(prompt)], [3])
    assert tree.tokens == [2, 3, 4]
    (tree,) = make_drafter(prompt=False).propose([make_request(prompt)], [3])
    assert len(tree) == 0


def test_a_text_that_depends_on_its_place_is_foreseen() -> None:
    """It never repeats, so that nothing could be copied: the window writes it in advance."""
    drafter = make_drafter(prompt=False)
    request = make_request([5, 6, 7])
    rng = random.Random(1)
    passes = []
    for _ in range(16):
        reviewed = rng.random() < 0.8
        passes.append(step(drafter, request, lambda text: 10_000 + len(text), 30, reviewed))
        drafter.propose([request], [30])
        window = drafter._states[request].window
        assert window.length == len(request.tokens)
        for j, (column, written) in enumerate(zip(window.columns, window.written, strict=True)):
            places = range(window.length + j, window.length + j + window.height)
            foreseen = [10_000 + place for place in places]
            assert column[window.height - written + 1 :] == foreseen[window.height - written + 1 :]
    assert sum(passes[4:]) / len(passes[4:]) > 2


def test_a_cut_tree_teaches_nothing() -> None:
    drafter = make_drafter(window=2, ngram=3, guesses=2)
    request = make_request([1, 2, 3, 1, 2, 3])
    (tree,) = drafter.propose([request], [drafter.longest])
    columns = [list(column) for column in drafter._states[request].window.columns]
    cut = tree.select([0])
    drafter.review([request], [cut], [checked(request, cut, lambda text: 7)])
    assert drafter._states[request].window.columns == columns


def test_confidence_follows_what_held() -> None:
    drafter = make_drafter(window=1, ngram=3, guesses=1)
    right, wrong = make_request([1, 2, 3, 1]), make_request([1, 2, 3, 1])
    cycle = {1: 2, 2: 3, 3: 1}
    for _ in range(10):
        step(drafter, right, lambda text: cycle[text[-1]], drafter.longest)
        step(drafter, wrong, lambda text: 4 - text[-1] % 3, drafter.longest)
    trees = drafter.propose([right, wrong], [drafter.longest] * 2)
    sure, unsure = (max(tree.confidence or [0]) for tree in trees)
    assert 0 < unsure < sure < 1


# ---- in the engine ----


def in_engine(models: Models, **options: Any) -> Any:
    return make_llm(models.target, {"method": "lookahead", **options})


@pytest.mark.parametrize("length", [5, 30])
def test_the_text_is_the_targets_own(models: Models, length: int) -> None:
    asked = mixed_requests(16)
    llm = in_engine(models, num_speculative_tokens=length)
    results = run(llm, asked)
    assert sum(result.speculation.accepted for result in results) > 0
    assert not llm.engine.drafter._states  # all have left
    expected = run(make_llm(models.target, "none"), asked)
    same_results(llm, asked, results, expected)
    same_results(llm, asked[:4], run_alone(llm, asked[:4]), expected[:4])


@pytest.mark.parametrize("verification", ["coupled", "traversal"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_repeating_text_takes_fewer_passes(
    models: Models, temperature: float, verification: str
) -> None:
    rhyme = [40, 41, 42, 43, 44, 45, 46]

    def recite(path: list[int], logits: Tensor) -> Tensor:
        logits[rhyme[len(path) % len(rhyme)]] += 200
        return logits

    params = SamplingParams(
        seed=1, max_tokens=60, temperature=temperature, logits_processors=[recite]
    )
    llm = in_engine(models, num_speculative_tokens=30, verification=verification, prompt=False)
    (result,) = run(llm, [(random_prompt(1, 5), params)])
    assert result.outputs[0].token_ids == (rhyme * 9)[:60]
    assert result.speculation.mean_acceptance_length > 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window": 0}, "window=0 must be a whole number of at least 1"),
        ({"ngram": 1}, "ngram=1 must be a whole number of at least 2"),
        ({"guesses": True}, "guesses=True"),
        ({"guesses": 2.5}, "guesses=2.5"),
        ({"prompt": 1}, "prompt=1 must be True or False"),
        ({"windows": 3}, "did you mean 'window'"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_drafter(**options)


@pytest.mark.parametrize(("method", "reads"), [("lookahead", True), ("ngram", False)])
def test_an_engine_tells_it_what_the_target_chose_beside_the_text(
    method: str, reads: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its window would never grow without; for others nobody looks there."""
    said: list[bool] = []
    real = Drafting.review

    def review(self: Drafting, batch: Any, trees: Any, verdicts: list[Verdict]) -> None:
        said.extend(verdict.choices is not None for verdict in verdicts)
        real(self, batch, trees, verdicts)

    monkeypatch.setattr(Drafting, "review", review)
    config = {"method": method, "num_speculative_tokens": 6}
    llm = LLM(str(make_tiny("llama", tmp_path)), config, device="cpu", dtype="float32")
    llm.generate([[5, 6, 7, 5, 6, 7]], SamplingParams(temperature=0, max_tokens=4), use_tqdm=False)
    assert set(said) == {reads}
