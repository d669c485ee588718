"""Which slot holds which token of which sequence, on the device, kept up by small updates."""

from collections import OrderedDict
from collections.abc import Hashable

import numpy as np
import torch
from torch import Tensor

from outrider.model.segment import Segment


class SlotTable:
    """One line per sequence. The host keeps a copy, so that a pass sends what differs: as a rule
    the slots of the last pass's tokens. What a line held before does not matter."""

    def __init__(self, lines: int, longest: int, device: torch.device) -> None:
        self.device_table: Tensor = torch.zeros(  # [1 + lines, longest] int32; line 0 is scrap
            1 + lines, longest, dtype=torch.int32, device=device
        )
        self.longest = longest
        self._copy = np.full((1 + lines, longest), -1, dtype=np.int64)
        self._free = list(range(lines, 0, -1))
        self._lines: OrderedDict[Hashable, int] = OrderedDict()  # least recently used first

    def lines_for(self, segments: list[Segment]) -> list[int]:
        """A line for each segment; the one it had before, where it is still there."""
        return [self._line(segment.owner or id(segment.context)) for segment in segments]

    def _line(self, owner: Hashable) -> int:
        line = self._lines.pop(owner, None)
        if line is None:
            line = self._free.pop() if self._free else self._lines.popitem(last=False)[1]
        self._lines[owner] = line
        return line

    def changes(self, segments: list[Segment], lines: list[int]) -> tuple[np.ndarray, np.ndarray]:
        """Places in the flat table and the slots they must hold; the copy has them already."""
        longest = self._copy.shape[1]
        places, slots = [], []
        for segment, line in zip(segments, lines, strict=True):
            wanted = np.array(segment.context, dtype=np.int64)
            known = self._copy[line, : len(wanted)]
            differing = np.flatnonzero(known != wanted)
            if len(differing):
                known[differing] = wanted[differing]
                places.append(differing + line * longest)
                slots.append(wanted[differing])
        if not places:
            return _NOTHING, _NOTHING
        return np.concatenate(places), np.concatenate(slots)

    def write(self, places: np.ndarray, slots: np.ndarray) -> None:
        """Many changes at once, by a copy of their own: a prompt has just been read."""
        device = self.device_table.device
        at = torch.from_numpy(places).to(device)
        self.device_table.view(-1)[at] = torch.from_numpy(slots.astype(np.int32)).to(device)


_NOTHING = np.zeros(0, dtype=np.int64)
