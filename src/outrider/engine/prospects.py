"""What may be asked of a drafter that costs time, and what it promises."""

import numpy as np

from outrider.core.request import Request
from outrider.core.tree import TokenTree
from outrider.drafters.base import Drafter
from outrider.drafters.shapes import Shape
from outrider.engine.policy.offer import Outlook, Size
from outrider.engine.policy.policy import Policy
from outrider.engine.policy.timing import ROUTINE

# What one of two drafts adds to the other, of what it would bring where that one misses at once.
BESIDE = 0.25
BRANCHING = (1, 2, 3, 4, 6, 8, 12, 16)  # nodes of trees of one depth that are told apart


def prospects(
    policy: Policy,
    drafter: Drafter,
    batch: list[Request],
    budget: dict[Request, int],
    without: dict[Request, float],
    proposed: dict[Request, TokenTree],
    promised: dict[Request, float] | None = None,
) -> tuple[list[Size], list[Outlook]]:
    """The drafts that the drafter may be asked for, and what requests may expect of them; `without`
    says what they may expect of what is `proposed` already, and `promised` what lookups promise,
    if that is something else."""
    rooms = [min(budget[request], drafter.longest) for request in batch]
    outlines = drafter.outlines(max(rooms))
    sizes = _sizes(drafter, max(rooms), outlines)
    seen = policy.seen(batch, drafter.name)
    easy = without if promised is None else promised
    found = [easy.get(request, 0.0) for request in batch]
    gains = policy.gains(batch, drafter.name, sizes, outlines, rooms, found)
    return sizes, [
        Outlook(
            _both(own, without[request]) if _joins(drafter, request, without) else own,
            without[request],
            room,
            len(proposed.get(request, ())),
            drafts,
        )
        for request, own, room, drafts in zip(batch, gains, rooms, seen, strict=True)
    ]


def _joins(drafter: Drafter, request: Request, without: dict[Request, float]) -> bool:
    """Whether its draft may be one of two: for so little as it adds then, no prompt is read. Drafts
    that are drawn, or follow each other on a device, are checked alone."""
    drawn = drafter.config.verification != "coupled"
    if drawn or not drafter.divisible or drafter.following is not None:
        return False
    return without[request] > 0 and drafter.backlog(request) <= ROUTINE


def _both(gains: np.ndarray, other: float) -> np.ndarray:
    """The tokens expected of drafts together with one that promises `other`; [sizes] each. The
    lesser one counts where the better misses: at once, if E are expected of it, about once in
    1 + E."""
    better = np.maximum(gains, other)
    return better + BESIDE * np.minimum(gains, other) / (1 + better)


def _sizes(drafter: Drafter, longest: int, outlines: list[Shape]) -> list[Size]:
    if not outlines:
        counts = range(1, longest + 1) if drafter.divisible else [longest]
        return [Size(nodes, drafter.depth(nodes)) for nodes in counts]
    return [
        Size(nodes, depth)
        for depth, shape in enumerate(outlines, 1)
        for nodes in BRANCHING
        if depth <= nodes <= len(shape)
    ]
