"""Prompt lookup finds what a scan of the whole text would find, without the scan."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.drafters.counting import Counting, Watched

from outrider.core.errors import ConfigError
from outrider.core.params import SamplingParams
from outrider.core.request import Request
from outrider.drafters.base import DraftConfig
from outrider.drafters.ngram import NgramDrafter, NgramIndex


def scanned(tokens: list[int], shortest: int, longest: int, count: int) -> list[int]:
    """Longest match first, the most recent among equals; the copy may run into itself."""
    for n in range(longest, shortest - 1, -1):
        for start in range(len(tokens) - n - 1, -1, -1):
            if n <= len(tokens) and tokens[start : start + n] == tokens[-n:]:
                text = list(tokens)
                for i in range(count):
                    text.append(text[start + n + i])
                return text[len(tokens) :]
    return []


texts = st.lists(st.integers(0, 3), min_size=1, max_size=40)  # few tokens: many matches


@settings(max_examples=300, deadline=None, derandomize=True)
@given(texts, st.integers(1, 3), st.integers(0, 3), st.integers(1, 7), st.data())
def test_lookup_equals_a_scan_at_every_length(
    text: list[int], shortest: int, more: int, count: int, data: Any
) -> None:
    index = NgramIndex(shortest, shortest + more)
    done = 0
    while done < len(text):  # the text grows by any number of tokens at a time
        done = min(len(text), done + data.draw(st.integers(1, 6)))
        index.extend(text[:done])
        expected = scanned(text[:done], shortest, shortest + more, count)
        assert index.continuation(text[:done], count)[0] == expected


def test_longest_match_first() -> None:
    index = NgramIndex(1, 3)
    text = [1, 2, 3, 7, 9, 3, 8, 1, 2, 3]
    index.extend(text)
    assert index.continuation(text, 1)[0] == [7]  # after 1 2 3, though 8 followed 3 more recently


def test_most_recent_match_first() -> None:
    index = NgramIndex(2, 2)
    text = [1, 2, 5, 1, 2, 6, 1, 2]
    index.extend(text)
    assert index.continuation(text, 2)[0] == [6, 1]


def test_a_match_at_the_end_repeats() -> None:
    index = NgramIndex(1, 4)
    text = [9, 4, 5, 4, 5]
    index.extend(text)
    assert index.continuation(text, 5)[0] == [4, 5, 4, 5, 4]


def test_a_token_costs_the_same_however_long_the_text_is() -> None:
    index = NgramIndex(2, 4)
    index._last_end = Counting()
    text = Watched()
    for position in range(3000):
        text.append(position * position % 97)
        index._last_end.work = text.read = 0
        index.extend(text)
        index.continuation(text, 5)
        assert index._last_end.work <= 6  # each of three lengths is entered and looked up once
        assert text.read <= 6 * 4 + 5


def test_the_prompt_is_indexed_once() -> None:
    index = NgramIndex(2, 3)
    index._last_end = Counting()
    text = list(range(500))
    index.extend(text)
    index.extend(text)
    assert index._last_end.work <= 2 * 500


# ---- the drafter ----


def _drafter(**options: Any) -> NgramDrafter:
    return NgramDrafter(DraftConfig("ngram", 4, options=options), None)  # type: ignore[arg-type]


def _request(prompt: list[int], output: list[int]) -> Request:
    return Request("r", prompt, SamplingParams(), 0, output_ids=output)


def test_prompt_and_output_are_searched_together() -> None:
    drafter = _drafter(prompt_lookup_max=2)
    request = _request([1, 2, 3, 4], [9, 1])
    (empty,) = drafter.propose([request], [3])
    assert len(empty) == 0
    request.append(2)
    (tree,) = drafter.propose([request], [3])
    assert tree.tokens == [3, 4, 9]
    assert tree.parents == [-1, 0, 1]
    assert tree.source == "ngram"


def test_budgets_are_kept_and_requests_are_apart() -> None:
    drafter = _drafter()
    batch = [_request([1, 2, 1, 2], []), _request([1, 2, 8, 1, 2], []), _request([5], [])]
    trees = drafter.propose(batch, [1, 2, 3])
    assert [tree.tokens for tree in trees] == [[1], [8, 1], []]


def test_a_request_that_left_is_forgotten() -> None:
    drafter = _drafter()
    request = _request([1, 2, 1, 2], [])
    drafter.propose([request], [2])
    drafter.release(request)
    drafter.release(request)  # one that never drafted is fine, too
    assert not drafter._indices


@pytest.mark.parametrize("options", [{"prompt_lookup_min": 0}, {"prompt_lookup_max": 0}])
def test_matches_of_no_token_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="at least 1"):
        _drafter(**options)


@pytest.mark.parametrize(
    ("options", "lengths"),
    [
        ({}, (2, 4)),
        ({"prompt_lookup_max": 1}, (1, 1)),
        ({"prompt_lookup_min": 6}, (6, 6)),
        ({"prompt_lookup_min": 3, "prompt_lookup_max": 3}, (3, 3)),
    ],
)
def test_whoever_names_one_end_moves_the_other_along(options: Any, lengths: Any) -> None:
    drafter = NgramDrafter(DraftConfig("ngram", 3, options=options), None)  # type: ignore[arg-type]
    assert (drafter.least_match, drafter.most_match) == lengths


@pytest.mark.parametrize(
    "options",
    [
        {"prompt_lookup_max": "4"},
        {"prompt_lookup_max": 2.5},
        {"prompt_lookup_min": None},
        {"prompt_lookup_min": 6, "prompt_lookup_max": 4},
    ],
)
def test_lengths_that_make_no_sense_are_refused(options: Any) -> None:
    with pytest.raises(ConfigError, match="prompt_lookup_"):
        NgramDrafter(DraftConfig("ngram", 3, options=options), None)  # type: ignore[arg-type]
