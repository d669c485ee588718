"""Grouping and masks against the visible keys of every row, computed one row at a time."""

import random
from array import array

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.model import segment as segment_module
from outrider.model.attention import LayerKV, Pass
from outrider.model.segment import CALL, READING, WHOLE, Group, Segment, group_segments

WINDOWS = [None, 1, 3, 8, 200]


def make_segments(shapes: list[tuple[int, int]], seed: int) -> list[Segment]:
    """One segment per (context length, rows): a chain, then a random tree; shuffled slots."""
    rng = random.Random(seed)
    wanted = sum(context + rows for context, rows in shapes)
    slots = rng.sample(range(1, max(2000, 2 * wanted)), wanted)
    segments = []
    for context, rows in shapes:
        own = array("q", [slots.pop() for _ in range(context + rows)])
        chain = rng.randrange(rows + 1)
        parents = [i - 1 if i < chain else rng.randrange(-1, i) for i in range(rows)]
        segments.append(Segment([7] * rows, parents, own[context:], own[:context], 0))
    return segments


def path(segment: Segment, row: int) -> list[int]:
    """Slots of everything row `row` continues, its own last: the naive truth."""
    parent = segment.parents[row]
    before = list(segment.context) if parent < 0 else path(segment, parent)
    return [*before, segment.slots[row]]


