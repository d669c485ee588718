"""Which slot holds which token of which sequence, on the device, kept up by small updates."""

from array import array
from collections import OrderedDict
from collections.abc import Hashable, Iterable

import numpy as np
import torch
from torch import Tensor

from outrider.model.segment import Segment

BYTES = 8  # of a slot id in a segment's context


class SlotTable:
    """One line per sequence. The host remembers what it has sent, so that a pass sends what
    differs: as a rule the slots of the last pass's tokens. How a text has changed does not matter;
    but where it has not, but for its growth, `grows` and `holds` take somebody's word for it."""

    def __init__(self, lines: int, longest: int, device: torch.device) -> None:
        self.device_table: Tensor = torch.zeros(  # [1 + lines, longest] int32; line 0 is scrap
            1 + lines, longest, dtype=torch.int32, device=device
        )
        self.longest = longest
        self._sent = [b""] * (1 + lines)  # the context of each line, as bytes: quick to compare
        self._free = list(range(lines, 0, -1))
        self._lines: OrderedDict[Hashable, int] = OrderedDict()  # least recently used first

    def lines_for(self, segments: list[Segment]) -> list[int]:
        """A line for each segment; the one it had before, where it is still there."""
        return [self._line(owner) for owner in owners_of(segments)]

    def _line(self, owner: Hashable) -> int:
        line = self._lines.pop(owner, None)
        if line is None:
            line = self._free.pop() if self._free else self._lines.popitem(last=False)[1]
        self._lines[owner] = line
        return line

    def changes(self, segments: list[Segment], lines: list[int]) -> tuple[list[int], list[int]]:
        """Places in the flat table and the slots they must hold; from now on they count as
        sent."""
        places: list[int] = []
        slots: list[int] = []
        for segment, line in zip(segments, lines, strict=True):
            context, sent = segment.context, self._sent[line]
            now = context.tobytes()
            self._sent[line] = now
            first = line * self.longest
            known = len(sent) // BYTES
            if not now.startswith(sent):
                known = min(known, len(context))
                for place in _differing(sent, now, known):
                    places.append(first + place)
                    slots.append(context[place])
            places += range(first + known, first + len(context))
            slots += context[known:]
        return places, slots

    def grows(self, owners: list[Hashable], lines: list[int], slots: list[int]) -> None:
        """The pass to come writes one more slot into the line of each of these."""
        new = array("q", slots).tobytes()
        for i, (owner, line) in enumerate(zip(owners, lines, strict=True)):
            assert self._line(owner) == line, "the line is another's by now"
            self._sent[line] += new[BYTES * i : BYTES * (i + 1)]

    def holds(self, owner: Hashable, context: array) -> None:
        """The device itself has written this text into the owner's line, and something behind it
        that is not sure yet."""
        self._sent[self._line(owner)] = context.tobytes()

    def write(self, places: list[int], slots: list[int]) -> None:
        """Many changes at once, by a copy of their own: a prompt has just been read."""
        device = self.device_table.device
        try:
            at = torch.tensor(places, dtype=torch.int64, device=device)
            values = torch.tensor(slots, dtype=torch.int32, device=device)
            self.device_table.view(-1)[at] = values
        except torch.OutOfMemoryError:  # the engine goes on, and sends them again
            for line in {place // self.longest for place in places}:
                self._sent[line] = b""
            raise


def owners_of(segments: list[Segment]) -> list[Hashable]:
    return [segment.owner or id(segment.context) for segment in segments]


def _differing(before: bytes, now: bytes, slots: int) -> Iterable[int]:
    """Where the first `slots` slots are not the same."""
    old = np.frombuffer(before, dtype=np.int64, count=slots)
    new = np.frombuffer(now, dtype=np.int64, count=slots)
    return np.flatnonzero(old != new).tolist()
