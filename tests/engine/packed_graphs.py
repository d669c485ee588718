"""CUDA graphs without a GPU: all that the host prepares is real, and a pass is computed from the
numbers and the slot table that would have reached the device, and from nothing else."""

from array import array
from math import exp
from typing import Any

import numpy as np
from tests.engine.eager_graphs import chosen
from tests.model.cuda.host_side import HostSide

from outrider.model.cuda.inputs import (
    ANCESTORS,
    CONTEXT,
    LINE,
    LOG_MIN_P,
    OUTPUT_POSITION,
    SAMPLE,
    SEED,
    SEGMENT,
    SLOT,
    TEMPERATURE,
    TOKEN,
    TOP_K,
    TOP_P,
)
from outrider.model.flight import Flight
from outrider.model.runner import Runner
from outrider.model.segment import LIKELIEST, Choosing, Segment


class PackedGraphs(HostSide):
    def __init__(self, runner: Runner, lines: int, longest: int) -> None:
        layer = runner.layers[0]
        super().__init__(layer.heads, layer.kv_heads, lines, longest, runner.device)
        self.runner = runner
        self.chosen: list[int] = []  # by the last pass
        self.went_on = 0  # passes that were made of the one before them

    def _launch_next(self, *arguments: Any) -> Flight:
        self.went_on += 1
        return super()._launch_next(*arguments)

    def _fly(self, graph: Any, rows: int, wanted: list[int] | None) -> Flight:
        segments, asked = self._segments(self.received(graph, rows))
        logits = self.runner._forward(segments)  # [rows, vocabulary]
        tokens = self.chosen = chosen(logits, asked)
        mine = self._launches

        def landed() -> list[int]:
            assert self._launches - mine <= 1, "the device keeps the tokens of two passes"
            return tokens if wanted is None else [tokens[row] for row in wanted]

        return Flight(logits if wanted is None else logits[wanted], landed)

    def _segments(self, fields: np.ndarray) -> tuple[list[Segment], list[Choosing]]:
        """Those that the device would see, and how each row chooses. fields [FIELDS, rows]."""
        segments: dict[int, Segment] = {}
        asked = []
        for row in fields.T.tolist():
            token, slot, own = row[TOKEN], row[SLOT], row[SEGMENT]
            if own not in segments:
                context = self.table.device_table[row[LINE], : row[CONTEXT]]
                segments[own] = Segment([], [], array("q"), array("q", context.tolist()), 0)
            segment = segments[own]
            above = row[ANCESTORS] & ~(1 << len(segment))
            segment.parents.append(above.bit_length() - 1)
            segment.tokens.append(self.chosen[-1 - token] if token < 0 else token)
            segment.slots.append(slot)
            asked.append(_choosing(row))
        return list(segments.values()), asked


def _choosing(row: list[int]) -> Choosing:
    """row [FIELDS]"""
    if not row[TEMPERATURE]:
        return LIKELIEST
    return Choosing(
        temperature=_float32(row[TEMPERATURE]),
        seed=row[SEED] % (1 << 64),
        sample=row[SAMPLE],
        position=row[OUTPUT_POSITION],
        top_k=row[TOP_K],
        top_p=float(np.array(row[TOP_P]).view(np.float64)),
        min_p=exp(_float32(row[LOG_MIN_P])),
    )


def _float32(bits: int) -> float:
    return float(np.array(bits, dtype=np.int32).view(np.float32))
