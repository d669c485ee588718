from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.core.tree import ROOT, TokenTree
from outrider.drafters.merging import merge, unite
from outrider.engine.policy.choice import MARGIN, choose_nodes

STAIRCASE = np.array([10, 15, 15, 15, 15, 16, 24, 24, 25, 26, 40, 41, 42, 43, 44, 45.0])


def seconds(rows: int, more: int) -> np.ndarray:
    return STAIRCASE[rows - 1 : rows + more].copy()


@st.composite
def trees(draw: st.DrawFn) -> list[tuple[list[int], list[float]]]:
    """(parents, path chances) of a few small trees."""
    found = []
    for _ in range(draw(st.integers(1, 3))):
        parents: list[int] = []
        chances: list[float] = []
        for node in range(draw(st.integers(0, 4))):
            parent = draw(st.integers(ROOT, node - 1))
            own = draw(st.floats(0.01, 1.0))
            parents.append(parent)
            chances.append(own * (1.0 if parent == ROOT else chances[parent]))
        found.append((parents, chances))
    return found


@settings(max_examples=60, deadline=None)
@given(trees(), st.integers(0, 12))
def test_no_other_set_of_nodes_promises_more(
    drawn: list[tuple[list[int], list[float]]], room: int
) -> None:
    count = len(drawn)
    choice = choose_nodes([chances for _, chances in drawn], count, count, room, seconds)

    def speed(chosen: tuple[tuple[int, int], ...]) -> float:
        """The geometric mean over the requests."""
        product = 1.0
        for t, (_, chances) in enumerate(drawn):
            product *= 1 + sum(chances[node] for tree, node in chosen if tree == t)
        return product ** (1 / count) / float(seconds(count + len(chosen), 0)[0])

    nodes = [(t, node) for t, (parents, _) in enumerate(drawn) for node in range(len(parents))]
    plain = best = speed(())
    for size in range(min(room, len(nodes)) + 1):
        for chosen in combinations(nodes, size):
            if all(
                drawn[t][0][node] == ROOT or (t, drawn[t][0][node]) in chosen for t, node in chosen
            ):
                best = max(best, speed(chosen))
    assert choice.speed == pytest.approx(best if best >= (1 + MARGIN) * plain else plain)
    kept = tuple((t, node) for t, own in enumerate(choice.kept) for node in own)
    assert choice.speed == pytest.approx(speed(kept))
    for (parents, _), kept in zip(drawn, choice.kept, strict=True):
        assert all(parents[node] == ROOT or parents[node] in kept for node in kept)
    assert sum(map(len, choice.kept)) <= room


def test_many_nodes_may_pay_where_one_does_not() -> None:
    """The first node costs 50 %, the next three nothing."""
    chain = [0.4, 0.4, 0.4, 0.4]
    assert choose_nodes([chain[:1]], 1, 1, 8, seconds).kept == [[]]
    assert choose_nodes([chain], 1, 1, 8, seconds).kept == [[0, 1, 2, 3]]


def test_one_that_copies_does_not_hold_up_seven_that_do_not() -> None:
    """Six nodes make the pass 2.4 times as long: worth it for one alone, not for eight."""
    copying = [0.99] * 6
    assert len(choose_nodes([copying], 1, 1, 8, seconds).kept[0]) >= 5
    eight = [copying, *([[]] * 7)]
    costly = choose_nodes(eight, 8, 1, 8, seconds)
    assert len(costly.kept[0]) == 0


def test_no_proposals_are_no_choice() -> None:
    assert choose_nodes([], 3, 3, 8, seconds).kept == []
    assert choose_nodes([[], [0.9]], 2, 2, 0, seconds).kept == [[], []]


def test_merged_trees_share_what_they_agree_on() -> None:
    one = TokenTree([1, 2, 3], [-1, 0, 1], "a")
    two = TokenTree([1, 2, 4, 5], [-1, 0, 1, -1], "b")
    tree, origins = unite([one, two])
    assert tree.tokens == [1, 2, 3, 4, 5]
    assert tree.parents == [-1, 0, 1, 1, -1]
    assert origins == [{0: 0, 1: 0}, {0: 1, 1: 1}, {0: 2}, {1: 2}, {1: 3}]
    assert tree.source == "a+b"


def test_merged_trees_keep_to_the_budget_by_the_likeliest_nodes() -> None:
    one = TokenTree([1, 2, 3], [-1, 0, 1], "a")
    two = TokenTree([1, 2, 4, 5], [-1, 0, 1, -1], "b")
    tree = merge([one, two], [[0.9, 0.5, 0.2], [0.8, 0.7, 0.6, 0.1]], 3)
    assert (tree.tokens, tree.parents) == ([1, 2, 4], [-1, 0, 1])


@given(st.lists(st.lists(st.integers(0, 2), max_size=4), min_size=1, max_size=4))
def test_a_text_runs_as_far_through_the_union_as_through_the_best_part(
    chains: list[list[int]],
) -> None:
    parts = [TokenTree.chain(tokens, f"{i}") for i, tokens in enumerate(chains)]
    union = merge(parts, [[0.5] * len(part) for part in parts], 16)
    for text in chains:
        reached = max(len(part.follow(text)) for part in parts)
        assert len(union.follow(text)) == reached
