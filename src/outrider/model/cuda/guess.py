"""A drafter's guess at every row, made on the device, and the row moved on to it.

A row stands for one text. Its guess is the target's choice as far as the drafter's logits tell it:
the same kernel with the same noise. Then the row's fields become those of the token guessed, so
that the next pass of the drafter can start without the host.
"""

import triton
import triton.language as tl
from torch import Tensor

from outrider.model.cuda.chain import chained
from outrider.model.cuda.choice import AT_ONCE, GROUPS, _choose_part
from outrider.model.cuda.inputs import FIELDS, RowInputs
from outrider.model.cuda.workspace import Workspace

# Fields of a loop's rows after those of any pass; the kernel knows them by these numbers.
LIMIT, DEPTH, LAST = range(FIELDS, FIELDS + 3)
LOOP_FIELDS = FIELDS + 3
# LIMIT: the last place of the row's line that has a slot. DEPTH: guesses made so far. LAST: the row
# of the text's last token in the pass before the loop.


def workspace_for(rows: int, vocabulary: int) -> tuple[int, int]:
    """Elements of `Workspace.parts` and of `.weights` that guessing needs."""
    parts = rows * triton.cdiv(vocabulary, 64 * GROUPS)
    return parts, 2 * parts


def guess(
    logits: Tensor,  # [rows, vocabulary]
    inputs: RowInputs,
    work: Workspace,
    out: Tensor,  # [guesses, 2, rows] float64: the token (-1: none), and how sure it is
    sure: Tensor | None = None,  # [rows] float32: that, where the drafter knows better
) -> None:
    """Write the guess into `out` at the row's depth, and move the row on."""
    rows, vocabulary = logits.shape
    chunks = triton.cdiv(vocabulary, 64 * GROUPS)
    sums = work.weights[rows * chunks :]
    _choose_part[(rows, chunks)](
        logits, inputs.packed, logits, work.parts, work.weights, sums, rows,
        VOCABULARY=vocabulary, GROUPS=GROUPS, AT_ONCE=AT_ONCE, CUTS=False, SUMS=True, num_warps=8,
        **chained(logits.device),
    )  # fmt: skip
    _move_on[(rows,)](
        work.parts, work.weights, sums, sure if sure is not None else sums, inputs.packed,
        inputs.table, out, rows, inputs.table.stride(0), SURE=sure is not None,
        CHUNKS=chunks, PADDED=triton.next_power_of_2(chunks), num_warps=1,
    )  # fmt: skip


@triton.jit(do_not_specialize=["rows"])
def _move_on(
    part_value, part_token, part_sum, sure, packed, table, out, rows, table_stride,
    SURE: tl.constexpr, CHUNKS: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    """Fields of `packed`, in the order of inputs.py and then LIMIT and DEPTH, each [rows] int64."""
    row = tl.program_id(0)
    chunk = tl.arange(0, PADDED)
    inside = chunk < CHUNKS
    value = tl.load(part_value + row * CHUNKS + chunk, mask=inside, other=float("-inf"))
    token = tl.load(part_token + row * CHUNKS + chunk, mask=inside, other=0.0)
    sums = tl.load(part_sum + row * CHUNKS + chunk, mask=inside, other=0.0)
    best = tl.max(value, 0)
    there = tl.where(value == best, token.to(tl.int32, bitcast=True), 1 << 30)
    finite = (best > float("-inf")) & (best < float("inf"))
    guessed = tl.where(finite, tl.min(there, 0), -1).to(tl.int64)
    if SURE:
        confidence = tl.load(sure + row)
    else:  # softmax; the best one's own share of the sum is 1
        confidence = 1.0 / tl.sum(sums * tl.exp(value - tl.where(finite, best, 0.0)), 0)
    depth = tl.load(packed + 18 * rows + row)
    to = out + 2 * depth * rows + row
    tl.store(to, guessed.to(tl.float64))
    tl.store(to + rows, confidence.to(tl.float64))
    tl.store(packed + 18 * rows + row, depth + 1)
    # Token, position, slot, context, ancestors, rows of the tile, output position.
    tl.store(packed + row, tl.maximum(guessed, 0))
    position = tl.load(packed + rows + row) + 1
    tl.store(packed + rows + row, position)
    # Beyond its last slot a row is padding: it must not write where its line ends in old slots.
    goes_on = position <= tl.load(packed + 17 * rows + row)
    line = table + tl.load(packed + 3 * rows + row) * table_stride
    slot = tl.load(line + position, mask=goes_on, other=0).to(tl.int64)
    tl.store(packed + 2 * rows + row, slot)
    tl.store(packed + 4 * rows + row, tl.where(goes_on, position, 0))
    tl.store(packed + 6 * rows + row, goes_on.to(tl.int64))
    tl.store(packed + 8 * rows + row, goes_on.to(tl.int64))
    output = packed + 12 * rows + row
    tl.store(output, tl.load(output) + 1)
