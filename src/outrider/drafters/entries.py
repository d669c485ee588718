"""What a draft model has in the target's slots, and how far that is still true."""

from array import array
from typing import NamedTuple

import numpy as np

from outrider.core.request import Request
from outrider.core.verdict import Span
from outrider.model.kv import KVCache


class _Step(NamedTuple):
    """What one request's nodes were when their entries were written."""

    length: int  # of the text that the tree hung below
    paths: dict[int, list[int]]  # slot -> drafted tokens from the root's child to this one


class Entries:
    """Per slot the generation in which our entry was written. It is valid exactly while the slot
    has not been handed out again, so rejections, pauses, preemption and prefix hits need no code.

    The slots of a step's nodes are the exception: the tree that is checked may be another than the
    one drafted (cut, merged with another's, numbered differently), and then a slot is kept for a
    node that is not the one we wrote there. `settle` finds these once the text is known.
    """

    def __init__(self, kv: KVCache) -> None:
        self._kv = kv
        self._written = np.zeros(kv.total + 1, dtype=np.int64)  # 0 (never handed out): no entry
        self._steps: dict[Request, _Step] = {}

    def begin(self, request: Request) -> None:
        """A new tree is drafted for the request; one that was never checked is forgotten."""
        if request in self._steps:
            self._written[list(self._steps[request].paths)] = 0
        self._steps[request] = _Step(len(request.tokens), {})

    def write(self, slots: array) -> None:
        """Entries have been computed; what the slots held before is gone."""
        written = np.array(slots, dtype=np.int64)
        self._written[written] = self._kv.generation[written]

    def note(self, request: Request, slot: int, path: list[int]) -> None:
        """The entry in this slot is that of a node, not of the text."""
        self._steps[request].paths[slot] = path

    def settle(self, spans: list[Span]) -> None:
        """Text was committed: forget entries of nodes that are not what became of their slots."""
        for request in {span.request for span in spans}:
            step = self._steps.pop(request, None)
            if step is None:
                continue
            for end in range(step.length, len(request.slots)):
                slot = request.slots[end]
                path = step.paths.get(slot)
                if path is not None and path != request.tokens[step.length : end + 1]:
                    self._written[slot] = 0

    def release(self, request: Request) -> None:
        self._steps.pop(request, None)

    def valid(self, request: Request, first: int = 0) -> int:
        """How much of the text's start has entries; at most all but the last token. Those before
        `first` need none."""
        slots = np.frombuffer(request.slots, dtype=np.int64)[first:]
        stale = np.flatnonzero(self._written[slots] != self._kv.generation[slots])
        return first + (int(stale[0]) if len(stale) else len(slots))
