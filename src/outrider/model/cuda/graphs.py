"""Passes over few rows as CUDA graphs: one launch instead of hundreds.

A graph belongs to a number of rows and replays whatever they are: one row of each of eight
requests, or a tree of eight nodes. Graphs are captured when first needed, and share their memory.

Graphs whose bits do not depend on the batch take up to 64 rows: our own products go no further.
"""

import logging
from collections.abc import Callable, Hashable
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from outrider.model.attention import LayerCall
from outrider.model.cuda.capture import Capture, capturing
from outrider.model.cuda.choice import choose
from outrider.model.cuda.choice import workspace_for as choice_parts
from outrider.model.cuda.fused import FusedModel
from outrider.model.cuda.inputs import (
    CONTEXT,
    FIELDS,
    LINE,
    SLOT,
    TREE_BITS,
    RowInputs,
    fill,
    fill_next,
    updates_of,
)
from outrider.model.cuda.invariant_attention import workspace_for as path_parts
from outrider.model.cuda.linear import MOST_ROWS
from outrider.model.cuda.linear import workspace_for as product_parts
from outrider.model.cuda.long_pass import Choose, LongPass
from outrider.model.cuda.prompts import Prompts
from outrider.model.cuda.slot_table import SlotTable, owners_of
from outrider.model.cuda.tree_attention import rows_per_tile, workspace_for
from outrider.model.cuda.truncation import CutMemory, find_cuts
from outrider.model.cuda.whole_text import SIZES, WIDTHS
from outrider.model.cuda.workspace import Workspace
from outrider.model.flight import Flight, GoOn
from outrider.model.segment import Segment, wanted_rows

log = logging.getLogger(__name__)

BUCKETS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
FEWEST_LINES = 8  # of the slot table: what is tried out at load are several texts at once
STAGES = 2  # host buffers in turn: the next pass is prepared while one is under way


class Forward(Protocol):
    """A model over the rows of a pass: logits [rows, vocabulary]."""

    @property
    def most_parts(self) -> int: ...
    def __call__(self, inputs: RowInputs, previous: Tensor, work: Workspace) -> Tensor: ...


class Graph:
    """A captured pass, with the buffers that it reads and writes."""

    def __init__(
        self,
        forward: Forward,
        inputs: RowInputs,
        previous: Tensor,
        work: Workspace,
        choose: Choose,
        pool: Any,
    ) -> None:
        self.inputs = inputs
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # compiles the kernels, which a capture cannot
            choose(forward(inputs, previous, work), inputs)
        torch.cuda.current_stream().wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        with capturing(self._graph, pool):
            self.logits = forward(inputs, previous, work)  # [rows, vocabulary]
            self.choices = choose(self.logits, inputs)  # [rows] int64
            previous[: inputs.rows].copy_(self.choices)

    def replay(self) -> None:
        self._graph.replay()


