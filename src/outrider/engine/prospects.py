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
    budget: dict[Request, int],
    backlogs: dict[Request, int],
    without: dict[Request, float],
    proposed: dict[Request, TokenTree],
    promised: dict[Request, float],
) -> tuple[list[Size], list[Outlook]]:
    """The drafts that the drafter may be asked for, and what requests may expect of them:
    `backlogs` says which, and what it must read of each first; `without`, what they may expect of
    what is `proposed` already; `promised`, what lookups promise."""
    batch = list(backlogs)
    rooms = [min(budget[request], drafter.longest) for request in batch]
    outlines = drafter.outlines(max(rooms))
    sizes = _sizes(drafter, max(rooms), outlines)
    seen = policy.seen(batch, drafter.name)
    found = [promised.get(request, 0.0) for request in batch]

    def expected(hopeful: bool) -> np.ndarray:
        """[requests, sizes]"""
        gains = policy.gains(batch, drafter.name, sizes, outlines, rooms, found, hopeful)
        if not _joins(drafter):
            return gains
        read = np.array([backlogs[request] <= ROUTINE for request in batch])
        others = np.array([without[request] for request in batch])[:, None]
        # For so little as it adds to others, no prompt is read.
        return np.where(read[:, None], _both(gains, others), gains)

    hoped = expected(hopeful=True) if policy.curious(drafter.name, seen) else [None] * len(batch)
    return sizes, [
        Outlook(own, without[request], room, len(proposed.get(request, ())), drafts, hope)
        for request, own, room, drafts, hope in zip(
            batch, expected(hopeful=False), rooms, seen, hoped, strict=True
        )
    ]


def _joins(drafter: Drafter) -> bool:
    """Whether its draft may be one of two. Drafts that are drawn, or follow each other on a device,
    are checked alone."""
    drawn = drafter.config.verification != "coupled"
    return not drawn and drafter.divisible and drafter.following is None


def _both(gains: np.ndarray, others: np.ndarray) -> np.ndarray:
    """The tokens expected of drafts [requests, sizes] together with what promises so many `others`
    [requests, 1]. The lesser one counts where the better misses: at once, if E are expected of it,
    about once in 1 + E."""
    better = np.maximum(gains, others)
    return better + BESIDE * np.minimum(gains, others) / (1 + better)


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
