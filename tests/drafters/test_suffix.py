"""Suffix decoding copies the longest matches, from the text itself and from requests before it."""

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.helpers import (
    Models,
    make_llm,
    mixed_requests,
    random_prompt,
    run,
    run_alone,
    same_results,
)

from outrider.core.errors import ConfigError
from outrider.core.params import SamplingParams
from outrider.core.request import Request
from outrider.core.tree import TokenTree
from outrider.drafters import suffix
from outrider.drafters.base import DraftConfig
from outrider.drafters.copying import match_weight
from outrider.drafters.suffix import OWN_TEXT, TRUST_AT_FIRST, SuffixDrafter
from outrider.engine.llm import LLM


def make(length: int | None = None, **options: Any) -> SuffixDrafter:
    named = {f"suffix_decoding_{name}": value for name, value in options.items()}
    return SuffixDrafter(DraftConfig("suffix", length, options=named), None)  # type: ignore[arg-type]


def ask(prompt: list[int], output: list[int] | None = None) -> Request:
    return Request("r", prompt, SamplingParams(), 0, output_ids=list(output or []))


def look(drafter: SuffixDrafter, request: Request, budget: int = 8, ahead: Any = ()) -> TokenTree:
    tree = drafter.lookup(request, list(ahead), budget)
    assert len(tree) <= budget
    assert tree.source == "suffix"
    assert tree.confidence is not None
    assert all(0 < confidence <= 1 for confidence in tree.confidence)
    return tree


def chain(tree: TokenTree) -> list[int]:
    """The longest path."""
    return max((tree.path_tokens(node) for node in range(len(tree))), key=len, default=[])


# ---- the request's own text ----


def test_prompt_and_output_are_searched_together() -> None:
    drafter, request = make(4), ask([1, 2, 3, 4, 5, 6], [9, 2])
    assert chain(look(drafter, request, 3)) == []  # one token that agrees says too little
    request.append(3)
    assert chain(look(drafter, request, 3)) == [4, 5, 6]


def test_the_longest_match_is_copied_not_the_latest() -> None:
    drafter = make(4)
    tree = look(drafter, ask([1, 2, 3, 4, 5, 50, 51, 4, 5, 60, 61, 1, 2, 3, 4, 5]), 2)
    assert chain(tree) == [50, 51]


def test_branches_where_what_followed_differs() -> None:
    tree = look(make(), ask([1, 2, 3, 7, 1, 2, 3, 8, 1, 2, 3, 9, 1, 2, 3]), 3)
    assert sorted(tree.tokens) == [7, 8, 9]
    assert tree.parents == [-1, -1, -1]
    assert tree.tokens[0] == 9  # the latest among equals


def test_a_match_at_the_end_repeats() -> None:
    assert chain(look(make(8), ask([9, 4, 5, 4, 5, 4, 5]), 5)) == [4, 5, 4, 5, 4]


def test_longer_matches_are_surer_and_draft_more() -> None:
    text = list(range(40))
    short = look(make(), ask([*text, 100, *text[:2]]), 24)
    long = look(make(), ask([*text, 100, *text[:12]]), 24)
    assert short.confidence is not None
    assert long.confidence is not None
    assert short.confidence[0] < long.confidence[0]
    assert short.confidence == sorted(short.confidence)  # a path that holds is a longer match
    assert 0 < len(short) < len(long)


def scanned(text: list[int], committed: int, longest: int) -> dict[int, float]:
    """Next token -> its share of the weights. A match that lies in drafted text alone is not
    found, as drafted text is not indexed."""
    weights: dict[int, float] = {}
    for place in range(1, len(text)):
        length = 0
        while length < place and text[place - 1 - length] == text[-1 - length]:
            length += 1
        if length and place - length < committed:
            # Nothing has been learned about trust yet.
            weight = (OWN_TEXT + TRUST_AT_FIRST) * match_weight(min(length, longest))
            weights[text[place]] = weights.get(text[place], 0) + weight
    return {token: weight / (1 + sum(weights.values())) for token, weight in weights.items()}


few_of_each = st.lists(st.integers(0, 4), min_size=1, max_size=24).filter(
    lambda text: max(map(text.count, text)) <= suffix.MOST_MATCHES
)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(few_of_each, st.integers(2, 6), st.data())
def test_confidence_is_the_share_of_the_weights(text: Any, longest: int, data: Any) -> None:
    """As counted by a scan, however the text came, and whether or not its end is committed."""
    drafter, request = make(max_tree_depth=longest, min_token_prob=0), ask(text)
    cuts = data.draw(st.lists(st.integers(1, len(text)), min_size=1, max_size=4))
    for committed in sorted(cuts):
        request.tokens = text[:committed]
        for whole in (text, text[:committed]):
            tree = look(drafter, request, 50, ahead=whole[committed:])
            assert tree.confidence is not None
            found = {tree.tokens[node]: tree.confidence[node] for node in tree.children.get(-1, [])}
            assert found == pytest.approx(scanned(whole, committed, longest))


