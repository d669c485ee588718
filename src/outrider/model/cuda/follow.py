"""From one checked draft to the next without the host: what held, on the device.

A pass has checked chains, one below each text. `settle` finds how many guesses of each have held,
writes their slots into the texts' lines, and fills the fields of a draft loop that reads on from
there. Once the loop has made new guesses, `aim` turns the inputs of the pass into those of the next
one, which has the same shape: as many rows for every text, each in a new slot.

What the host sends for that is `numbers`, int64: for each text its first row in the pass, its rows
(none: there is no such text) and its first tile in the loop's reading; then a slot for every row of
the next pass.
"""

import triton
import triton.language as tl
from torch import Tensor

from outrider.model.cuda.inputs import RowInputs

MOST_ROWS = 64  # of a text


def numbers_of(texts: int, rows: int) -> int:
    """How many numbers the host sends."""
    return 3 * texts + rows


def settle(
    numbers: Tensor,  # [numbers_of(texts, rows)]
    checked: RowInputs,  # of the pass
    choices: Tensor,  # [rows] int64: the target's
    texts: RowInputs,  # fields of guess.py; all zero before
    reading: RowInputs,  # and one field more: the slot whose feature a row reads; all zero before
    first: int,  # of every text, tokens that the drafter does not see
    tile: int,  # rows of one text that the reading's attention takes at once
) -> None:
    _settle[(texts.rows,)](
        numbers, checked.packed, choices, checked.table, texts.packed, reading.packed,
        texts.rows, checked.rows, checked.table.stride(0), FIRST=first, TILE=tile,
        MOST_ROWS=MOST_ROWS, num_warps=1,
    )  # fmt: skip


def aim(
    numbers: Tensor,  # [numbers_of(texts, rows)]
    checked: RowInputs,  # of the pass; becomes that of the next
    choices: Tensor,  # [rows] int64
    texts: RowInputs,  # as `settle` and the loop have left it
    found: Tensor,  # [guesses, 2, texts] float64, as guess.py writes it
) -> None:
    _aim[(texts.rows,)](
        numbers, checked.packed, choices, texts.packed, found, texts.rows, checked.rows,
        MOST_ROWS=MOST_ROWS, num_warps=1,
    )  # fmt: skip


@triton.jit(do_not_specialize=["texts", "rows"])
def _settle(
    numbers, packed, choices, table, text_fields, read_fields, texts, rows, table_stride,
    FIRST: tl.constexpr, TILE: tl.constexpr, MOST_ROWS: tl.constexpr,
):  # fmt: skip
    """One text. Fields by the numbers of inputs.py and guess.py."""
    text = tl.program_id(0)
    first, own_rows = tl.load(numbers + text), tl.load(numbers + texts + text)
    if own_rows == 0:
        return
    j = tl.arange(0, MOST_ROWS)
    inside = j < own_rows
    below = j + 1 < own_rows
    choice = tl.load(choices + first + j, mask=inside, other=-1)
    guessed = tl.load(packed + first + 1 + j, mask=below, other=-2)
    held = tl.min(tl.where(below & (choice == guessed), MOST_ROWS, j), 0)
    kept = j <= held
    slot = tl.load(packed + 2 * rows + first + j, mask=inside, other=0)
    child_slot = tl.load(packed + 2 * rows + first + 1 + j, mask=below, other=0)
    new_slot = tl.load(numbers + 3 * texts + first + j, mask=inside, other=0)
    root_slot = tl.load(numbers + 3 * texts + first)
    line = tl.load(packed + 3 * rows + first)
    context = tl.load(packed + 4 * rows + first)
    # The text goes on in the slots of what held, and then in those of the next pass.
    at = table + line * table_stride + context
    tl.store(at + j, slot.to(tl.int32), mask=kept)
    tl.store(at + held + 1 + j, new_slot.to(tl.int32), mask=inside)

    # What the drafter reads: each token that is new, with the feature of the one before it.
    to = read_fields + first + j
    tl.store(to, tl.maximum(choice, 0), mask=kept)
    tl.store(to + rows, context + 1 - FIRST + j, mask=kept)
    tl.store(to + 2 * rows, tl.where(j < held, child_slot, root_slot), mask=kept)
    tl.store(to + 3 * rows, line + 0 * j, mask=kept)
    tl.store(to + 4 * rows, context + 1 - FIRST + 0 * j, mask=kept)
    tl.store(to + 5 * rows, first + 0 * j, mask=kept)
    one = tl.full([MOST_ROWS], 1, tl.int64)
    tl.store(to + 6 * rows, (one << (j + 1)) - 1, mask=kept)
    tl.store(to + 9 * rows, held + 1 + 0 * one, mask=kept)
    tl.store(to + 17 * rows, slot, mask=kept)
    tile = read_fields + tl.load(numbers + 2 * texts + text) + j
    filled = j * TILE < held + 1
    tl.store(tile + 7 * rows, first + j * TILE, mask=filled)
    tl.store(tile + 8 * rows, tl.minimum(held + 1 - j * TILE, TILE) + 0 * one, mask=filled)

    # Where its first guess hangs: below the target's own token.
    to = text_fields + text
    last = tl.load(choices + first + held)
    tl.store(to, tl.maximum(last, 0))
    tl.store(to + texts, context + held + 1 - FIRST)
    tl.store(to + 3 * texts, line)
    tl.store(to + 4 * texts, context + held + 1 - FIRST)
    tl.store(to + 5 * texts, text.to(tl.int64))
    tl.store(to + 7 * texts, text.to(tl.int64))
    for field in tl.static_range(8, 10):
        tl.store(to + field * texts, 1)
    tl.store(to + 6 * texts, 1)
    for field in tl.static_range(10, 14):  # how the target chooses
        tl.store(to + field * texts, tl.load(packed + field * rows + first))
    tl.store(to + 12 * texts, tl.load(packed + 12 * rows + first) + held + 1)
    tl.store(to + 17 * texts, context + held + own_rows - 1 - FIRST)
    tl.store(to + 19 * texts, first + held)


@triton.jit(do_not_specialize=["texts", "rows"])
def _aim(numbers, packed, choices, text_fields, guesses, texts, rows, MOST_ROWS: tl.constexpr):
    text = tl.program_id(0)
    first, own_rows = tl.load(numbers + text), tl.load(numbers + texts + text)
    if own_rows == 0:
        return
    j = tl.arange(0, MOST_ROWS)
    inside = j < own_rows
    held = tl.load(text_fields + 19 * texts + text) - first
    root = tl.load(choices + first + held)
    guess = guesses + 2 * (j - 1) * texts + text
    token = tl.load(guess, mask=inside & (j > 0), other=0.0).to(tl.int64)
    context = tl.load(packed + 4 * rows + first) + held + 1
    output = tl.load(packed + 12 * rows + first + j, mask=inside, other=0) + held + 1
    to = packed + first + j
    tl.store(to, tl.maximum(tl.where(j == 0, root, token), 0), mask=inside)
    tl.store(to + rows, context + j, mask=inside)
    slot = tl.load(numbers + 3 * texts + first + j, mask=inside, other=0)
    tl.store(to + 2 * rows, slot, mask=inside)
    tl.store(to + 4 * rows, context + 0 * j, mask=inside)
    tl.store(to + 12 * rows, output, mask=inside)
