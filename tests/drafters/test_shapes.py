"""Shapes are the best there are: held against every tree there is, and against Sequoia's own
dynamic programme."""

from collections.abc import Callable, Iterator
from functools import cache
from time import perf_counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.core.errors import ConfigError
from outrider.drafters.shapes import (
    Shape,
    best_shape,
    chain,
    chances,
    described,
    fastest_shape,
)

ACCEPTANCE = {
    "usual": [0.7, 0.12, 0.05, 0.02],
    "hopeless": [0.05, 0.04, 0.03],
    "flat": [0.25, 0.25, 0.25, 0.25],
    "sure": [1.0, 0.0],
    "single": [0.6],
    "steep": [0.9, 0.09, 0.009],
}
COSTS: dict[str, Callable[[int], float]] = {
    "by row": lambda rows: 1.0 + 0.1 * rows,
    "free rows": lambda rows: 1.0,
    "stairs": lambda rows: 1.0 + (rows - 1) // 4,
    "dear": lambda rows: float(rows),
}


@cache
def trees(nodes: int, depth: int, ranks: int) -> list[Shape]:
    """Every tree of exactly so many nodes: `parents` in all orders that keep parents first."""

    def grow(parents: list[int], depths: list[int]) -> Iterator[Shape]:
        if len(parents) == nodes:
            yield Shape(tuple(parents))
            return
        for parent in range(-1, len(parents)):
            at = 1 if parent == -1 else depths[parent] + 1
            if at <= depth and parents.count(parent) < ranks:
                yield from grow([*parents, parent], [*depths, at])

    return list(grow([], []))


def value(shape: Shape, acceptance: list[float]) -> float:
    return sum(chances(shape, acceptance))


@pytest.mark.parametrize("name", ACCEPTANCE)
@pytest.mark.parametrize("depth", [1, 2, 3, 7])
def test_no_tree_is_expected_to_have_more_accepted(name: str, depth: int) -> None:
    acceptance = ACCEPTANCE[name]
    for nodes in range(1, 7):
        everything = trees(nodes, depth, len(acceptance))
        found = best_shape(acceptance, nodes, depth)
        assert max(found.depths) <= depth and len(found) <= nodes
        if everything:  # a depth of 1 with few ranks has no tree of many nodes
            best = max(value(shape, acceptance) for shape in everything)
            assert value(found, acceptance) == pytest.approx(best, abs=1e-12)
            assert len(found) == nodes


def test_seven_nodes_against_every_tree() -> None:
    for name in ("usual", "flat"):
        for depth in (2, 7):
            best = max(value(shape, ACCEPTANCE[name]) for shape in trees(7, depth, 4))
            found = value(best_shape(ACCEPTANCE[name], 7, depth), ACCEPTANCE[name])
            assert found == pytest.approx(best, abs=1e-12)


def sequoia(acceptance: list[float], nodes: int, depth: int) -> float:
    """The paper's recurrence: the best value of a tree, by how its nodes are dealt out among the
    children of the root, one rank after the other."""

    @cache
    def below(left: int, deep: int, rank: int) -> float:
        if left == 0 or deep == 0 or rank == len(acceptance):
            return 0.0
        return max(
            (acceptance[rank] * (1 + below(given - 1, deep - 1, 0)) if given else 0.0)
            + below(left - given, deep, rank + 1)
            for given in range(left + 1)
        )

    return below(nodes, depth, 0)


falling = st.lists(st.floats(0, 1), min_size=1, max_size=5).map(lambda a: sorted(a, reverse=True))


@settings(max_examples=150, deadline=None, derandomize=True)
@given(falling, st.integers(1, 20), st.integers(1, 6))
def test_the_value_is_that_of_sequoias_programme(a: list[float], nodes: int, depth: int) -> None:
    found = value(best_shape(a, nodes, depth), a)
    assert found == pytest.approx(sequoia(a, nodes, depth), abs=1e-9)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(falling, st.integers(1, 12), st.integers(1, 5), st.integers(1, 12))
def test_the_beginning_of_a_best_shape_is_the_best_small_one(
    a: list[float], nodes: int, depth: int, fewer: int
) -> None:
    small = best_shape(a, nodes, depth).cut(fewer, depth)
    assert value(small, a) == pytest.approx(value(best_shape(a, min(nodes, fewer), depth), a))