class Graphs:
    def __init__(
        self,
        forward: Forward,
        heads: int,
        kv_heads: int,
        value_size: int,
        vocabulary: int,
        lines: int,
        longest: int,
        device: torch.device,
    ) -> None:
        self._forward = forward
        self.invariant = isinstance(forward, FusedModel) and forward.invariant
        self.most_rows = buckets(self.invariant)[-1]
        self._shape = (heads, kv_heads, value_size)
        self.table = SlotTable(max(lines, FEWEST_LINES), longest, device)
        self.device = device
        most = self.most_rows
        self.previous = torch.zeros(most, dtype=torch.int64, device=device)
        sizes = _workspace_sizes(self._shape, vocabulary, forward.most_parts, self.invariant)
        self._work = Workspace.of(*sizes, device)
        self._cut_memory = CutMemory.of(most, vocabulary, device)
        self._graphs: dict[tuple[int, bool], Graph] = {}
        self._pool = torch.cuda.graph_pool_handle()
        size = FIELDS * most + 2 * updates_of(most)
        self._staging = [torch.zeros(size, dtype=torch.int64).pin_memory() for _ in range(STAGES)]
        self._stages: dict[tuple[int, int], tuple[Tensor, np.ndarray]] = {}
        self._read = [torch.cuda.Event() for _ in range(STAGES)]  # the copy out of it is done
        self._chosen = [torch.zeros(most, dtype=torch.int64).pin_memory() for _ in range(STAGES)]
        self._landed = [torch.cuda.Event() for _ in range(STAGES)]
        self._launches = 0
        self.prompts: Prompts | None = None
        self.together: LongPass | None = None

    def _choose(self, logits: Tensor, inputs: RowInputs) -> Tensor:
        """logits [rows, vocabulary] -> [rows] int64."""
        return choose(logits, find_cuts(logits, inputs, self._cut_memory), inputs, self._work)

    @property
    def fused(self) -> bool:
        return isinstance(self._forward, FusedModel)

    @property
    def captured(self) -> int:
        """Graphs of passes over few rows."""
        return len(self._graphs)

    def fits(self, segments: list[Segment]) -> bool:
        """Whether a graph can do this pass: few rows, below texts that the table has room for."""
        rows, most = [len(segment.tokens) for segment in segments], self.table.longest
        return (
            sum(rows) <= self.most_rows
            and max(rows) <= TREE_BITS
            and all(len(segment.context) <= most for segment in segments)
        )

    def capture_prompts(self) -> None:
        """From now on prompts are graphs as well, where the layers are such that they can be."""
        model = self._forward
        if isinstance(model, FusedModel) and model.plainly_causal and not model.invariant:
            table, cuda = self.table.device_table, Capture(self.device)
            self.prompts = Prompts(model, table, self._work, self._choose, cuda)

    def read_together(self) -> None:
        """From now on passes over many rows go by the fused layers as well, where these may add up
        as is fastest."""
        model, table = self._forward, self.table.device_table
        if isinstance(model, FusedModel) and not model.invariant:
            choices, cuda = (self._choose, self.most_rows), Capture(self.device)
            self.together = LongPass(model, self._group, table, self._work, *choices, cuda)

    def prompts_among(self, segments: list[Segment]) -> list[int]:
        """Which of these to `read` apart, so that the rest is a pass over few rows, if anything;
        none where that cannot be."""
        found = self.prompts.among(segments) if self.prompts else []
        apart = set(found)
        others = [segment for i, segment in enumerate(segments) if i not in apart]
        return found if not others or self.fits(others) else []

    def read(self, prompt: Segment) -> Flight:
        """Start the pass over one of those."""
        assert self.prompts is not None
        with torch.cuda.device(self.device):
            return self.prompts(prompt)

    def fits_in_blocks(self, segments: list[Segment]) -> bool:
        """Whether several passes can do what is too much for one (blocks.py), to the same bits."""
        return self.invariant and all(
            len(s.context) + len(s) <= self.table.longest for s in segments
        )

    def long_pass(self, segments: list[Segment]) -> Flight | None:
        """Start a pass that is too large for a graph; None where it must go by the module."""
        if self.together is None or not self.together.takes(segments):
            return None
        with torch.cuda.device(self.device):  # Triton launches on the current one
            return self.together(segments)

    def launch(self, segments: list[Segment]) -> Flight:
        """Start the pass. A token below zero stands for the choice of row -1 - token of the pass
        before this one."""
        with torch.cuda.device(self.device):
            return self._launch(segments)

    def _launch(self, segments: list[Segment]) -> Flight:
        rows = sum([len(segment.tokens) for segment in segments])
        bucket = bucket_of(rows)
        single = len(segments) == rows and not self.invariant  # where both are the same kernels
        graph = self._graph(bucket, single)
        lines = self.table.lines_for(segments)
        places, slots = self.table.changes(segments, lines)
        if len(places) > updates_of(bucket):
            self.table.write(places, slots)
            places = slots = []
        packed, array = self._next_stage(bucket)
        fill(array, bucket, segments, lines, rows_per_tile(bucket, self._group, single))
        _fill_updates(array[FIELDS * bucket :], places, slots)
        self._send(graph, packed)
        wanted = _wanted(segments)
        flight = self._fly(graph, rows, wanted)
        if single and wanted is None:
            flight.go_on = self._after(owners_of(segments), array[: FIELDS * bucket])
        return flight

    def _after(self, owners: list[Hashable], fields: np.ndarray) -> GoOn | None:
        """What goes on after the pass that has just been launched, which has one row of each of
        these; None where the table has no room. fields [FIELDS * rows]: they stay where they are
        until the pass after the next."""
        launch, before = self._launches, fields.reshape(FIELDS, -1)
        if before[CONTEXT].max() >= self.table.longest:
            return None

        def go_on(kept: list[int], slots: list[int]) -> Flight:
            assert self._launches == launch, "another pass has been launched since"
            with torch.cuda.device(self.device):
                return self._launch_next([owners[row] for row in kept], before, kept, slots)

        return go_on

    def _launch_next(
        self, owners: list[Hashable], before: np.ndarray, kept: list[int], slots: list[int]
    ) -> Flight:
        """before [FIELDS, rows of the pass before]."""
        bucket = bucket_of(len(kept))
        graph = self._graph(bucket, single=True)
        packed, array = self._next_stage(bucket)
        fill_next(array, bucket, before, kept, slots)
        written, lines = before[SLOT, kept], before[LINE, kept]  # a part of the context by now
        places = lines * self.table.longest + before[CONTEXT, kept]
        _fill_updates(array[FIELDS * bucket :], places, written)
        self.table.grows(owners, lines.tolist(), written.tolist())
        self._send(graph, packed)
        flight = self._fly(graph, len(kept), None)
        flight.go_on = self._after(owners, array[: FIELDS * bucket])
        return flight

    def _next_stage(self, bucket: int) -> tuple[Tensor, np.ndarray]:
        """A host buffer for the numbers of a pass, once its last copy is done."""
        self._launches += 1
        turn = self._launches % STAGES
        self._read[turn].synchronize()
        return self._stage(turn, FIELDS * bucket + 2 * updates_of(bucket))

    def _send(self, graph: Graph, packed: Tensor) -> None:
        graph.inputs.packed.copy_(packed, non_blocking=True)
        self._read[self._launches % STAGES].record()

    def _stage(self, turn: int, size: int) -> tuple[Tensor, np.ndarray]:
        """The first numbers of a buffer, for the device and for the host: views made once, since
        the device waits while they are."""
        key = (turn, size)
        if key not in self._stages:
            packed = self._staging[turn][:size]
            self._stages[key] = packed, packed.numpy()
        return self._stages[key]

    def again(self, rows: int, prepare: Callable[[Graph], None]) -> Flight:
        """A pass of the same shape after one that checked trees with `rows` rows in all: `prepare`
        makes its inputs of that one's inputs and choices, on the device."""
        with torch.cuda.device(self.device):
            graph = self._graph(bucket_of(rows), single=False)
            self._launches += 1
            prepare(graph)
            return self._fly(graph, rows, None)

    def _fly(self, graph: Graph, rows: int, wanted: list[int] | None) -> Flight:
        launch = self._launches
        turn = launch % STAGES
        graph.replay()
        chosen = self._chosen[turn]
        chosen[: graph.inputs.rows].copy_(graph.choices, non_blocking=True)
        self._landed[turn].record()

        def landed() -> list[int]:
            assert self._launches - launch < STAGES, "its tokens have been overwritten"
            self._landed[turn].synchronize()
            tokens = chosen[:rows].tolist()
            return tokens if wanted is None else [tokens[row] for row in wanted]

        return Flight(graph.logits[:rows] if wanted is None else graph.logits[wanted], landed)

    @property
    def _group(self) -> int:
        heads, kv_heads, _ = self._shape
        return heads // kv_heads

    def _graph(self, rows: int, single: bool) -> Graph:
        key = (rows, single)
        if key not in self._graphs:
            inputs = RowInputs.of(rows, single, self.table.device_table)
            self._graphs[key] = Graph(
                self._forward, inputs, self.previous, self._work, self._choose, self._pool
            )
            log.debug("captured a pass over %d rows", rows)
        return self._graphs[key]


