"""Whether a drafter's loop on the device does what its passes do one by one; decided once, at load.

Both write chains below the same made-up texts. The loop's tokens need not be the likeliest ones of
the other way, since rounding decides between tokens that are about equal; but they must be near.
"""

import logging
from array import array
from collections.abc import Iterator
from itertools import islice
from math import inf
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from outrider.core.params import SamplingParams
from outrider.core.request import Request
from outrider.drafters.candidates import Found
from outrider.drafters.device_loop import DeviceLoop
from outrider.drafters.growth import Draft, Planned
from outrider.drafters.loop_text import Guesses
from outrider.drafters.shapes import chain
from outrider.model.admission import LOW_PRECISION, TOLERANCE
from outrider.model.cuda.capture import Capture
from outrider.model.kv import KVCache
from outrider.sampling.noise import Key, Purpose, noise, streams
from outrider.sampling.process import process
from outrider.sampling.rows import Row

if TYPE_CHECKING:
    from outrider.drafters.trained import TrainedDrafter

log = logging.getLogger(__name__)

FUSED_LOOP = "CUDA graphs of fused layers, all guesses in one go"
LOOP = "CUDA graphs, all guesses in one go"
LENGTHS = (63, 5, 23)  # of the texts: the loop itself can read them
GUESSES = 4  # which are below more than one block of keys at the end
# How far below the best score a guess may lie, in spreads of all scores, per tolerance of the
# dtype: a token that has nothing to do with the right one lies 3 to 5 spreads below.
ROUNDING = 6


def checked_loop(drafter: "TrainedDrafter", kv: KVCache) -> tuple[DeviceLoop | None, str]:
    """The loop, and in words what it is; none where it cannot reproduce the passes. All slots must
    be unused; the target's passes must be graphs."""
    graphs = drafter.target_runner.graphs
    assert graphs is not None
    reason = ""
    for name, make in ((FUSED_LOOP, drafter.fused_loop), (LOOP, drafter.make_loop)):
        try:
            loop = make(graphs.table, Capture(drafter.device))
            error = inf if loop is None else distance(drafter, loop, kv)
        except Exception as problem:  # compilers and drivers fail in ways of their own
            said = str(problem).splitlines() or [type(problem).__name__]
            reason = f"{name} failed: {said[0]}"
        else:
            if loop is None:
                continue
            if error <= ROUNDING * TOLERANCE.get(drafter.dtype, LOW_PRECISION):
                _prepare(loop, drafter.config.num_speculative_tokens or drafter.longest)
                return loop, name if reason == "" else f"{name} ({reason})"
            reason = f"{name}: a guess was {error:.1e} spreads off"
        log.warning("drafts of %s will be slower: %s", drafter.name, reason)
    return None, f"level by level ({reason})"


def _prepare(loop: DeviceLoop, guesses: int) -> None:
    try:
        loop.prepare(guesses)
    except Exception as problem:  # such as too little memory: what is needed comes when it is
        log.warning(
            "first drafts will be slower: not all graphs were captured at load: %s", problem
        )


@torch.inference_mode()
def distance(drafter: "TrainedDrafter", loop: DeviceLoop, kv: KVCache) -> float:
    """How far a guess of the loop's lies below the best token at most, in spreads of all scores."""
    owner = Request("", [0], SamplingParams(), seed=0)
    kv.open(owner)
    try:
        if not kv.reserve(owner, 2 * sum(length + GUESSES for length in LENGTHS)):
            raise RuntimeError(f"{kv.total} KV slots are too few to try it out")
        slots = iter(owner.reserved)
        looped, stepped = _requests(drafter, slots), _requests(drafter, slots)
        guesses = loop(drafter.texts(looped, [min(GUESSES, drafter.longest)] * len(looped)))
        return _distance(drafter, stepped, guesses)
    finally:
        for request in (*looped, *stepped):
            drafter.release(request)
        kv.close(owner)


def _requests(drafter: "TrainedDrafter", free: Iterator[int]) -> list[Request]:
    """Texts as if the target had read them, in the next slots that are free."""
    made = []
    store = drafter.features.store
    random = torch.Generator().manual_seed(0)
    for i, length in enumerate(LENGTHS):
        tokens = [(7 * place + 3 + i) % 97 for place in range(length)]
        params = SamplingParams(temperature=0.8 * (i % 2))
        request = Request("", tokens, params, seed=(1 << 40) + i, sample=i)
        slots = array("q", islice(free, length + GUESSES))
        request.slots, request.reserved = slots[: length - 1], slots[length - 1 :]
        features = torch.randn(length - 1, store.shape[1], generator=random)
        store[torch.tensor(request.slots, device=store.device)] = features.to(store)
        made.append(request)
    return made


def _distance(drafter: "TrainedDrafter", requests: list[Request], guesses: list[Guesses]) -> float:
    """The same texts pass by pass, along the guesses."""
    count = min(GUESSES, drafter.longest)
    drafts: list[Draft] = [Planned(request, chain(count)) for request in requests]
    worst = 0.0
    for depth in range(count):
        logits = drafter.known.spread(drafter.level(drafts))
        for i, (request, (tokens, _)) in enumerate(zip(requests, guesses, strict=True)):
            row = Row(request, tokens[:depth])
            scores = _noisy(process(logits[i : i + 1], [row], drafter.counts)[0], row)
            known = scores[scores.isfinite()]
            worst = max(worst, float((known.max() - scores[tokens[depth]]) / known.std()))
            drafts[i].add(drafts[i].frontier[0], Found([tokens[depth]], [1.0]))
            drafts[i].advance()
    return worst


def _noisy(scores: Tensor, row: Row) -> Tensor:
    """[vocabulary]: what the choice is the maximum of."""
    request = row.request
    if request.params.greedy:
        return scores
    key = Key(request.seed, request.sample, row.position, Purpose.CHOICE)
    return scores + noise(streams([key], scores.device), len(scores))[0]
