"""Rows of many sequences in passes of few rows: nothing is lost, and every path stays the same."""

from array import array
from collections.abc import Iterable

from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.core.tree import depths_of, path_to
from outrider.model.blocks import Piece, cut_into_passes
from outrider.model.segment import Choosing, Segment

CHOOSING = Choosing(temperature=1.0, seed=1, sample=0, position=30)


def made(context: int, pending: int, below: list[int], complete: bool, first: int) -> Segment:
    """As an engine makes them: a chain, and a tree below its last row. below: parents in it, modulo
    what is there already."""
    parents = list(range(-1, pending - 1))
    for node, parent in enumerate(below):
        parents.append(pending - 1 + parent % (node + 1))
    n = len(parents)
    before = array("q", range(first, first + context))
    slots = array("q", range(first + context, first + context + n))
    logits_from = pending - 1 if complete else n
    return Segment(
        [slot + 7 for slot in slots], parents, slots, before, logits_from, f"{first}", CHOOSING
    )


PLANS = st.lists(
    st.one_of(
        st.tuples(st.integers(0, 20), st.integers(1, 200), st.just([]), st.booleans()),
        st.tuples(
            st.integers(0, 20),
            st.integers(1, 9),
            st.lists(st.integers(0, 300), max_size=70),
            st.just(True),
        ),
    ),
    min_size=1,
    max_size=6,
)


def paths(segment: Segment, rows: Iterable[int]) -> list[list[int]]:
    """The slots of each row's path."""
    before, slots, parents = list(segment.context), segment.slots, segment.parents
    return [before + [slots[i] for i in path_to(row, parents)] for row in rows]


def output_positions(segment: Segment) -> list[int]:
    """Of the rows with logits, as inputs.py has it."""
    assert segment.choosing is not None
    if segment.logits_from == len(segment):
        return []
    depths = depths_of(segment.parents)
    base = depths[segment.logits_from]
    return [segment.choosing.position + max(0, d - base) for d in depths[segment.logits_from :]]


def check_piece(piece: Piece, whole: Segment, position_of: dict[int, int]) -> None:
    segment, rows = piece.segment, piece.rows
    assert rows == sorted(rows) and len(rows) == len(segment)
    assert segment.tokens == [whole.tokens[row] for row in rows]
    assert paths(segment, range(len(rows))) == paths(whole, rows)
    wanted = rows[segment.logits_from :]
    assert wanted == [row for row in rows if row >= whole.logits_from]
    assert output_positions(segment) == [position_of[row] for row in wanted]
    assert segment.owner == whole.owner


@settings(deadline=None)
@given(PLANS, st.sampled_from([1, 5, 16, 64]))
def test_every_row_once_below_its_own_path(plans: list, most: int) -> None:
    segments, first = [], 1
    for context, pending, below, complete in plans:
        segments.append(made(context, pending, below, complete, first))
        first += context + len(segments[-1])
    passes = cut_into_passes(segments, most)
    written: set[int] = set()
    seen: list[tuple[int, int]] = []
    known = [
        dict(
            zip(range(s.logits_from, len(s)), output_positions(s) if len(s) > s.logits_from else [])
        )
        for s in segments
    ]
    for pieces in passes:
        assert pieces and sum(len(piece.rows) for piece in pieces) <= most
        assert len({piece.source for piece in pieces}) == len(pieces)
        for piece in pieces:
            whole = segments[piece.source]
            check_piece(piece, whole, known[piece.source])
            # What has become context was written by a pass before.
            assert set(piece.segment.context) - set(whole.context) <= written
            seen += [(piece.source, row) for row in piece.rows]
        written |= {slot for piece in pieces for slot in piece.segment.slots}
    assert sorted(seen) == [(i, row) for i, s in enumerate(segments) for row in range(len(s))]


def test_passes_are_full_while_prompts_are_read() -> None:
    """Whatever their lengths; and a small tree is not cut."""
    prompts = [made(0, n, [], True, 1000 * n) for n in (130, 70, 45)]
    tree = made(9, 1, [0, 0, 1], True, 1)
    sizes = [sum(len(p.rows) for p in pieces) for pieces in cut_into_passes([tree, *prompts], 64)]
    assert sizes == [64, 64, 64, 57]
