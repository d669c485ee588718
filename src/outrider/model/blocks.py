"""Cutting up the rows of many sequences into passes of few rows, one after the other.

A piece of a segment is a segment of its own: what lies before it has become context. That needs no
more than an order in which parents come first, and two pieces of one segment never in one pass.
"""

from array import array
from itertools import accumulate
from typing import NamedTuple

from outrider.core.tree import depths_of
from outrider.model.segment import Segment


class Piece(NamedTuple):
    segment: Segment
    source: int  # index of the segment that it was cut from
    rows: list[int]  # of that segment, ascending


def cut_into_passes(segments: list[Segment], most: int) -> list[list[Piece]]:
    """Passes of at most `most` rows each. Rows with logits must be the first of them and rows below
    it, as they are in an engine, or a chain."""
    cuts = [_Cut(segment, source, most) for source, segment in enumerate(segments)]
    passes = []
    while cuts:
        room, pieces = most, []
        for cut in cuts:
            piece = cut.take(room)
            if piece is not None:
                pieces.append(piece)
                room -= len(piece.rows)
            if room == 0:
                break
        passes.append(pieces)
        cuts = [cut for cut in cuts if cut.left]
    return passes


class _Cut:
    """What is left of a segment: groups of rows, each below a context of its own. In a group the
    parent of a row is another of the group, or the last token of the context."""

    def __init__(self, segment: Segment, source: int, most: int) -> None:
        self._segment, self._source, self._most = segment, source, most
        self._depths = depths_of(segment.parents)
        self.left = [(segment.context, list(range(len(segment))))] if len(segment) else []

    def take(self, room: int) -> Piece | None:
        """The next piece, of at most `room` rows; None: there is more room in the next pass."""
        context, rows = self.left.pop()
        if len(rows) <= room:
            return self._piece(context, rows)
        trunk = self._trunk(rows)
        if trunk == len(rows) or (trunk and len(rows) > self._most):
            first, rest = rows[: min(room, trunk)], rows[min(room, trunk) :]
            self.left.append((context + self._slots(first), rest))
            return self._piece(context, first)
        if len(rows) > self._most and room == self._most:
            return self._branches(context, rows)
        self.left.append((context, rows))
        return None

    def _trunk(self, rows: list[int]) -> int:
        """How many rows, from the first on, have all the rows behind them below them."""
        parents = [self._segment.parents[row] for row in rows]
        lowest = list(accumulate(reversed(parents), min))[::-1]  # parent from each row on
        trunk = 0
        while trunk + 1 < len(rows) and lowest[trunk + 1] >= rows[trunk]:
            trunk += 1
        return len(rows) if trunk + 1 == len(rows) else trunk

    def _slots(self, rows: list[int]) -> array:
        return array("q", [self._segment.slots[row] for row in rows])

    def _branches(self, context: array, rows: list[int]) -> Piece:
        """Of a tree too large for a pass: whole branches, as many as fit; or the first row of one
        that does not fit either."""
        branch: dict[int, int] = {}  # row -> the first row of its branch
        for row in rows:
            branch[row] = branch.get(self._segment.parents[row], row)
        taken: set[int] = set()
        room = self._most
        for top in sorted(set(branch.values())):
            size = sum(1 for row in rows if branch[row] == top)
            if size <= room:
                taken.add(top)
                room -= size
        if taken:
            self.left.append((context, [row for row in rows if branch[row] not in taken]))
            return self._piece(context, [row for row in rows if branch[row] in taken])
        top = rows[0]
        others = [row for row in rows if branch[row] != top]
        if others:
            self.left.append((context, others))
        below = [row for row in rows if branch[row] == top][1:]
        self.left.append((context + self._slots([top]), below))
        return self._piece(context, [top])

    def _piece(self, context: array, rows: list[int]) -> Piece:
        whole = self._segment
        index = {row: i for i, row in enumerate(rows)}
        logits_from = sum(row < whole.logits_from for row in rows)
        choosing = whole.choosing
        if choosing is not None and logits_from < len(rows):
            # Its position is that of the whole segment's first row with logits.
            deeper = self._depths[rows[logits_from]] - self._depths[whole.logits_from]
            choosing = choosing._replace(position=choosing.position + deeper)
        segment = Segment(
            [whole.tokens[row] for row in rows],
            [index.get(whole.parents[row], -1) for row in rows],
            self._slots(rows),
            context,
            logits_from,
            owner=whole.owner or id(whole.context),
            choosing=choosing,
        )
        return Piece(segment, self._source, rows)
