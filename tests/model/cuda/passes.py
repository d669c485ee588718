"""Passes over trees of several sequences, for the kernels: random, and the same for all tests."""

import random
from array import array

import numpy as np
import torch
from torch import Tensor

from outrider.model.cuda.inputs import FIELDS, RowInputs, fill, updates_of
from outrider.model.cuda.slot_table import SlotTable
from outrider.model.cuda.tree_attention import rows_per_tile
from outrider.model.segment import Choosing, Segment

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")  # cpu: Triton's interpreter
LONGEST = 512


def random_tree(nodes: int, rng: random.Random) -> list[int]:
    return [rng.randrange(-1, node) for node in range(nodes)]


def make_segments(shapes: list[tuple[int, int]], seed: int) -> tuple[list[Segment], int]:
    """For (context, nodes) each: a root with a tree below it; and how many slots there are."""
    rng = random.Random(seed)
    total = sum(context + 1 + nodes for context, nodes in shapes)
    free = list(range(1, total + 1))
    rng.shuffle(free)
    segments = []
    for context, nodes in shapes:
        before = array("q", [free.pop() for _ in range(context)])
        parents = [-1, *(parent + 1 for parent in random_tree(nodes, rng))]
        tokens = [rng.randrange(300) for _ in parents]
        slots = array("q", [free.pop() for _ in parents])
        segments.append(Segment(tokens, parents, slots, before, logits_from=0))
    return segments, total + 1


def make_inputs(segments: list[Segment], rows: int, group: int) -> RowInputs:
    """As `Graphs.launch` makes them, with the table written at once."""
    table = SlotTable(lines=len(segments), longest=LONGEST, device=DEVICE)
    lines = table.lines_for(segments)
    table.write(*table.changes(segments, lines))
    single = all(len(segment) == 1 for segment in segments)
    inputs = RowInputs.of(rows, single, table.device_table)
    packed = np.zeros(FIELDS * rows + 2 * updates_of(rows), dtype=np.int64)
    fill(packed, rows, segments, lines, rows_per_tile(rows, group, single))
    inputs.packed.copy_(torch.from_numpy(packed))
    return inputs


def choosing_inputs(asked: list[Choosing]) -> RowInputs:
    """Of a pass over one row for each, which only chooses."""
    segments = [Segment([0], [-1], array("q", [0]), array("q"), 0, choosing=each) for each in asked]
    return make_inputs(segments, rows=len(asked), group=1)


def randn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(DEVICE, dtype)
