"""What a pass over few rows reads: fixed buffers on the device, filled by one copy from the host.

A captured graph reads the same addresses at every replay, so everything that differs from pass to
pass lives here. All numbers of a pass travel as one int64 array: seventeen fields of one number per
row, then the entries of the slot table that have changed since the last pass.
"""

from array import array
from dataclasses import dataclass
from math import inf, log

import numpy as np
import torch
from torch import Tensor

from outrider.core.tree import depths_of
from outrider.model.segment import LIKELIEST, Segment

TREE_BITS = 64  # rows of one sequence in a pass at most: their ancestors are bits of one number

# The fields of `packed`, in this order; the kernels know them by these numbers.
TOKEN, POSITION, SLOT, LINE, CONTEXT, SEGMENT, ANCESTORS, TILE_FIRST, TILE_ROWS, SEGMENT_ROWS = (
    range(10)
)
TEMPERATURE, SEED, OUTPUT_POSITION, SAMPLE = range(10, 14)  # the first as the bits of a float32
TOP_K, TOP_P, LOG_MIN_P = range(14, 17)  # the last two as the bits of a float64 and of a float32
FIELDS = 17
LARGEST_K = 1 << 31  # more than any vocabulary
SPARE_UPDATES = 16  # entries of the table that may change beside one per row


def updates_of(rows: int) -> int:
    """How many changed entries of the table travel with a pass."""
    return rows + SPARE_UPDATES


@dataclass(eq=False)
class RowInputs:
    """The inputs of passes over `rows` rows."""

    rows: int
    single: bool  # no sequence has more than one row
    packed: Tensor  # [FIELDS * rows + 2 * updates] int64, on the device
    table: Tensor  # [lines, longest text] int32: slot of each token of each sequence

    @classmethod
    def of(cls, rows: int, single: bool, table: Tensor) -> "RowInputs":
        size = FIELDS * rows + 2 * updates_of(rows)
        packed = torch.zeros(size, dtype=torch.int64, device=table.device)
        return cls(rows, single, packed, table)

    def field(self, index: int) -> Tensor:
        """[rows] int64, a view."""
        return self.packed[index * self.rows : (index + 1) * self.rows]


def fill(
    packed: np.ndarray, rows: int, segments: list[Segment], lines: list[int], tile: int
) -> None:
    """Write the fields of a pass into `packed` [at least FIELDS * rows]; what is left over of the
    rows is padding. A tile is up to `tile` rows of one sequence, which the attention takes at
    once."""
    # The device waits meanwhile, and each call of numpy takes microseconds: so there is one.
    numbers = array("q", bytes(8 * FIELDS * rows))
    # Padding rows, all zeros, write the scrap slot, see nothing, and are in no tile.
    single = all(len(segment.tokens) == 1 for segment in segments)
    columns = _single(segments, lines) if single else _trees(segments, lines, tile)
    for field, column in columns.items():
        numbers[field * rows : field * rows + len(column)] = array("q", column)
    packed[: FIELDS * rows] = numbers
    if any(segment.choosing and segment.choosing.temperature for segment in segments):
        _fill_choosing(packed[: FIELDS * rows].reshape(FIELDS, rows), segments)


def fill_next(
    packed: np.ndarray, rows: int, before: np.ndarray, kept: list[int], slots: list[int]
) -> None:
    """The same for the pass after one in which no sequence had more than one row: it goes on with
    those of its rows that are `kept`, by the tokens that they choose, in these slots. before
    [FIELDS, rows of that pass]."""
    # No object is made for each sequence: with hundreds of them that takes longer than the pass.
    count = len(kept)
    fields = packed[: FIELDS * rows].reshape(FIELDS, rows)
    fields[:, count:] = 0
    now = fields[:, :count]
    now[:] = before[:, kept]
    now[TOKEN] = -1 - np.array(kept)
    now[POSITION] += 1
    now[CONTEXT] += 1
    now[SLOT] = slots
    now[SEGMENT] = now[TILE_FIRST] = np.arange(count)
    now[OUTPUT_POSITION] += now[TEMPERATURE] != 0


def _single(segments: list[Segment], lines: list[int]) -> dict[int, list[int]]:
    """The fields that are not about choices, where each sequence has one row."""
    contexts = [len(segment.context) for segment in segments]
    order, ones = [*range(len(segments))], [1] * len(segments)
    return {
        TOKEN: [segment.tokens[0] for segment in segments],
        POSITION: contexts,
        SLOT: [segment.slots[0] for segment in segments],
        LINE: lines,
        CONTEXT: contexts,
        SEGMENT: order,
        ANCESTORS: ones,
        TILE_FIRST: order,
        TILE_ROWS: ones,
        SEGMENT_ROWS: ones,
    }


def _trees(segments: list[Segment], lines: list[int], tile: int) -> dict[int, list[int]]:
    """The same where some have more: a number for each row, or for each tile."""
    columns: dict[int, list[int]] = {field: [] for field in range(SEGMENT_ROWS + 1)}
    first = 0
    for segment, line in zip(segments, lines, strict=True):
        n, context = len(segment.tokens), len(segment.context)
        columns[TOKEN] += segment.tokens
        columns[POSITION] += [context - 1 + depth for depth in depths_of(segment.parents)]
        columns[SLOT] += segment.slots
        columns[LINE] += [line] * n
        columns[CONTEXT] += [context] * n
        columns[SEGMENT] += [first] * n
        columns[ANCESTORS] += ancestor_bits(segment.parents)
        columns[TILE_FIRST] += range(first, first + n, tile)
        columns[TILE_ROWS] += [min(tile, n - start) for start in range(0, n, tile)]
        columns[SEGMENT_ROWS] += [n] * n
        first += n
    return columns


def _fill_choosing(fields: np.ndarray, segments: list[Segment]) -> None:
    """fields [FIELDS, rows]; nothing but a temperature of 0 matters where that is asked for."""
    asked = [segment.choosing or LIKELIEST for segment in segments]
    lengths = [len(segment) for segment in segments]
    numbers = np.empty((7, len(asked)), dtype=np.int64)  # a column for each segment
    numbers[0] = np.array([a.temperature for a in asked], dtype=np.float32).view(np.int32)
    numbers[1] = np.array([a.seed for a in asked], dtype=np.uint64).view(np.int64)
    numbers[2] = [a.position for a in asked]
    numbers[3] = [a.sample for a in asked]
    numbers[4] = [min(max(a.top_k, 0), LARGEST_K) for a in asked]
    numbers[5] = np.array([a.top_p for a in asked], dtype=np.float64).view(np.int64)
    least = [log(a.min_p) if a.min_p else -inf for a in asked]
    numbers[6] = np.array(least, dtype=np.float32).view(np.int32)
    fields[TEMPERATURE:FIELDS, : sum(lengths)] = np.repeat(numbers, lengths, axis=1)
    first = 0
    for segment, n in zip(segments, lengths, strict=True):
        if n > 1 and segment.logits_from < n:
            depths = np.array(depths_of(segment.parents))
            after = np.maximum(0, depths - depths[segment.logits_from])
            fields[OUTPUT_POSITION, first : first + n] += after
        first += n


def ancestor_bits(parents: list[int]) -> list[int]:
    """Per row the rows of its segment that it sees, itself included: bit j stands for row j. The
    last one is the sign."""
    bits: list[int] = []
    for row, parent in enumerate(parents):
        own = 1 << row if row < TREE_BITS - 1 else -1 << row
        bits.append(own | bits[parent] if parent >= 0 else own)
    return bits