def test_budgets_are_kept_and_requests_are_apart() -> None:
    batch = [ask([1, 2, 3, 1, 2, 3]), ask([1, 2, 3, 8, 1, 2, 3]), ask([5]), ask([1, 2, 1, 2])]
    trees = make(4).propose(batch, [1, 2, 3, 0])
    assert [tree.tokens for tree in trees] == [[1], [8, 1], [], []]


def test_drafted_tokens_are_used_and_not_remembered() -> None:
    drafter, request = make(4), ask([1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2])
    before = look(drafter, request)
    assert chain(look(drafter, request, ahead=[3, 4, 5]))[:3] == [6, 7, 8]
    assert chain(look(drafter, request, ahead=[40, 41])) == []
    assert chain(look(drafter, request, 5, ahead=[40, 41, 40, 41])) == []
    after = look(drafter, request)
    assert (after.tokens, after.parents) == (before.tokens, before.parents)
    assert after.confidence == before.confidence


# ---- requests that have finished ----


def answered(drafter: SuffixDrafter, prompt: list[int], output: list[int]) -> None:
    request = ask(prompt)
    look(drafter, request)
    for token in output:
        request.append(token)
    drafter.release(request)
    drafter.meanwhile([])


def test_an_answer_is_found_from_its_prompt_on() -> None:
    drafter = make(4)
    answered(drafter, [7, 1, 2, 3], [20, 21, 22, 23, 24])
    request = ask([8, 1, 2, 3])
    assert chain(look(drafter, request, 4))[:2] == [20, 21]
    for token in (20, 21, 22):
        request.append(token)
    assert chain(look(drafter, request, 4)) == [23, 24]  # and ends where it ended


def test_of_a_long_prompt_only_the_end_is_remembered() -> None:
    drafter = make(4)
    answered(drafter, [*range(100, 180)], [40, 41])
    assert chain(look(drafter, ask([*range(170, 180)])))[:2] == [40, 41]
    assert len(look(drafter, ask([*range(100, 110)]))) == 0  # others' prompts are not copied from


def test_without_cached_requests_nothing_is_shared() -> None:
    drafter = make(4, max_cached_requests=0)
    answered(drafter, [7, 1, 2, 3], [20, 21, 22, 23, 24])
    assert chain(look(drafter, ask([8, 1, 2, 3]), 4)) == []


def test_only_so_many_requests_are_cached_the_latest() -> None:
    drafter = make(4, max_cached_requests=2)
    for i in range(3):
        answered(drafter, [50, 51, 10 * i, 10 * i + 1], [10 * i + 2, 10 * i + 3, 10 * i + 4])
    found = [chain(look(drafter, ask([50, 51, i, i + 1]), 2)) for i in (0, 10, 20)]
    assert found[0] != [2, 3]
    assert found[1:] == [[12, 13], [22, 23]]


def test_only_so_many_tokens_are_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suffix, "MOST_TOKENS", 50)
    drafter = make(4)
    for i in range(40):
        answered(drafter, [1, 2, 3], [i * j % 19 for j in range(10 + i % 7)])
    assert drafter.archive is not None
    assert drafter.archive.size <= 50
    assert len(drafter.archive) >= 2


def test_reset_forgets_finished_requests_and_keeps_running_ones() -> None:
    drafter = make(4)
    answered(drafter, [7, 1, 2, 3], [20, 21, 22])
    running = ask([1, 2, 3])
    assert chain(look(drafter, running))
    drafter.reset()
    assert chain(look(drafter, running)) == []
    assert chain(look(drafter, ask([7, 1, 2, 3]))) == []
    for token in (20, 30, 31, 32, 30, 31):
        running.append(token)
    assert chain(look(drafter, running))[0] == 32
    answered(drafter, [7, 1, 2, 3], [40, 41])
    assert chain(look(drafter, ask([1, 2, 3])))[:2] == [40, 41]


def test_shared_texts_gain_trust_by_being_right_and_lose_it_by_being_wrong() -> None:
    answer = random.Random(2).sample(range(100, 10_000), 60)

    def confidence(prompt: list[int], output: list[int], pause_at: int = 99) -> float:
        drafter = make(max_tree_depth=4)  # so that all matches look equally long
        answered(drafter, [1, 2, 3], answer)
        request = ask(prompt)
        for place, token in enumerate(output):
            if place < pause_at:
                look(drafter, request)
            request.append(token)
        tree = look(drafter, request)
        assert tree.tokens[0] == answer[40]
        return (tree.confidence or [])[0]

    every_third_wrong = [50 if i % 3 == 2 else token for i, token in enumerate(answer[:36])]
    unknown = confidence(answer[:40], [])
    right = confidence([1, 2, 3], answer[:40])
    assert right > unknown + 0.02
    assert confidence([1, 2, 3], answer[:40], pause_at=30) == pytest.approx(right, abs=0.005)
    assert confidence([1, 2, 3], [*every_third_wrong, *answer[36:40]]) < unknown - 0.02


