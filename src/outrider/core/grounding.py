"""Which parts of an answer stand word for word in the documents, and where.

The finished text is searched for in the documents, so the result does not depend on drafting.
"""

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from outrider.core.documents import Document
from outrider.core.outputs import Grounding
from outrider.core.stretches import Codes, Hashes, code_points, stretch_hashes

# Shorter phrases are everybody's: "on the other hand, the" proves nothing. Four or five words.
LEAST = 24
# A phrase may stand in any number of places. Its first ones are tried, and only a few of them
# where a longer match runs through already: this bounds the work for texts that repeat themselves.
MOST_PLACES, FEW_PLACES = 64, 8

OTHER, SPACE, WORD, LETTER = range(4)  # LETTER: of a script without spaces, a word by itself
SEPARATOR = "\0"

Kinds = NDArray[np.uint8]
Places = NDArray[np.int64]


@dataclass(frozen=True)
class Match:
    """answer[start:end] stands at `place` of the joined documents."""

    start: int
    end: int
    place: int


def ground(answer: str, documents: Sequence[Document], least: int = LEAST) -> list[Grounding]:
    """Spans of at least `least` characters, of whole words on both sides, in the answer's order.

    They do not overlap; longer ones are taken first, and among equals the first document's first
    place. What lies between them holds no further span of that length.
    """
    if len(answer) < least or not documents:
        return []
    text = SEPARATOR.join(document.text for document in documents)
    sizes = [len(document.text) + 1 for document in documents]
    firsts = [0, *np.cumsum(sizes).tolist()]  # where each document starts in the joined text
    search = _Search(answer, text, firsts, least)
    found = []
    for match in _without_overlaps(answer, search.starts.tolist(), search.matches(), least):
        which = bisect_right(firsts, match.place) - 1
        name, first = documents[which].name, firsts[which]
        start = match.place - first
        end = start + match.end - match.start
        label = which if name is None else name
        found.append(Grounding(match.start, match.end, label, start, end))
    return found


class _Search:
    """Matches between an answer and the joined documents, each as long as it can be."""

    def __init__(self, answer: str, text: str, firsts: list[int], least: int) -> None:
        self.answer, self.firsts, self.least = answer, firsts, least
        self.codes, self.text_codes = code_points(answer), code_points(text)
        self.kinds, self.text_kinds = _kinds(self.codes), _kinds(self.text_codes)
        self.starts = _word_starts(self.kinds)

    def matches(self) -> list[Match]:
        """Seeds are the first `least` characters from every word on; a match is extended once,
        from its first seed. On one diagonal (place - start) matches follow each other."""
        found: list[Match] = []
        ends: dict[int, int] = {}  # diagonal -> where the match found last on it ends
        covered = 0  # everything found so far ends here or before
        starts, places = self._seeds()
        for start, candidates in zip(starts, places, strict=True):
            tried = FEW_PLACES if start < covered else MOST_PLACES
            for place in candidates[:tried].tolist():
                if ends.get(place - start, 0) > start:
                    continue
                end = start + self._agreeing(start, place)
                ends[place - start] = end
                end = self._whole_words(start, end, place)
                if end - start >= self.least:
                    found.append(Match(start, end, place))
                    covered = max(covered, end)
        return found

    def _seeds(self) -> tuple[list[int], list[Places]]:
        """Word starts of the answer, and for each the places where its seed may stand."""
        seeds = _seed_hashes(self.codes, self.starts, self.least)
        places = _word_starts(self.text_kinds)
        hashes = _seed_hashes(self.text_codes, places, self.least)
        places = places[: len(hashes)]
        # Nearly all places of a long text have none of these seeds; a small table tells most.
        table = np.zeros(1 << 16, dtype=bool)
        table[seeds >> np.uint64(48)] = True
        likely = np.flatnonzero(table[hashes >> np.uint64(48)])
        places, hashes = places[likely], hashes[likely]
        order = np.argsort(hashes, kind="stable")  # equal ones stay in the documents' order
        places, hashes = places[order], hashes[order]
        low = np.searchsorted(hashes, seeds, side="left")
        high = np.searchsorted(hashes, seeds, side="right")
        some = np.flatnonzero(low < high)
        return (
            self.starts[some].tolist(),
            [places[low[i] : min(high[i], low[i] + MOST_PLACES)] for i in some],
        )

    def _agreeing(self, start: int, place: int) -> int:
        """Characters that agree from here on, at most to the document's end."""
        stop = self.firsts[bisect_right(self.firsts, place)] - 1
        most = min(len(self.codes) - start, stop - place)
        done, step = 0, 64
        while done < most:
            step = min(step, most - done)
            ours = self.codes[start + done : start + done + step]
            differ = ours != self.text_codes[place + done : place + done + step]
            if differ.any():
                return done + int(differ.argmax())
            done, step = done + step, 2 * step
        return most

    def _whole_words(self, start: int, end: int, place: int) -> int:
        """The end moved back to where a word ends on both sides: "12" is not a part of "125"."""
        there = place + end - start
        if _inside(self.kinds, end) or _inside(self.text_kinds, there):
            while end > start and self.kinds[end - 1] == WORD:
                end -= 1
        return start + len(self.answer[start:end].rstrip())


