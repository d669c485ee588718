"""A target whose passes read nothing but the device's buffers, on a CPU: what a kernel has written
there decides what is computed."""

from array import array
from collections import defaultdict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from tests.heads.looped import make_looped, plain_guess
from torch import Tensor

from outrider.drafters.following import Following
from outrider.engine.llm import LLM
from outrider.model.cuda.graphs import STAGES, bucket_of
from outrider.model.cuda.guess import DEPTH
from outrider.model.cuda.inputs import (
    ANCESTORS,
    CONTEXT,
    LINE,
    OUTPUT_POSITION,
    POSITION,
    SAMPLE,
    SEED,
    SEGMENT,
    SLOT,
    TEMPERATURE,
    TOKEN,
    RowInputs,
    fill,
)
from outrider.model.cuda.slot_table import SlotTable
from outrider.model.flight import Flight
from outrider.model.runner import Runner
from outrider.model.segment import Segment
from outrider.sampling.noise import Key, Purpose, noise, streams


class BufferGraphs:
    """Stands for `Graphs`."""

    most_rows, captured = 256, 0

    def __init__(self, runner: Runner, table: SlotTable) -> None:
        self.runner, self.table = runner, table
        self.graphs: dict[int, Any] = {}
        self.launches = self.followed = self.held = self.empty = 0

    def fits(self, segments: list[Segment]) -> bool:
        return all(len(s) <= 64 and s.logits_from == 0 for s in segments)

    def prompts_among(self, segments: list[Segment]) -> list[int]:
        return []

    def long_pass(self, *_: Any) -> None:
        return None

    def launch(self, segments: list[Segment]) -> Flight:
        rows = sum(map(len, segments))
        graph = self._graph(rows)
        lines = self.table.lines_for(segments)
        places, slots = self.table.changes(segments, lines)
        self.table.write(places, slots)
        fill(graph.inputs.packed.numpy(), graph.inputs.rows, segments, lines, 64)
        for row, token in enumerate(graph.inputs.field(TOKEN).tolist()):
            if token < 0:
                graph.inputs.field(TOKEN)[row] = self.previous[-1 - token]
        self.launches += 1
        return self._fly(graph, rows)

    def again(self, rows: int, prepare: Callable[[Any], None]) -> Flight:
        graph = self._graph(rows)
        self.launches += 1
        self.followed += 1
        prepare(graph)
        return self._fly(graph, rows)

    def _graph(self, rows: int) -> Any:
        bucket = bucket_of(rows)
        if bucket not in self.graphs:
            inputs = RowInputs.of(bucket, False, self.table.device_table)
            self.graphs[bucket] = SimpleNamespace(
                inputs=inputs, choices=torch.zeros(bucket, dtype=torch.int64)
            )
        return self.graphs[bucket]

    def _fly(self, graph: Any, rows: int) -> Flight:
        visible = graph.inputs.field(ANCESTORS)[:rows].tolist()
        real = [row for row in range(rows) if visible[row]]
        empty = graph.inputs.field(ANCESTORS)[:rows] == 0
        assert not graph.inputs.field(SLOT)[:rows][empty].any()  # features go there all the same
        self.empty += rows - len(real)
        logits = torch.zeros(rows, self.runner.vocabulary)
        logits[real] = self.runner._forward(_segments(graph.inputs, real))
        chosen = [_choice(row, graph.inputs, i) for i, row in enumerate(logits)]
        graph.choices[:rows] = torch.tensor(chosen)
        self.previous, mine = chosen, self.launches

        def landed() -> list[int]:
            assert self.launches - mine < STAGES, "its tokens have been overwritten"
            return chosen

        return Flight(logits, landed)


def _segments(inputs: RowInputs, rows: list[int]) -> list[Segment]:
    """What the fields say of these rows, in their order."""
    fields = inputs.packed.view(-1)[: 17 * inputs.rows].view(17, -1).tolist()
    sequences: dict[int, list[int]] = defaultdict(list)
    for row in rows:
        sequences[fields[SEGMENT][row]].append(row)
    found = []
    for first, own in sequences.items():
        assert own == [*range(first, first + len(own))]
        parents = []
        for row in own:
            above = fields[ANCESTORS][row] & ~(1 << (row - first))
            parents.append(above.bit_length() - 1)
        context = inputs.table[fields[LINE][first], : fields[CONTEXT][first]].tolist()
        segment = Segment(
            [fields[TOKEN][row] for row in own],
            parents,
            array("q", [fields[SLOT][row] for row in own]),
            array("q", context),
            logits_from=0,
        )
        assert segment.positions == [fields[POSITION][row] for row in own]
        found.append(segment)
    return found


def _choice(logits: Tensor, inputs: RowInputs, row: int) -> int:
    at = inputs.packed[: 17 * inputs.rows].view(17, -1)[:, row].tolist()
    temperature = torch.tensor(at[TEMPERATURE], dtype=torch.int32).view(torch.float32)
    if temperature:
        key = Key(at[SEED], at[SAMPLE], at[OUTPUT_POSITION], Purpose.CHOICE)
        logits = logits / temperature + noise(streams([key]), len(logits))[0]
    return int(logits.argmax())


class Oracle:
    """Guesses that are right for a while, by turns of `right` tokens for each text: heads that have
    learned nothing never are. Texts are told apart by their seeds."""

    def __init__(self, expected: dict[int, list[int]], right: list[int]) -> None:
        self.expected, self.right = expected, right
        self.left: dict[int, int] = {}
        self.turn = 0

    def __call__(
        self, logits: Tensor, inputs: RowInputs, work: Any, out: Tensor, sure: Tensor | None = None
    ) -> None:
        told = logits.clone()
        fields = inputs.packed.view(-1, inputs.rows)
        for row in range(inputs.rows):
            at = fields[:, row].tolist()
            if not at[LINE]:
                continue
            if at[DEPTH] == 0:
                self.turn += 1
                self.left[row] = self.right[self.turn % len(self.right)]
            text = self.expected.get(at[SEED], [])  # a greedy text alone has none there
            if self.left[row] > 0 and at[OUTPUT_POSITION] < len(text):
                self.left[row] -= 1
                told[row, text[at[OUTPUT_POSITION]]] = 1e4
        plain_guess(told, inputs, work, out, sure)


def make_followed(target: str, config: dict[str, Any], **options: Any) -> tuple[LLM, BufferGraphs]:
    llm = make_looped(target, config, **options)
    engine = llm.engine
    engine.policy.timings.clear()  # as on a GPU, where drafters are not rehearsed
    drafter: Any = engine.drafter.members[-1]
    graphs: Any = BufferGraphs(engine.runner, drafter.loop.slot_table)
    engine.runner.graphs = graphs
    engine.scheduler.replayed_rows = engine.runner.replayed_rows
    drafter.following = Following(drafter.loop, graphs)
    return llm, graphs