def visible_slots(groups: list[Group], window: int | None) -> dict[int, list[int]]:
    """Packed row -> the slots it may see, in key order."""
    seen: dict[int, list[int]] = {}
    for group in groups:
        mask = group.mask(window).flatten(0, 1)  # [sequences * queries, keys]
        for place, row in zip(group.real.tolist(), group.real_rows.tolist(), strict=True):
            assert row not in seen
            seen[row] = group.slots[place // group.rows.shape[1]][mask[place]].tolist()
    return seen


shapes = st.lists(
    st.tuples(st.one_of(st.integers(0, 12), st.integers(110, 140)), st.integers(1, 9)),
    min_size=1,
    max_size=5,
)


@settings(max_examples=40, deadline=None)
@given(shapes, st.integers(0, 10**6))
def test_every_row_sees_its_path_and_nothing_else(shapes, seed):
    segments = make_segments(shapes, seed)
    paths = [path(segment, row) for segment in segments for row in range(len(segment))]
    for window in WINDOWS:
        seen = visible_slots(group_segments(segments), window)
        assert sorted(seen) == list(range(len(paths)))  # every packed row, once
        for row, expected in enumerate(paths):
            assert sorted(seen[row]) == sorted(expected if window is None else expected[-window:])


@settings(max_examples=40, deadline=None)
@given(shapes, st.integers(0, 10**6))
def test_positions_are_the_lengths_of_the_paths(shapes, seed):
    for segment in make_segments(shapes, seed):
        lengths = [len(path(segment, row)) for row in range(len(segment))]
        assert segment.positions == [length - 1 for length in lengths]


def paid(groups: list[Group]) -> int:
    """What their calls take, in pairs of query and key."""
    return sum(
        CALL + group.slots.numel() * (READING + group.rows.shape[1])
        for group in groups  # [parts, keys] slots, each read for all queries of its part
    )


large = st.tuples(st.integers(0, 1500), st.one_of(st.integers(1, 12), st.integers(1, 120)))


@settings(max_examples=60, deadline=None)
@given(st.lists(large, min_size=2, max_size=8), st.integers(0, 10**6))
def test_calls_take_no_more_than_one_for_all_nor_than_two_by_rows(shapes, seed):
    segments = make_segments(shapes, seed)

    def padded(some: list[Segment]) -> int:
        """One call, each as long as the longest."""
        rows = max(map(len, some))
        return CALL + len(some) * max(len(s.context) + len(s) for s in some) * (READING + rows)

    found = paid(group_segments(segments))
    assert found <= padded(segments)
    for length in set(map(len, segments)):
        short = [segment for segment in segments if len(segment) <= length]
        long = [segment for segment in segments if len(segment) > length]
        assert not long or found <= padded(short) + padded(long)


def test_many_prompts_of_different_length_are_few_calls_soon(monkeypatch):
    """Trying all lengths would price a thousand calls, each the longer the more lengths it has."""
    priced = []
    price = segment_module._price
    monkeypatch.setattr(segment_module, "_price", lambda call: priced.append(call) or price(call))
    segments = make_segments([(0, rows) for rows in range(2, 110)], 0)
    assert 2 < len(group_segments(segments)) < 20
    assert len(priced) < 500


@pytest.mark.parametrize("window", WINDOWS)
def test_no_query_is_without_a_key_not_even_padding(window):
    segments = make_segments([(0, 1), (5, 3), (11, 4), (130, 3)], seed=0)
    for group in group_segments(segments):
        assert group.mask(window).any(-1).all()


def sizes(shapes: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Per call: how many parts, and of how many rows."""
    return [tuple(group.rows.shape) for group in group_segments(make_segments(shapes, 0))]


def test_similar_sequences_share_a_call_and_different_ones_do_not():
    assert sizes([(40, 1), (90, 1), (190, 1)]) == [(3, 1)]
    assert sizes([(240, 2)] * 4 + [(280, 2)] * 2) == [(6, 2)]
    assert sizes([(90, 1)] * 7 + [(1200, 1)]) == [(7, 1), (1, 1)]
    assert sizes([(90, 1)] * 7 + [(90, 300)]) == [(7, 1), (1, 300)]


def test_one_tree_does_not_make_many_texts_as_long_as_itself():
    assert sizes([(120, 1)] * 12 + [(120, 5), (120, 3)]) == [(20, 1)]
    assert sizes([(120, 1)] * 12) == [(12, 1)]
    assert sizes([(80, n) for n in (1, 1, 2, 3, 4, 6, 7, 8)]) == [(11, 4)]
    assert sizes([(240, 2)] * 4 + [(240, 8), (240, 1)]) == [(9, 2)]
    assert sizes([(220, n) for n in (1, 1, 1, 1, 1, 1, 9, 9)]) == [(6, 1), (2, 9)]
    assert sizes([(220, 17)]) == [(1, 17)]


def test_attention_in_groups_is_attention_one_by_one():
    shapes = [(7, 3), *[(95, 1)] * 15, (300, 2), (9, 12), (95, 1), (40, 6)]
    segments = make_segments(shapes, 3)
    rows = sum(map(len, segments))
    torch.manual_seed(0)
    memory = LayerKV(torch.randn(4000, 2, 16), torch.randn(4000, 2, 8))
    query, asked = torch.randn(rows, 6, 16), (None, None, None)
    together = Pass(torch.zeros(rows), group_segments(segments))
    assert len(together.groups) > 1
    assert sum(len(group.rows) for group in together.groups) > len(segments)  # in parts
    alone, first = [], 0
    for segment in segments:
        own = Pass(torch.zeros(len(segment)), group_segments([segment]))
        alone.append(own.attend(query[first : first + len(segment)], memory, 0.3, asked))
        first += len(segment)
    assert torch.allclose(together.attend(query, memory, 0.3, asked), torch.cat(alone), atol=1e-5)


def test_padding_rows_are_not_written_back():
    (group,) = group_segments(make_segments([(2, 3), (2, 4)], 0))
    assert group.rows.numel() == 8
    assert sorted(group.real_rows.tolist()) == list(range(7))


def test_a_window_mask_is_computed_once():
    (group,) = group_segments(make_segments([(9, 2)], 0))
    assert group.mask(4) is group.mask(4)
    assert not torch.equal(group.mask(4), group.mask(None))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_added_to_scores_is_the_mask_and_computed_once(dtype):
    group = group_segments(make_segments([(9, 2), (3, 4)], 0))[0]
    added = group.added(4, 2, dtype)
    assert added is group.added(4, 2, dtype) and added.dtype == dtype
    assert torch.equal(added == 0, group.mask(4, 2))
    assert torch.equal(added == -torch.inf, ~group.mask(4, 2))


def test_moving_a_group_keeps_its_masks():
    (group,) = group_segments(make_segments([(9, 2)], 0))
    moved = group.to(torch.device("cpu"))
    assert all(torch.equal(moved.mask(w), group.mask(w)) for w in WINDOWS)


def test_a_long_text_from_its_start_is_a_group_of_its_own_and_needs_no_mask():
    segments = make_segments([(7, 3)], 0)
    slots = array("q", range(500, 500 + WHOLE))
    segments.append(Segment.chain([7] * WHOLE, slots, array("q"), 0))
    groups = group_segments(segments)
    assert [group.visible is None for group in groups] == [True, False]
    for window in WINDOWS:
        seen = visible_slots(groups, window)
        for row in range(WHOLE):
            expected = list(slots[: row + 1])
            assert seen[3 + row] == (expected if window is None else expected[-window:])
    shorter = Segment.chain([7] * (WHOLE - 1), slots[1:], array("q"), 0)
    continued = Segment.chain([7] * WHOLE, slots, array("q", [3]), 0)
    assert all(group.visible is not None for group in group_segments([shorter, continued]))


@pytest.mark.parametrize("others", [[], [(7, 3), (20, 1)]])
def test_attention_without_a_mask_is_attention_with_it(others, monkeypatch):
    segments = make_segments(others, 1)
    first = sum(context + rows for context, rows in others) + 2000
    slots = array("q", range(first, first + WHOLE + 5))
    segments.insert(len(segments) // 2, Segment.chain([7] * len(slots), slots, array("q"), 0))
    rows = sum(map(len, segments))
    torch.manual_seed(0)
    memory = LayerKV(torch.randn(2200, 2, 16), torch.randn(2200, 2, 8))
    query = torch.randn(rows, 6, 16)
    step = Pass(torch.zeros(rows), group_segments(segments))
    found = step.attend(query, memory, 0.3, (None, None, None))
    monkeypatch.setattr("outrider.model.segment.WHOLE", 10**6)
    masked = Pass(torch.zeros(rows), group_segments(segments))
    assert all(group.visible is not None for group in masked.groups)
    torch.testing.assert_close(found, masked.attend(query, memory, 0.3, (None, None, None)))