def _kind(char: str) -> int:
    if char.isspace() or char == SEPARATOR:
        return SPACE
    if not char.isalnum() and char != "_":
        return OTHER
    # Thai and all behind it, Chinese and Japanese above all; Vietnamese (Latin) stands among them.
    return WORD if char < "\u0e00" or "\u1e00" <= char < "\u2000" else LETTER


def _kinds(codes: Codes) -> Kinds:
    """[characters]"""
    present = np.flatnonzero(np.bincount(codes))
    table = np.zeros(int(present[-1]) + 1, dtype=np.uint8)
    table[present] = [_kind(chr(code)) for code in present.tolist()]
    return table[codes]


def _word_starts(kinds: Kinds) -> Places:
    before = np.concatenate(([np.uint8(SPACE)], kinds[:-1]))
    first = (kinds == LETTER) | ((kinds == WORD) & (before != WORD))
    return np.flatnonzero(first | ((kinds != SPACE) & (before == SPACE)))


def _inside(kinds: Kinds, place: int) -> bool:
    """Whether a word goes on across this place."""
    return bool(place < len(kinds) and kinds[place - 1] == WORD and kinds[place] == WORD)


def _seed_hashes(codes: Codes, starts: Places, least: int) -> Hashes:
    """Of the `least` characters from each of the starts on, as far as there are so many."""
    half = 1 << (least.bit_length() - 1)  # two overlapping stretches of this length cover a seed
    hashes = stretch_hashes(codes, half)
    starts = starts[starts + least <= len(codes)]
    return hashes[starts] * np.uint64(3) + hashes[starts + least - half]


def _without_overlaps(
    answer: str, word_starts: list[int], matches: list[Match], least: int
) -> list[Match]:
    """Longest first; of the others what is left free, if it is still long enough."""
    heap = [(m.start - m.end, m.start, m.place) for m in matches]
    heapq.heapify(heap)
    taken: list[Match] = []  # by start
    while heap:
        minus_length, start, place = heapq.heappop(heap)
        match = Match(start, start - minus_length, place)
        free = _free_part(answer, word_starts, match, taken)
        if free == match:
            taken.insert(bisect_right(taken, start, key=_start), match)
        elif free.end - free.start >= least:
            heapq.heappush(heap, (free.start - free.end, free.start, free.place))
    return taken


def _free_part(answer: str, word_starts: list[int], match: Match, taken: list[Match]) -> Match:
    """None of those taken lies within the match: they are at least as long."""
    after = bisect_right(taken, match.start, key=_start)
    start, end = match.start, match.end
    if after:
        start = max(start, taken[after - 1].end)
    if after < len(taken):
        end = min(end, taken[after].start)
    word = bisect_left(word_starts, start)
    start = word_starts[word] if word < len(word_starts) else end
    end = max(start, start + len(answer[start:end].rstrip()))
    return Match(start, end, match.place + start - match.start)


def _start(match: Match) -> int:
    return match.start
