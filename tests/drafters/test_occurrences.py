"""The index finds what a scan of everything would find, without the scan."""

from collections import deque
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.drafters.counting import Counting, Watched

from outrider.drafters.occurrences import SEPARATOR, Archive, Matches, Occurrences

ALL = 10**6  # matches at a time: no limit
LONGEST = 5


def agreeing(source: list[int], place: int, text: list[int]) -> int:
    """How many tokens before the place agree with the text's end."""
    n = 0
    while n < min(place, len(text), LONGEST) and source[place - 1 - n] == text[-1 - n]:
        n += 1
    return n


def scanned(source: list[int], text: list[int], gram: int) -> Matches:
    lengths = {place: agreeing(source, place, text) for place in range(1, len(source))}
    return {place: length for place, length in lengths.items() if length >= gram}


tokens = st.integers(0, 2)  # few: many matches
texts = st.lists(tokens, min_size=1, max_size=30)
examples = settings(max_examples=100, deadline=None, derandomize=True)


def read(text: list[int], gram: int, most: int, skipped: int = 0) -> list[Matches]:
    """The matches of a text against itself, after each of its tokens beyond those skipped."""
    index = Occurrences(gram, most, LONGEST)
    skipped = min(skipped, len(text))
    index.extend(text, skipped)
    matches: Matches = {}
    found = []
    for end in range(skipped, len(text)):
        matches = index.following(matches, text, text, end)
        index.extend(text, end + 1)
        found.append(matches)
    return found


@examples
@given(texts, st.integers(1, 3), st.integers(0, 29))
def test_matches_equal_a_scan_wherever_reading_starts(text: Any, gram: int, skipped: int) -> None:
    for end, found in enumerate(read(text, gram, ALL, skipped), min(skipped, len(text)) + 1):
        assert found == scanned(text[:end], text[:end], gram)


@examples
@given(texts, st.integers(1, 2), st.integers(1, 4))
def test_of_many_matches_those_that_go_on_are_kept(text: Any, gram: int, most: int) -> None:
    before: Matches = {}
    for end, found in enumerate(read(text, gram, most), 1):
        everything = scanned(text[:end], text[:end], gram)
        assert len(found) == min(most, len(everything))
        assert found.items() <= everything.items()  # with their true lengths
        going_on = [place + 1 for place in before if text[place] == text[end - 1]]
        assert list(found)[: len(going_on)] == going_on
        others = list(found)[len(going_on) :]
        assert others == sorted(set(everything) - set(going_on), reverse=True)[: len(others)]
        before = found


def test_a_token_costs_the_same_however_long_the_text_is() -> None:
    index = Occurrences(1, most=4, longest=6)
    index._newest = Counting()
    text, matches = Watched(), {}
    for position in range(3000):
        text.append(position * position % 97)
        index._newest.work = text.read = 0
        matches = index.following(matches, text, text, position)
        index.extend(text, position + 1)
        assert index._newest.work <= 3
        assert text.read <= 3 + 4 * (1 + 2 * 6)  # per match: does it go on, or how long is it


# ---- many texts ----


@examples
@given(st.lists(st.lists(tokens, min_size=1, max_size=8), max_size=12), texts, st.integers(1, 2))
def test_an_archive_finds_what_its_texts_hold(kept: Any, text: list[int], gram: int) -> None:
    archive = Archive(Occurrences(gram, ALL, LONGEST), most_texts=3, most_tokens=15)
    expected: deque[list[int]] = deque()
    matches: Matches = {}
    for end in range(len(text)):
        if end % 2 == 0 and kept:  # texts come and go while another is being read
            expected.append(kept.pop())
            archive.add(expected[-1])
            while len(expected) > 3 or sum(len(old) + 1 for old in expected) > 15:
                expected.popleft()
        matches = archive.following(matches, text, end)
        found = sorted((n, list(archive.continuation(p, 4))) for p, n in matches.items())
        assert found == sorted(
            (length, old[place : place + 4])
            for old in expected
            for place, length in scanned([*old, SEPARATOR], text[: end + 1], gram).items()
        )
    assert len(archive) == len(expected)
    assert archive.size == sum(len(old) + 1 for old in expected)


def places_of(archive: Archive, *text: int) -> list[list[int]]:
    matches: Matches = {}
    for end in range(len(text)):
        matches = archive.following(matches, list(text), end)
    return [list(archive.continuation(place, 9)) for place in matches]


def test_the_oldest_texts_are_forgotten_first() -> None:
    archive = Archive(Occurrences(2, ALL, LONGEST), most_texts=2, most_tokens=100)
    for last in (5, 6, 7):
        archive.add([1, 2, 3, last])
    assert places_of(archive, 2, 3) == [[7], [6]]
    archive.add(range(10, 106))  # as many tokens as there is room for with one of these
    assert places_of(archive, 2, 3) == []
    assert places_of(archive, 11, 12)[0][:2] == [13, 14]


def test_of_a_text_that_is_too_long_the_end_is_kept() -> None:
    archive = Archive(Occurrences(2, ALL, LONGEST), most_texts=2, most_tokens=8)
    archive.add(range(100))
    assert (len(archive), archive.size) == (1, 8)
    assert places_of(archive, 93, 94) == [[95, 96, 97, 98, 99]]
    assert places_of(archive, 50, 51) == []


def test_nothing_grows_beyond_what_is_kept() -> None:
    archive = Archive(Occurrences(2, 8, LONGEST), most_texts=5, most_tokens=10**6)
    for i in range(300):
        archive.add([i * j * j % 997 for j in range(20)])
        assert archive.size <= 5 * 21
        assert len(archive.tokens) == len(archive.index._older) <= 2 * archive.size + 21
        assert len(archive.index._newest) <= archive.size


def test_places_from_before_it_was_cleared_are_not_found() -> None:
    archive = Archive(Occurrences(2, 8, LONGEST), most_texts=5, most_tokens=100)
    archive.add([1, 2, 3, 4])
    matches = archive.following({}, [1, 2], 1)
    assert matches
    archive.clear()
    archive.add([9, 9, 3, 5])
    assert [list(archive.continuation(place, 2)) for place in matches] == [[]]
    assert archive.following(matches, [1, 2, 3], 2) == {}
    assert (len(archive), archive.size) == (1, 5)
