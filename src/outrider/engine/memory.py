"""One memory budget for all models of an engine."""

import logging
from dataclasses import dataclass

from outrider.model.footprint import pass_bytes, workspace_bytes
from outrider.model.memory import MemoryUse, free_memory, slots_that_fit
from outrider.model.quantized import weight_bytes
from outrider.model.runner import SEQUENCES, Runner

log = logging.getLogger(__name__)

SCORES = 4 * 4  # bytes per request and token id while tokens are chosen: four tables of float32
MOST_OF_SHARE = 0.5  # that passes may keep from slots: an engine out of memory makes them smaller


@dataclass(frozen=True)
class Wanted:
    """What the target's passes look like, and the user's limits."""

    rows: int  # of one pass
    sequences: int
    longest: int  # tokens of one text
    utilization: float
    slots: int | None  # None: as many as fit and are of use


def plan_memory(
    target: Runner,
    drafters: dict[Runner, int],
    bytes_per_slot: int,
    wanted: Wanted,
    beside: int = 0,
) -> MemoryUse:
    """`drafters`: the runners of draft models with the rows of their passes. All weights must be
    loaded and no slots allocated; `bytes_per_slot` is that of all models together, `beside` the
    workspace of drafters that have no runner."""
    passes = _largest_pass(target, drafters, wanted)
    workspace = beside + workspace_bytes(target, wanted.sequences, wanted.longest)
    for runner in drafters:
        workspace += workspace_bytes(runner, SEQUENCES, runner.loaded.context_length)
    free = free_memory(target.device)
    passes = _within_share(passes, int(MOST_OF_SHARE * free * wanted.utilization))
    slots = wanted.slots
    if slots is None:
        # More slots than this could only serve the prefix cache.
        useful = wanted.sequences * wanted.longest
        slots = slots_that_fit(free, wanted.utilization, workspace, passes, bytes_per_slot, useful)
    use = MemoryUse(
        device=str(target.device),
        free=free,
        utilization=wanted.utilization,
        weights=sum(weight_bytes(runner.model) for runner in (target, *drafters)),
        workspace=workspace,
        passes=passes,
        bytes_per_slot=bytes_per_slot,
        slots=slots,
    )
    log.info("memory on %s", use)
    return use


def _largest_pass(target: Runner, drafters: dict[Runner, int], wanted: Wanted) -> int:
    """Of passes that come one after the other, with what choosing tokens takes."""
    passes = [pass_bytes(target, wanted.rows, wanted.longest)]
    for runner, rows in drafters.items():
        passes.append(pass_bytes(runner, rows, min(wanted.longest, runner.loaded.context_length)))
    on_gpu = target.device.type == "cuda"
    return max(passes) + (SCORES * wanted.sequences * target.vocabulary if on_gpu else 0)


def _within_share(passes: int, most: int) -> int:
    if passes > most:
        log.warning(
            "a pass at the end of the longest text takes %.2f GiB, of which %.2f are kept for it; "
            "where texts are that long, lower max_num_batched_tokens or max_model_len",
            passes / 2**30,
            most / 2**30,
        )
    return min(passes, most)