@pytest.mark.parametrize("cost", COSTS)
@pytest.mark.parametrize("name", ACCEPTANCE)
@pytest.mark.parametrize("level", [0.0, 0.3])
def test_no_tree_is_faster(name: str, cost: str, level: float) -> None:
    acceptance, seconds = ACCEPTANCE[name], COSTS[cost]

    def rate(shape: Shape) -> float:
        spent = seconds(1 + len(shape)) + level * max(shape.depths)
        return (1 + value(shape, acceptance)) / spent

    everything = [s for nodes in range(1, 6) for s in trees(nodes, 3, len(acceptance))]
    found = fastest_shape(acceptance, 5, 3, seconds, level)
    assert max(found.depths) <= 3
    assert rate(found) == pytest.approx(max(map(rate, everything)), abs=1e-12)


def test_costs_decide_size_and_depth() -> None:
    a = ACCEPTANCE["usual"]
    assert len(fastest_shape(a, 16, 8, COSTS["dear"], 1.0)) == 1
    assert len(fastest_shape(a, 16, 8, COSTS["free rows"], 0.0)) == 16
    assert max(fastest_shape(a, 16, 8, COSTS["free rows"], 0.5).depths) < 8


def test_large_shapes_take_no_time() -> None:
    a = [0.6 / (rank + 1) ** 2 for rank in range(16)]
    start = perf_counter()
    assert len(best_shape(a, 64, 16)) == 64
    assert perf_counter() - start < 0.1
    start = perf_counter()
    fastest_shape(a, 64, 16, COSTS["by row"], 0.2)
    assert perf_counter() - start < 0.5  # asked once in many steps


# ---- shapes that are described ----


def test_branching_factors() -> None:
    shape = described([2, 2])
    assert len(shape) == 6
    assert shape.children == {-1: [0, 2], 0: [1, 3], 2: [4, 5]}
    assert shape.depths == [1, 2, 1, 2, 2, 2]
    assert shape.ranks == [0, 0, 1, 1, 0, 1]


def test_paths_in_any_order() -> None:
    assert described([[0, 0], [1], [0], [0, 1], [2]]) == described([[0], [0, 0], [1], [0, 1], [2]])
    assert described([[0], [1], [2], [0, 0]]).parents == (-1, 0, -1, -1)


@pytest.mark.parametrize(
    ("nodes", "parents"),
    [(1, (-1,)), (3, (-1, 0, 1)), (4, (-1, 0, 1, -1)), (5, (-1, 0, 1, -1, 0)), (99, None)],
)
def test_a_cut_takes_first_guesses_first(nodes: int, parents: tuple[int, ...] | None) -> None:
    shape = described([3, 2, 1])
    assert len(shape) == 15
    assert shape.cut(nodes, 9).parents == (shape.parents if parents is None else parents)


def test_a_cut_in_depth_leaves_no_orphans() -> None:
    shape = described([3, 2, 1])
    assert shape.cut(99, 2) == described([3, 2])
    assert shape.cut(4, 1).parents == (-1, -1, -1)
    assert len(shape.cut(5, 0)) == len(shape.cut(0, 5)) == 0
    assert chain(4).cut(9, 2) == chain(2)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.integers(0, 30), st.integers(0, 4))
def test_cuts_are_trees_within_their_limits(factors: list[int], nodes: int, depth: int) -> None:
    shape = described(factors)
    found = shape.cut(nodes, depth)
    assert len(found) == min(nodes, sum(d <= depth for d in shape.depths))
    assert all(-1 <= parent < node for node, parent in enumerate(found.parents))
    assert max(found.depths, default=0) <= depth


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ("bushy", "must be a list"),
        ([], "not empty"),
        ([2, 0], "factors of at least 1"),
        ([2, True], "factors of at least 1"),
        ([1.5], "factors of at least 1"),
        ([[0], []], "paths of ranks"),
        ([[0], [-1]], "paths of ranks"),
        ([[0], [0, 0, 0]], r"\[0, 0, 0\] without its parent \[0, 0\]"),
        ([[0], [2]], r"\[2\] without its sibling \[1\]"),
        ([[0], [0]], "names a path twice"),
        ([9, 9, 9, 9], "more than 1024 nodes"),
    ],
)
def test_what_is_no_tree_is_refused(tree: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        described(tree)
