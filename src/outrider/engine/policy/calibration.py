"""Seconds at start, kept per model, device and version: what passes cost here.

A processor that others use as well shows what a pass takes only now and then. So the next starts
look again, if that is quickly done, and of every pass the fastest of all starts counts: it was
disturbed least. Once a few starts in a row have found nothing faster, no more is looked.
"""

import hashlib
import json
import logging
import os
from array import array
from math import inf
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

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

FORMAT = 7  # raised when the way of measuring changes
ROWS = (1, 2, 3, 4, 8, 16, 24, 32, 48, 64, 68, 96)  # or as many as passes over these have
CONTEXT = 256
LONG_CONTEXT = 1024
SEQUENCES = 8
# Texts, and rows of all of them. On a GPU, where each size would be captured at start, and in
# blocks of a fixed size rows cost the same whosever they are.
CROWDS = ((8, (8, 16, 24, 32, 48, 64)), (32, (32, 48, 64, 96)))
ROUNDS = 9  # over all passes at first; the very first one warms up,
MORE_ROUNDS = 2  # and at later starts, until
SETTLED = 3  # in a row have found no pass
FASTER = 0.97  # of what it took
PATIENCE = 20.0  # seconds at first, after which no other round begins, and
SECOND_LOOK = 3.0  # at a later start, which does not look where it would take longer
IN_A_ROW = 6  # passes on a GPU, which do not wait for the host between them: nor do they later
SLOTS = max(texts * CONTEXT + rows[-1] for texts, rows in CROWDS)  # that measuring likes to have

# By a name, rows of one text, or texts and rows: the rows of each text, and the context of all.
Passes = dict[str | int | tuple[int, int], tuple[list[int], int]]


class Kept(NamedTuple):
    """What the cache holds."""

    seconds: list[float]  # of the passes, in their order
    settled: int  # starts in a row that have found nothing faster


def calibrate(runner: Runner, slots: array, most: int, idle: bool = True) -> Measured:
    """From the cache and measured now; what the slots hold is overwritten. `most`: texts that a
    pass may have. `idle`: nobody waits, nor uses slots."""
    passes = _passes(runner, slots, most)
    file = file_of(runner, list(passes.items()))
    kept = _read(file)
    if kept is None or len(kept.seconds) != len(passes):
        seconds, settled = measure(runner, passes, slots, ROUNDS), 0
    elif not idle or kept.settled >= SETTLED or _lasting(runner, kept):
        return _measured(passes, kept.seconds)
    else:
        now = measure(runner, passes, slots, MORE_ROUNDS)
        seconds = list(map(min, now, kept.seconds))
        faster = any(new < FASTER * old for new, old in zip(now, kept.seconds))
        settled = 0 if faster else kept.settled + 1
    if SCRAP not in slots:  # else good enough for now: keys that are read again are read quickly
        keep(file, Kept(seconds, settled)._asdict())
    return _measured(passes, seconds)


def _lasting(runner: Runner, kept: Kept) -> bool:
    """Whether what was measured is good enough: on a GPU, which is seldom shared and captures each
    pass anew, or where passes are so long that a moment's disturbance hardly shows in them."""
    return runner.runs_ahead or MORE_ROUNDS * sum(kept.seconds) > SECOND_LOOK


def measure(runner: Runner, passes: Passes, slots: array, rounds: int) -> list[float]:
    """Seconds of each, the fastest time. In rounds over all, so that a machine that is busy for a
    moment slows down all alike."""
    segments = [_segments(sizes, before, slots) for sizes, before in passes.values()]
    fastest, start = [inf] * len(passes), perf_counter()
    for _ in range(rounds):
        fastest = [min(known, _timed(runner, own)) for known, own in zip(fastest, segments)]
        if perf_counter() - start > PATIENCE:
            break
    return fastest


def _measured(passes: Passes, seconds: list[float]) -> Measured:
    known = dict(zip(passes, seconds, strict=True))
    many, context, longer = len(passes["many"][0]), passes["many"][1], passes["long"][1]
    rows = sorted(name for name in known if isinstance(name, int))
    alike = max((n for n in rows if n <= many), default=1)  # rows of one sequence, for comparison
    return Measured(
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


def _read(file: Path) -> Kept | None:
    try:
        kept = Kept(**json.loads(file.read_text()))
        return Kept([float(seconds) for seconds in kept.seconds], int(kept.settled))
    except (OSError, ValueError, TypeError):
        return None  # never measured, or a file of another kind, which is replaced


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


def keep(file: Path, found: dict[str, Any]) -> None:
    """What was measured, for the next start."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_suffix(f".{os.getpid()}")
        partial.write_text(json.dumps(found))
        partial.replace(file)
    except OSError as error:
        log.info("the calibration could not be kept: %s", error)


def file_of(runner: Runner, what: Any) -> Path:
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
        (runner.fixed_rows, runner.way) if runner.reproducible else 0, what,
    ]  # fmt: skip
    described = json.dumps(key, sort_keys=True, default=str)
    digest = hashlib.sha256(described.encode()).hexdigest()[:16]
    return cache_root() / "calibration" / f"{digest}.json"
