"""Many rows by graphs for few: passes one after the other that land as one."""

from collections.abc import Callable

import torch
from torch import Tensor

from outrider.model.blocks import cut_into_passes
from outrider.model.cuda.graphs import Graphs
from outrider.model.flight import Flight
from outrider.model.segment import Segment


def launch_in_blocks(graphs: Graphs, segments: list[Segment]) -> Flight:
    """What one pass over all rows would give. Tokens of all passes but the last have been waited
    for, each time with the next one under way."""
    assert all(token >= 0 for s in segments for token in s.tokens), "its choices are overwritten"
    logits: list[Tensor] = []
    tokens: list[int] = []
    wanted: list[tuple[int, int]] = []  # segment and row of each of them
    landed: Callable[[], list[int]] | None = None
    for pieces in cut_into_passes(segments, graphs.most_rows):
        flight = graphs.launch([piece.segment for piece in pieces])
        if landed is not None:
            tokens += landed()
        landed = flight.landed
        logits.append(flight.logits.clone())  # the next pass of that size writes where this one did
        wanted += [
            (piece.source, row)
            for piece in pieces
            for row in piece.rows[piece.segment.logits_from :]
        ]
    order = sorted(range(len(wanted)), key=wanted.__getitem__)  # that of the segments
    found = torch.cat(logits)
    if order != list(range(len(order))):
        found = found[torch.tensor(order, device=graphs.device)]
    last = landed

    def all_landed() -> list[int]:
        chosen = tokens + (last() if last is not None else [])
        return [chosen[i] for i in order]

    return Flight(found, all_landed, hands_on=False)
