"""What may be asked of a drafter that costs time, and what it promises."""

from outrider.core.request import Request
from outrider.core.tree import TokenTree
from outrider.drafters.base import Drafter
from outrider.drafters.shapes import Shape
from outrider.engine.policy.offer import Outlook, Size
from outrider.engine.policy.policy import Policy

BRANCHING = (1, 2, 3, 4, 6, 8, 12, 16)  # nodes of trees of one depth that are told apart


def prospects(
    policy: Policy,
    drafter: Drafter,
    batch: list[Request],
    budget: dict[Request, int],
    without: dict[Request, float],
    proposed: dict[Request, TokenTree],
) -> tuple[list[Size], list[Outlook]]:
    """The drafts that the drafter may be asked for, and what requests may expect of them; `without`
    says what they may expect of what is `proposed` already."""
    rooms = [min(budget[request], drafter.longest) for request in batch]
    outlines = drafter.outlines(max(rooms))
    sizes = _sizes(drafter, max(rooms), outlines)
    seen = policy.seen(batch, drafter.name)
    promised = [without[request] for request in batch]
    gains = policy.gains(batch, drafter.name, sizes, outlines, rooms, promised)
    return sizes, [
        Outlook(own, without[request], room, len(proposed.get(request, ())), drafts)
        for request, own, room, drafts in zip(batch, gains, rooms, seen, strict=True)
    ]


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