def test_requests_that_left_are_forgotten() -> None:
    drafter = make(4)
    request = ask([1, 2, 1, 2], [1])
    look(drafter, request)
    drafter.release(request)
    drafter.release(ask([1, 2]))  # one that never drafted, and one without an answer
    assert not drafter._states
    assert drafter.archive is not None
    assert len(drafter.archive) == 0  # nobody waits for that
    drafter.meanwhile([])
    assert len(drafter.archive) == 1


def test_texts_are_read_while_nobody_waits() -> None:
    drafter, request = make(4), ask([1, 2, 3] * 20)
    for i in range(20):
        drafter.release(ask([1], [2 + i]))
    assert drafter.archive is not None
    drafter.meanwhile([])
    assert len(drafter.archive) == 3  # a few in every step
    drafter.meanwhile([request])
    assert len(drafter.archive) == 20
    assert drafter._states[request].read == 60
    assert chain(look(drafter, request, 4)) == [1, 2, 3, 1]
    drafter.release(ask([1], [2]))
    drafter.reset()
    drafter.meanwhile([request])
    assert len(drafter.archive) == 0


# ---- options ----


def test_a_factor_limits_nodes_to_a_multiple_of_the_match() -> None:
    request = ask([*range(40), 100, 0, 1, 2, 3])
    assert len(look(make(), request, 16)) == 16
    assert len(look(make(max_spec_factor=2), request, 16)) == 8
    assert len(look(make(max_spec_factor=0.5), request, 16)) == 2
    branching = ask([1, 2, 3, 4, 9, 1, 2, 5, 6, 8, 1, 2])
    assert len(look(make(max_spec_factor=50), branching, 3)) == 3  # never beyond the budget


def test_a_deepest_tree_and_a_least_probability() -> None:
    request = ask([*range(40), 100, 0, 1, 2, 3])
    assert len(look(make(max_tree_depth=5), request, 16)) == 5
    assert 0 < len(look(make(min_token_prob=0.5), request, 16)) < 8
    assert len(look(make(min_token_prob=1), request, 16)) == 0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_tree_depth", 1),
        ("max_tree_depth", 2.5),
        ("max_tree_depth", None),
        ("max_cached_requests", -1),
        ("max_cached_requests", True),
        ("max_cached_requests", "10"),
        ("max_spec_factor", 0),
        ("max_spec_factor", float("nan")),
        ("max_spec_factor", "1"),
        ("min_token_prob", -0.1),
        ("min_token_prob", 1.1),
        ("min_token_prob", float("nan")),
        ("min_token_prob", None),
    ],
)
def test_options_that_make_no_sense_are_refused(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"suffix_decoding_{name}=.* must be"):
        make(**{name: value})


def test_unknown_options_are_refused() -> None:
    with pytest.raises(ConfigError, match="max_tree_depth"):
        make(max_tree_dept=3)


# ---- in the engine ----


@pytest.fixture(scope="module")
def plain(models: Models) -> LLM:
    return make_llm(models.target)


@pytest.mark.parametrize("length", [None, 5])
def test_texts_are_those_of_plain_decoding(models: Models, plain: LLM, length: int | None) -> None:
    greedy = SamplingParams(temperature=0, max_tokens=24)
    asked = [*mixed_requests(12)[::2], *((random_prompt(i, 20), greedy) for i in (50, 51))]
    fixed = {} if length is None else {"num_speculative_tokens": length}
    llm = make_llm(models.target, {"method": "suffix", **fixed})
    expected = run(plain, asked)
    same_results(plain, asked, run(llm, asked), expected)
    same_results(plain, asked, run(llm, asked), expected)  # all of them are cached by now
    same_results(plain, asked[-2:], run_alone(llm, asked[-2:]), expected[-2:])


def test_a_repeated_request_takes_fewer_steps_until_reset(models: Models) -> None:
    llm = make_llm(models.target, {"method": "suffix", "num_speculative_tokens": 8})
    asked = [(random_prompt(3, 20), SamplingParams(temperature=1, seed=4, max_tokens=48))]

    def steps() -> int:
        before = llm.engine.steps
        run(llm, asked)
        return llm.engine.steps - before

    first = steps()
    assert steps() < first / 2
    llm.engine.drafter.reset()
    assert steps() == first
