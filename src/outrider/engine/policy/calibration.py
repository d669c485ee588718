"""Seconds at start, once per model, device and version: what passes cost here."""

import hashlib
import json
import logging
import os
from array import array
from dataclasses import asdict
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
import transformers
from torch import nn

from outrider.core.version import VERSION
from outrider.engine.policy.cost import Crowd, Measured
from outrider.model.cache import cache_root
from outrider.model.machine import cores, cpu_name
from outrider.model.runner import SCRAP, Runner
from outrider.model.segment import Segment
from outrider.sampling.choose import highest

log = logging.getLogger(__name__)

FORMAT = 6  # raised when the way of measuring changes
ROWS = (1, 2, 3, 4, 8, 16, 24, 32, 48, 64, 68, 96)  # or as many as passes over these have
CONTEXT = 256
LONG_CONTEXT = 1024
SEQUENCES = 8
# Texts, and rows of all of them. On a GPU, where each size would be captured at start, and in
# blocks of a fixed size rows cost the same whosever they are.
CROWDS = ((8, (8, 16, 24, 32, 48, 64)), (32, (32, 48, 64, 96)))
REPEATS = 8
IN_A_ROW = 6  # passes on a GPU, which do not wait for the host between them: nor do they later
STEADY = 1.5  # the median pass over the fastest one, on a machine with nothing else to do
SLOTS = max(texts * CONTEXT + rows[-1] for texts, rows in CROWDS)  # that measuring likes to have

# By a name, rows of one text, or texts and rows: the rows of each text, and the context of all.
Passes = dict[str | int | tuple[int, int], tuple[list[int], int]]


def calibrate(runner: Runner, slots: array, most: int) -> Measured:
    """From the cache, or measured now; what the slots hold is overwritten. `most`: texts that a
    pass may have."""
    file = _file(runner, _passes(runner, slots, most))
    try:
        found = json.loads(file.read_text())
        found["crowds"] = [Crowd(**crowd) for crowd in found["crowds"]]
        return Measured(**found)
    except (OSError, ValueError, TypeError, KeyError):
        pass  # never measured, or a file of another kind: measuring replaces it
    measured, steady = measure(runner, slots, most)
    if SCRAP in slots:
        return measured  # good enough for now: keys that are read again and again are read quickly
    if not steady:
        log.info("the machine was busy: what passes cost is measured again next time")
        return measured
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_suffix(f".{os.getpid()}")
        partial.write_text(json.dumps(asdict(measured)))
        partial.replace(file)
    except OSError as error:
        log.info("the calibration could not be kept: %s", error)
    return measured


def measure(runner: Runner, slots: array, most: int) -> tuple[Measured, bool]:
    """Rounds over all shapes, so that a machine that is busy for a moment slows down all alike; and
    whether it was quiet enough to rely on them. Of each shape the fastest pass counts: it was
    disturbed least."""
    shapes = _passes(runner, slots, most)
    many, context, longer = len(shapes["many"][0]), shapes["many"][1], shapes["long"][1]
    passes = {name: _segments(sizes, before, slots) for name, (sizes, before) in shapes.items()}
    times: dict[Any, list[float]] = {name: [] for name in passes}
    for repeat in range(1 + REPEATS):
        for name, segments in passes.items():
            seconds = _timed(runner, segments)
            if repeat:  # the first round warms up
                times[name].append(seconds)
    known = {name: min(values) for name, values in times.items()}
    steady = all(median(values) < STEADY * min(values) for values in times.values())
    rows = sorted(name for name in known if isinstance(name, int))
    alike = max((n for n in rows if n <= many), default=1)  # rows of one sequence, for comparison
    measured = Measured(
        rows=rows,
        seconds=[known[n] for n in rows],
        context=context,
        per_sequence=max(0.0, (known["many"] - known[alike]) / many),
        per_key=max(0.0, (known["long"] - known[1]) / max(1, longer - context)),
        crowds=[
            Crowd(texts, fitting, [known[texts, total] for total in fitting])
            for texts, totals in CROWDS
            if (fitting := [total for total in totals if (texts, total) in known])
        ],
    )
    return measured, steady


def _passes(runner: Runner, slots: array, most: int) -> Passes:
    """What is measured, as far as slots and positions suffice."""
    # A model may have learned its positions: beyond the last there is nothing to look up.
    longest = min(len(slots), runner.loaded.context_length)
    context = max(1, min(CONTEXT, longest // 4))
    sizes = sorted({1, *map(runner.filled_up, ROWS)})
    passes: Passes = {rows: ([rows], context) for rows in sizes if rows + context <= longest}
    many = min(SEQUENCES, len(slots) // (context + 1))
    passes |= {"many": ([1] * many, context), "long": ([1], min(LONG_CONTEXT, longest - 1))}
    alike = runner.runs_ahead or runner.fixed_rows
    for texts, totals in CROWDS:
        for total in () if alike or texts > most else totals:
            if texts * context + total <= len(slots) and context + -(-total // texts) <= longest:
                passes[texts, total] = (_shared(total, texts), context)
    return passes


def _shared(rows: int, texts: int) -> list[int]:
    """So many rows, as evenly as can be."""
    return [rows // texts + (i < rows % texts) for i in range(texts)]


def _segments(sizes: list[int], context: int, slots: array) -> list[Segment]:
    segments, first = [], 0
    for rows in sizes:
        middle, end = first + context, first + context + rows
        tokens = [0] * rows
        segments.append(
            Segment.chain(tokens, slots[middle:end], slots[first:middle], logits_from=0)
        )
        first = end
    return segments


@torch.inference_mode()
def _timed(runner: Runner, segments: list[Segment]) -> float:
    """Of one pass; waits for a GPU in the end, as a step does."""
    passes = IN_A_ROW if runner.runs_ahead else 1
    start = perf_counter()
    for _ in range(passes):
        flight = runner.launch(segments)
    highest(flight.logits)[1].tolist()
    return (perf_counter() - start) / passes


def _file(runner: Runner, passes: Passes) -> Path:
    """Named by what is measured, and by all that the time of a pass depends on, the weights' values
    not among it."""
    config = runner.model.config.get_text_config().to_dict()
    shape = {
        key: value
        for key, value in config.items()
        if isinstance(value, (int, float, str)) and not key.startswith("_")
    }
    device = runner.device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_name()
    linears = {type(m).__name__ for m in runner.model.modules() if isinstance(m, nn.Linear)}
    key = [
        FORMAT, VERSION, torch.__version__, transformers.__version__, name, str(device.type),
        shape, sorted(linears), str(runner.loaded.dtype), runner.loaded.quantization,
        torch.get_num_threads(), cores(),
        (runner.fixed_rows, runner.way) if runner.reproducible else 0, list(passes.items()),
    ]  # fmt: skip
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]
    return cache_root() / "calibration" / f"{digest}.json"
