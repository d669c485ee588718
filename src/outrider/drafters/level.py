"""The rows of one level of a request's tree, as the draft model computes them."""

from array import array
from typing import NamedTuple

from outrider.drafters.growth import Draft
from outrider.model.segment import Segment

# Attention reads the whole text once per sequence. Computing a row again costs about as much as
# reading so many tokens of text once more (measured with a model of 135M parameters).
ROW_IN_TOKENS = 400


class Level(NamedTuple):
    """Rows of one draft's level that are computed as one sequence."""

    draft: Draft
    segment: Segment
    nodes: list[int]  # of each row


def level_segments(draft: Draft) -> list[Segment]:
    return [level.segment for level in level_rows(draft)]


def level_rows(draft: Draft, first: int = 0) -> list[Level]:
    """Segments with one row of logits per node of the frontier, in its order. Of the text, the
    drafter has entries from token `first` on.

    What the nodes' paths have computed already is hidden from each other's rows. So every node is a
    sequence of its own, the text and its path; or, where that would read a long text too often,
    all are one sequence in which the nodes above are computed once more.
    """
    request = draft.request
    text = (request.slots + request.reserved[: request.pending])[first:]
    nodes = request.reserved[request.pending :]
    paths = [draft.path(node) for node in draft.frontier]
    above = list(dict.fromkeys(node for path in paths for node in path[:-1]))  # parents first
    if len(above) * ROW_IN_TOKENS <= (len(paths) - 1) * len(text):
        rows = above + draft.frontier
        index = {node: i for i, node in enumerate(rows)}
        segment = Segment(
            [draft.tokens[node] for node in rows],
            [index.get(draft.parents[node], -1) for node in rows],
            array("q", [nodes[draft.place(node)] for node in rows]),
            text,
            logits_from=len(above),
        )
        return [Level(draft, segment, rows)]
    levels = []
    for path in paths:
        slots = array("q", [nodes[draft.place(node)] for node in path])
        segment = Segment.chain(
            [draft.tokens[path[-1]]], slots[-1:], text + slots[:-1], logits_from=0
        )
        levels.append(Level(draft, segment, path[-1:]))
    return levels
