"""top-k, top-p and min-p on the device: per row the score below which no token is drawn.

The rules are those of sampling/truncate.py, and nothing is sorted. A first kernel counts the row's
tokens by steps of their scores: that tells between which two steps the cut lies. A second one lists
the tokens between these, a few hundred of a vocabulary, and its last program halves their range
until one score is left. Rows that ask for nothing leave both at once.

Probabilities are whole multiples of 2 ** -44 of the likeliest token's, so that their sums do not
depend on the order in which programs arrive. A cut is exactly that of the rules, where no sum of
probabilities comes closer to top-p than 1e-8; the host's float32 is sure to about 1e-6. Only a cut
more than 31 below the highest score is not looked for: no noise can make such a token win.
"""

import math
from dataclasses import dataclass, fields

import torch
import triton
from torch import Tensor

from outrider.model.cuda.chain import chained
from outrider.model.cuda.cut_bounds import survey
from outrider.model.cuda.cut_search import settle
from outrider.model.cuda.inputs import RowInputs

CHUNK = 4096  # tokens that one program looks at
STEPS = 8  # per unit of score
BINS = 256  # steps that are told apart, below the highest score; the last holds all the others
CAPACITY = 16384  # tokens of a row that can be listed; where there are more, the row itself is read
BLOCK = 1024  # tokens that are listed, and searched, together


@dataclass(eq=False)
class CutMemory:
    """Between the two kernels and their programs; they are used for one pass at a time."""

    counts: Tensor  # [rows, chunks, BINS] int32: tokens by steps below the chunk's highest score
    tops: Tensor  # [rows, chunks] float32: the highest scores
    masses: Tensor  # [rows, chunks] float64: sums of exp(score - highest)
    bounds: Tensor  # [rows, 4] float64: the cut is at least, and below; highest score; mass
    scores: Tensor  # [rows, CAPACITY] float32: those between the bounds, in any order
    weights: Tensor  # [rows, CAPACITY] int64: their probabilities, in proportion
    found: Tensor  # [rows] int32: how many there are; zero between passes
    above: Tensor  # [rows] int64: the weight of all above the bounds; zero between passes
    arrived: Tensor  # [rows] int32; zero between kernels

    @classmethod
    def of(cls, rows: int, vocabulary: int, device: torch.device) -> "CutMemory":
        def empty(*shape: int, dtype: torch.dtype) -> Tensor:
            return torch.zeros(rows, *shape, dtype=dtype, device=device)

        chunks = triton.cdiv(vocabulary, CHUNK)
        return cls(
            counts=empty(chunks, BINS, dtype=torch.int32),
            tops=empty(chunks, dtype=torch.float32),
            masses=empty(chunks, dtype=torch.float64),
            bounds=empty(4, dtype=torch.float64),
            scores=empty(CAPACITY, dtype=torch.float32),
            weights=empty(CAPACITY, dtype=torch.int64),
            found=empty(dtype=torch.int32),
            above=empty(dtype=torch.int64),
            arrived=empty(dtype=torch.int32),
        )

    @property
    def nbytes(self) -> int:
        return sum(getattr(self, field.name).nbytes for field in fields(self))


def find_cuts(logits: Tensor, inputs: RowInputs, memory: CutMemory) -> Tensor:
    """logits [rows, vocabulary] -> [rows] float32: a token is drawn only if its score, the logit
    divided by the temperature, is not below this; -inf where nothing is left out."""
    rows, vocabulary = logits.shape
    chunks = triton.cdiv(vocabulary, CHUNK)
    cuts = torch.empty(rows, dtype=torch.float32, device=logits.device)
    shape = {"VOCABULARY": vocabulary, "CHUNK": CHUNK, "CHUNKS": chunks, "num_warps": 8}
    shape |= chained(logits.device)
    survey[(rows, chunks)](
        logits, inputs.packed, cuts, memory.counts, memory.tops, memory.masses, memory.bounds,
        memory.arrived, rows, PADDED=triton.next_power_of_2(chunks), BINS=BINS, STEPS=STEPS,
        **shape,
    )  # fmt: skip
    settle[(rows, chunks)](
        logits, inputs.packed, cuts, memory.bounds, memory.scores, memory.weights, memory.found,
        memory.above, memory.arrived, rows, CAPACITY=CAPACITY, BLOCK=BLOCK, ONE=unit(vocabulary),
        **shape,
    )  # fmt: skip
    return cuts


def unit(vocabulary: int) -> float:
    """The likeliest token's weight: as much as lets an int64 hold the sum over all tokens."""
    return 2.0 ** (62 - max(18, math.ceil(math.log2(vocabulary))))