def bucket_of(rows: int) -> int:
    """Rows of the graph that takes so many."""
    return next(bucket for bucket in BUCKETS if bucket >= rows)


def buckets(invariant: bool) -> tuple[int, ...]:
    """Numbers of rows that there are graphs for."""
    return tuple(b for b in BUCKETS if b <= MOST_ROWS) if invariant else BUCKETS


def _workspace_sizes(
    shape: tuple[int, int, int], vocabulary: int, others: int, invariant: bool = False
) -> tuple[int, int]:
    """Elements of the workspace's two parts, for passes of all sizes. shape: heads, KV heads, size
    of a value; `others`: elements that the model needs for its products."""
    heads, _, value_size = shape
    sizes = [workspace_for(b, single, *shape) for b in BUCKETS for single in (True, False)]
    if invariant:
        sizes = [path_parts(b, heads, value_size) for b in buckets(invariant)]
    parts, weights = zip(*sizes)
    chosen = choice_parts(buckets(invariant)[-1], vocabulary)
    return max(*parts, others, chosen), max(*weights, chosen)


def bytes_of_graphs(
    call: LayerCall,
    *,
    width: int,
    vocabulary: int,
    element: int,
    lines: int,
    longest: int,
    invariant: bool = False,
) -> int:
    """What `Graphs` hold once all sizes are captured: workspaces, slot table, rotations of fused
    layers, each graph's logits, and what runs inside the largest that reads prompts."""
    shape = (call.heads, call.kv_heads, call.value_head_size)
    widest = max(width, (call.heads + 2 * call.kv_heads) * call.head_size)
    work = 4 * sum(_workspace_sizes(shape, vocabulary, product_parts(widest), invariant))
    table = 4 * (1 + max(lines, FEWEST_LINES)) * longest
    rotations = 2 * longest * call.head_size * element
    kinds = 1 if invariant else 2  # single rows and trees
    logits = kinds * sum(buckets(invariant)) * vocabulary * element
    cuts = CutMemory.of(buckets(invariant)[-1], vocabulary, torch.device("meta")).nbytes
    if not invariant:
        logits += len(SIZES) * vocabulary * element
        work += SIZES[-1] * WIDTHS * width * element
    return work + table + rotations + logits + cuts


def _fill_updates(
    tail: np.ndarray, places: list[int] | np.ndarray, slots: list[int] | np.ndarray
) -> None:
    """tail [2 * updates]: where the table changes, and to what."""
    most = len(tail) // 2
    tail[:] = 0  # entry 0 of the table belongs to the scrap line
    tail[: len(places)] = places
    tail[most : most + len(slots)] = slots


def _wanted(segments: list[Segment]) -> list[int] | None:
    """Rows whose logits were asked for; None for all, as nearly always."""
    return wanted_rows(segments) if any(segment.logits_from for segment in segments) else None
