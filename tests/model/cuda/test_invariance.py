"""The probe at load notices whatever shows in the bits; with made-up passes in place of a GPU's."""

from typing import Any

import pytest
import torch

from outrider.core.tree import depths_of
from outrider.model.cuda.invariance import check_bits
from outrider.model.flight import Flight
from outrider.model.segment import Segment


class Made:
    """Passes whose "logits" are a number for the text up to each row, kept by slot like KV, and for
    what leaks into it."""

    def __init__(self, leak: str = "nothing") -> None:
        self.leak = leak
        self.memory: dict[int, int] = {0: 0}

    def launch(self, segments: list[Segment]) -> Flight:
        rows, size = [], sum(map(len, segments))
        for segment in segments:
            for row, depth in enumerate(depths_of(segment.parents)):
                parent = segment.parents[row]
                before = segment.slots[parent] if parent >= 0 else [0, *segment.context][-1]
                leaks = {
                    "nothing": 0, "rows of the pass": size, "place in the pass": len(rows),
                    "rows of the pass beyond 16": size > 16, "depth in the tree": depth,
                    "siblings": segment.parents.count(parent) > 1,
                }  # fmt: skip
                known = hash((self.memory[before], segment.tokens[row], leaks[self.leak]))
                self.memory[segment.slots[row]] = known
                rows.append([known])
        return Flight(torch.tensor(rows))


LEAKS = ["rows of the pass", "place in the pass", "rows of the pass beyond 16", "depth in the tree"]


@pytest.mark.parametrize("leak", ["nothing", *LEAKS, "siblings"])
def test_what_shows_is_noticed(leak: str) -> None:
    made: Any = Made(leak)
    if leak == "nothing":
        check_bits(made)
        assert max(made.memory) <= 128
    else:
        with pytest.raises(RuntimeError, match="its bits differ where a text is"):
            check_bits(made)
