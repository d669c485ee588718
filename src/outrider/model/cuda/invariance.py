"""Whether a row's bits show what else was in its pass; tried out once, at load.

One text, read again and again: as one chunk, row by row, beside others, as a path of a tree. All
that a compiler or a driver could make of the kernels is not known, so this looks at what they do.
"""

from array import array

import torch
from torch import Tensor

from outrider.model.cuda.graphs import Graphs
from outrider.model.segment import Segment

# Slots 1 to 70 hold the text; from 71 on its tokens are read again.
LENGTH, FIRST = 70, 60  # more than one part of the attention; its first chunk
AGAIN, SPARE = 71, 111  # slots
TOKENS = [(11 * i + 5) % 97 for i in range(LENGTH)]
TEXT = array("q", range(1, LENGTH + 1))


def check_bits(graphs: Graphs) -> None:
    """Raises RuntimeError where they do. Slots 1 to 128 must be unused."""
    first = _logits(graphs, [_chain(0, FIRST, TEXT[:FIRST], array("q"))])
    rest = _logits(graphs, [_chain(FIRST, LENGTH, TEXT[FIRST:], TEXT[:FIRST])])
    known = torch.cat([first, rest])  # [LENGTH, vocabulary]
    for start, end in ((0, 40), (FIRST, LENGTH)):
        _expect(_row_by_row(graphs, start, end), known[start:end], "read row by row")
    _expect(_beside_others(graphs), known[[39, 64, 69]], "beside other rows")
    _expect(_in_a_tree(graphs), known[56:62], "as a path of a tree")


def _row_by_row(graphs: Graphs, start: int, end: int) -> Tensor:
    """[rows, vocabulary] of these places, each read below what was read so just before."""
    rows, context = [], TEXT[:start]
    for place in range(start, end):
        slot = array("q", [AGAIN + place - start])
        rows.append(_logits(graphs, [_chain(place, place + 1, slot, context)]))
        context = context + slot
    return torch.cat(rows)


def _beside_others(graphs: Graphs) -> Tensor:
    """[3, vocabulary] of places 39, 64 and 69: at the end of a full pass; in the middle of a small
    one; the last of a few that are read."""
    crowd = [_chain(7, 20, array("q", range(AGAIN, AGAIN + 13)), TEXT[:7])] * 4
    crowd += [_chain(i, i + 1, array("q", [SPARE]), TEXT[:i]) for i in range(30, 41)]
    alone = _chain(39, 40, array("q", [SPARE + 1]), TEXT[:39])
    full = _logits(graphs, [*crowd, alone])[-1:]
    middle = _chain(64, 65, array("q", [SPARE + 1]), TEXT[:64])
    small = _logits(graphs, [crowd[-1], middle, crowd[-2]])[1:2]
    few = _chain(66, 70, array("q", range(SPARE + 1, SPARE + 5)), TEXT[:66])
    return torch.cat([full, small, _logits(graphs, [crowd[-1], few])[-1:]])


def _in_a_tree(graphs: Graphs) -> Tensor:
    """[6, vocabulary] of places 56 to 61: a path with other branches beside it."""
    parents = [-1, 0, 0, 1, 2, 2, 5, 6, 3, 7]
    path = [0, 2, 5, 6, 7, 9]
    tokens = [(3 * node + 1) % 89 for node in range(len(parents))]
    for place, node in enumerate(path):
        tokens[node] = TOKENS[56 + place]
    slots = array("q", range(SPARE, SPARE + len(parents)))
    return _logits(graphs, [Segment(tokens, parents, slots, TEXT[:56], logits_from=0)])[path]


def _chain(start: int, end: int, slots: array, context: array) -> Segment:
    return Segment.chain(TOKENS[start:end], slots, context, logits_from=0)


def _logits(graphs: Graphs, segments: list[Segment]) -> Tensor:
    """[rows, vocabulary]"""
    return graphs.launch(segments).logits.clone()


def _expect(got: Tensor, known: Tensor, how: str) -> None:
    if not torch.equal(got, known):
        raise RuntimeError(f"its bits differ where a text is {how}")
