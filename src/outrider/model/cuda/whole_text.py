"""A text that is read from its start, in fixed shapes, so that a graph can hold the pass.

Row i stands for place i of the text. Attention is then plainly causal, whatever the text's length:
rows beyond its end come after all others. Rows of what is cached already are there only for that
order. Both kinds are padding, which writes the scrap slot; the keys of cached places are read from
their own slots.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from outrider.core.tree import is_chain
from outrider.model.cuda.capture import Capture
from outrider.model.cuda.inputs import ANCESTORS, TREE_BITS, RowInputs
from outrider.model.segment import Segment

SIZES = (96, 128, 192, 256, 384, 512, 768, 1024)  # rows that there are graphs for
WIDTHS = 32  # of the hidden size that a row takes at most: gate and up alone may be twelve
_SENT = 3  # fields of `inputs` that differ from text to text: token, position and slot


def size_for(segment: Segment) -> int | None:
    """Rows of the graph that can read these: a chain that is too long for a pass over few rows, and
    of which no more is cached than is new. None: no graph can."""
    before, new = len(segment.context), len(segment)
    if new <= TREE_BITS or before > new or before + new > SIZES[-1]:
        return None
    if not is_chain(segment.parents):
        return None
    return next(size for size in SIZES if size >= before + new)


def sizes_for(longest: int) -> list[int]:
    """Of texts of up to so many tokens; the largest first: what is captured then fits into the
    memory of the first."""
    return list(reversed(SIZES[: 1 + sum(size < longest for size in SIZES)]))


class WholeText:
    """What such a pass reads on the device, and `more` numbers of the caller's."""

    def __init__(self, size: int, more: int, table: Tensor, cuda: Capture) -> None:
        self.size, self._cuda = size, cuda
        self.inputs = RowInputs.of(size, False, table)
        self.inputs.field(ANCESTORS).fill_(1)  # also of padding: what it writes must be finite
        self._rest = torch.zeros(size + more, dtype=torch.int64, device=table.device)
        self.keys, self.more = self._rest[:size], self._rest[size:]  # slots of all places; [more]
        self._here = cuda.host_memory((_SENT + 1) * size + more, torch.int64)
        self._copied: Callable[[], None] = lambda: None  # waits until it may be written again

    def send(self, segment: Segment) -> None:
        """Together with what was written to `more_here`."""
        self._numbers(segment, self._here.numpy()[: (_SENT + 1) * self.size])
        sent = _SENT * self.size
        self.inputs.packed[:sent].copy_(self._here[:sent], non_blocking=True)
        self._rest.copy_(self._here[sent:], non_blocking=True)
        self._copied = self._cuda.mark()

    @property
    def more_here(self) -> np.ndarray:
        """[more] int64, to be filled for the next text."""
        self._copied()
        more: np.ndarray = self._here[(_SENT + 1) * self.size :].numpy()
        return more

    def _numbers(self, segment: Segment, here: np.ndarray) -> None:
        """here [4 * size] int64: token, position and slot of every row, slot of every key."""
        before, end = len(segment.context), len(segment.context) + len(segment)
        here[:] = 0
        tokens, positions, slots, keys = here.reshape(_SENT + 1, self.size)
        tokens[before:end] = segment.tokens
        positions[:] = np.minimum(np.arange(self.size), end - 1)  # rotations end where texts do
        slots[before:end] = keys[before:end] = segment.slots
        keys[:before] = segment.context
