"""Confidence-driven trees are the best there are: held against an exhaustive search."""

import math
import random
from collections.abc import Iterator
from itertools import combinations
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.drafters.compared import drafter_of
from tests.engine.helpers import Models, fed_back, make_llm, run

from outrider.core.params import SamplingParams
from outrider.core.request import Request
from outrider.core.tree import TokenTree
from outrider.drafters.candidates import Found
from outrider.drafters.growth import Draft, Grown, Planned, Prices, going_on, level_price
from outrider.drafters.level_times import LevelTimes
from outrider.drafters.shapes import described
from outrider.sampling.noise import Key, Purpose, noise, streams

Text = tuple[int, ...]
REQUEST = Request("r", [1], SamplingParams(), seed=0)


class Toy:
    """A model of few tokens: a random distribution after every text, sometimes all on one token."""

    def __init__(self, seed: int, vocabulary: int, steep: tuple[int, ...] = (1, 6)) -> None:
        self.seed, self.vocabulary, self.steep = seed, vocabulary, steep

    def after(self, text: Text) -> list[float]:
        rng = random.Random(f"{self.seed} {text}")
        if rng.random() < 0.1:
            return [float(token == 0) for token in range(self.vocabulary)]
        weights = [rng.random() ** rng.choice(self.steep) for _ in range(self.vocabulary)]
        return [weight / sum(weights) for weight in weights]

    def best(self, text: Text, count: int) -> Found:
        p = self.after(text)
        tokens = sorted(range(self.vocabulary), key=lambda token: -p[token])[:count]
        return Found(tokens, [p[token] for token in tokens])


def grow(draft: Draft, toy: Toy) -> tuple[TokenTree, list[int]]:
    """The tree, and how many nodes each pass held."""
    rows = []
    while draft.frontier:
        for node in list(draft.frontier):
            found = toy.best(tuple(draft.path_tokens(node)), draft.wanted(node))
            draft.add(node, found)
        draft.advance()
        rows.append(len(draft.frontier))
        check_places(draft)
    return draft.tree("toy"), rows[:-1]


def check_places(draft: Draft) -> None:
    """No two of the nodes that are still needed share a slot, and there is a slot for each."""
    needed = {at for node in draft.frontier for at in draft.path(node)}
    places = [draft.place(node) for node in needed]
    assert len(set(places)) == len(places)
    if isinstance(draft, Grown):
        assert all(0 <= place < draft.budget for place in places)


def all_trees(toy: Toy, budget: int, depth: int, least: float) -> Iterator[dict[Text, float]]:
    """Every tree of at most `budget` nodes as {path: path probability}."""

    def options(tree: dict[Text, float]) -> dict[Text, float]:
        above = {(): 1.0, **tree}
        return {
            (*path, token): chance * p
            for path, chance in above.items()
            if len(path) < depth
            for token, p in enumerate(toy.after(path))
            if (*path, token) not in tree and chance * p >= least
        }

    def extend(tree: dict[Text, float], barred: frozenset[Text]) -> Iterator[dict[Text, float]]:
        yield tree
        if len(tree) == budget:
            return
        for path, chance in sorted(options(tree).items()):
            if path not in barred:
                yield from extend({**tree, path: chance}, barred)
                barred |= {path}

    yield from extend({}, frozenset())


def paths_of(tree: TokenTree) -> list[Text]:
    return [tuple(tree.path_tokens(node)) for node in range(len(tree))]


def probability(toy: Toy, path: Text) -> float:
    chance = 1.0
    for i, token in enumerate(path):
        chance *= toy.after(path[:i])[token]
    return chance


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.integers(0, 10**6),
    st.integers(2, 3),
    st.integers(1, 4),
    st.integers(1, 3),
    st.sampled_from([0.0, 0.05]),
)
def test_no_tree_has_a_larger_sum_of_path_probabilities(
    seed: int, vocabulary: int, budget: int, depth: int, least: float
) -> None:
    toy = Toy(seed, vocabulary)
    best = max(sum(tree.values()) for tree in all_trees(toy, budget, depth, least))
    tree, _ = grow(Grown(REQUEST, budget, depth, least=least), toy)
    paths = paths_of(tree)
    assert len(tree) <= budget and max(tree.depths, default=0) <= depth
    assert len(set(paths)) == len(paths)
    assert sum(probability(toy, path) for path in paths) == pytest.approx(best, abs=1e-12)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(st.integers(0, 10**6), st.integers(2, 6), st.integers(1, 20), st.integers(1, 6))
def test_larger_trees_are_the_likeliest_nodes(
    seed: int, vocabulary: int, budget: int, depth: int
) -> None:
    """Path probabilities fall along a path, so the likeliest nodes of all are a tree."""
    toy = Toy(seed, vocabulary)
    everything: dict[Text, float] = {}
    level: dict[Text, float] = {(): 1.0}
    for _ in range(depth):
        level = {
            (*path, token): chance * p
            for path, chance in level.items()
            for token, p in enumerate(toy.after(path))
            if chance * p >= 1e-3
        }
        everything |= level
    expected = sorted(everything.values(), reverse=True)[:budget]
    tree, _ = grow(Grown(REQUEST, budget, depth, least=1e-3), toy)
    found = sorted((probability(toy, path) for path in paths_of(tree)), reverse=True)
    assert found == pytest.approx(expected, abs=1e-12)
    assert tree.confidence == pytest.approx(
        [toy.after(path[:-1])[path[-1]] for path in paths_of(tree)]
    )


def chances_of(draft: Draft) -> dict[int, float]:
    """The path probability of every node that was ever added."""
    found = {-1: 1.0}
    for node, (parent, own) in enumerate(zip(draft.parents, draft.confidence, strict=True)):
        found[node] = found[parent] * own
    return found


def timed(*seconds: float) -> LevelTimes:
    """Of levels for 1, 2, 4, … drafts."""
    times = LevelTimes()
    for bits, each in enumerate(seconds):
        times.learn(each, 1 << bits)
    return times


def test_a_level_that_is_interrupted_counts_little() -> None:
    times = timed(1.0)
    times.learn(100.0, 1)
    assert 1.0 < times.of(1) < 1.3
    times = timed(100.0)  # the first
    times.learn(1.0, 1)
    assert times.of(1) == 1.0


def grow_together(drafts: list[Draft], toys: list[Toy], times: LevelTimes) -> list[int]:
    """How many of them each level was for."""
    toy_of = dict(zip(drafts, toys, strict=True))
    active, counts = drafts, []
    while active:
        counts.append(len(active))
        for draft in active:
            for node in list(draft.frontier):
                found = toy_of[draft].best(tuple(draft.path_tokens(node)), draft.wanted(node))
                draft.add(node, found)
            draft.advance()
        active = going_on([draft for draft in active if draft.frontier], times)
    return counts


@settings(max_examples=80, deadline=None, derandomize=True)
@given(
    st.integers(0, 10**6),
    st.floats(0.0, 2.0),
    st.floats(0.0, 0.05),
    st.sampled_from([0.6, 1.0]),
    st.sampled_from([0.0, 3.0]),
)
def test_a_level_is_worth_the_seconds_that_its_tokens_would_take(
    seed: int, second: float, row: float, holds: float, promised: float
) -> None:
    toy = Toy(seed, 6)
    draft = Grown(REQUEST, 12, 6, Prices(second, row, holds, promised))
    while draft.frontier:
        for node in list(draft.frontier):
            draft.add(node, toy.best(tuple(draft.path_tokens(node)), draft.wanted(node)))
        draft.advance()
        chance = chances_of(draft)
        tree = draft.tree("toy")
        written = 1 + promised + sum(probability(toy, path) for path in paths_of(tree))
        gained = holds * sum(chance[node] for node in draft.frontier)
        assert all(chance[node] >= row * written for node in draft.frontier)
        if draft.frontier:
            paid = len(draft.frontier) * max(0.01, row * written)
            worth = (gained - paid) / (second * written) if second else math.inf
            assert draft.next_level == pytest.approx(worth)
    floor = row * (1 + promised)
    unasked = [path for path in paths_of(draft.tree("toy")) if probability(toy, path) < floor]
    assert len(unasked) <= 1 and all(len(path) == 1 for path in unasked)  # the first guess


@pytest.mark.parametrize("seed", range(30))
def test_dearer_levels_and_rows_make_smaller_trees(seed: int) -> None:
    """Down to a single level, which the policy has decided on; and prices of nothing change
    nothing."""
    toy = Toy(seed, 6, steep=(4,))

    def grown(second: float, row: float) -> TokenTree:
        draft = Grown(REQUEST, 12, 6, Prices(second, row))
        grow_together([draft], [toy], timed(1.0))
        return draft.tree("toy")

    free = grow(Grown(REQUEST, 12, 6), toy)[0]
    assert paths_of(grown(0.0, 0.0)) == paths_of(free)
    depths = [max(grown(second, 0.0).depths) for second in (0.0, 0.1, 0.3, 2.0)]
    assert depths == sorted(depths, reverse=True) and depths[-1] == 1
    sizes = [len(grown(0.0, row)) for row in (0.0, 0.02, 0.1, 0.3)]
    assert sizes == sorted(sizes, reverse=True)


def test_the_first_guess_is_told_whatever_rows_cost() -> None:
    """It is there anyway; and whether it holds tells how far such guesses are right."""
    toy = Toy(1, 6)
    tree, further = grow(Grown(REQUEST, 12, 6, Prices(row=10.0)), toy)
    assert (tree.tokens, further) == (list(toy.best((), 1).tokens), [])
    assert not len(grow(Grown(REQUEST, 12, 6, Prices(row=10.0), least=1.0), toy)[0])


class Promising(Draft):
    def __init__(self, seconds: float) -> None:
        super().__init__(REQUEST)
        self.seconds = seconds

    @property
    def next_level(self) -> float:
        return self.seconds


def chosen(promises: list[float], times: LevelTimes) -> list[float]:
    return [d.next_level for d in going_on([Promising(each) for each in promises], times)]


def test_a_level_is_paid_for_by_all_that_share_it() -> None:
    """One draft alone does not pay for a pass, of which eight take little more."""
    times = timed(4.0, 4.2, 4.6, 5.0)
    assert chosen([2.0], times) == []
    assert chosen([2.0] * 8, times) == [2.0] * 8
    assert chosen([2.0, -1.0, 5.0], times) == [2.0, 5.0]  # in their order, without the poor
    assert chosen([0.1, 5.0], times) == [5.0]  # who does not pay for the larger pass
    assert chosen([math.inf, math.inf], times) == [math.inf] * 2  # where nobody weighs


def test_one_draft_alone_may_go_on_for_what_many_may_not() -> None:
    """At 0.575 of what the level takes, and at 0.56 and 0.96 of it."""
    times = timed(4.0, 4.2, 4.6, 5.0)
    assert chosen([2.3], times) == [2.3]
    assert chosen([0.35] * 8, times) == []
    assert chosen([0.6] * 8, times) == [0.6] * 8


def test_of_levels_nobody_has_timed_all_are_drafted_that_promise_anything() -> None:
    assert chosen([0.1, -0.1], LevelTimes()) == [0.1]


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.lists(st.floats(-1, 3), min_size=1, max_size=6), st.floats(0, 4), st.floats(0, 1))
def test_no_other_drafts_would_gain_more_together(
    promises: list[float], fixed: float, each: float
) -> None:
    times = timed(*(fixed + each * bits for bits in range(3)))

    def gain(subset: tuple[float, ...]) -> float:
        return sum(subset) - level_price(len(subset), times) if subset else 0.0

    subsets = [s for n in range(len(promises) + 1) for s in combinations(promises, n)]
    assert gain(tuple(chosen(promises, times))) == pytest.approx(max(map(gain, subsets)))


def test_who_is_left_alone_ends_though_all_together_went_on() -> None:
    """Of drafts that are alike each would pay its share of a level for eight, and none a whole
    one."""
    toys = [Toy(seed, 6, steep=(4,)) for seed in range(8)]
    prices = Prices(second=0.4)
    together: list[Draft] = [Grown(REQUEST, 12, 6, prices) for _ in toys]
    alone: list[Draft] = [Grown(REQUEST, 12, 6, prices) for _ in toys]
    times = timed(1.0, 1.0, 1.0, 1.0)
    shared = sum(grow_together(together, toys, times))
    single = sum(sum(grow_together([d], [toy], times)) for d, toy in zip(alone, toys, strict=True))
    assert shared > single


def test_times_of_levels_are_kept_by_the_number_of_drafts() -> None:
    times = LevelTimes()
    assert not times and times.of(3) == 0.0
    times.learn(8.0, drafts=8)
    assert times and times.of(1) == times.of(64) == 8.0
    times.learn(2.0, drafts=1)
    assert times.of(1) == 2.0 and times.of(9) == 8.0
    for _ in range(50):
        times.learn(3.0, drafts=1)
    assert times.of(1) == pytest.approx(3.0, rel=0.02) and times.of(8) == 8.0


def test_nodes_that_can_have_no_child_among_the_best_are_not_expanded() -> None:
    """What is last of a full tree would have to make room for its own child."""
    draft = Grown(REQUEST, 3, 3)
    draft.add(-1, Found([5, 6, 7], [0.5, 0.3, 0.2]))
    draft.advance()
    assert [draft.tokens[node] for node in draft.frontier] == [5, 6]


def test_passes_stay_within_the_budget_and_the_likeliest_path_keeps_its_place() -> None:
    moved = paths = 0
    for seed in range(60):
        draft = Grown(REQUEST, 8, 5)
        tree, rows = grow(draft, Toy(seed, 12, steep=(20,)))
        assert all(count <= 8 for count in rows)
        # Where the first path's entries lie at the end: in the places of its nodes?
        for i, node in enumerate(tree.path(first_path_end(tree))[:-1]):
            paths += 1
            original = next(n for n in range(len(draft.tokens)) if same_path(draft, n, tree, node))
            moved += draft.place(original) != i
    assert paths > 100
    assert moved / paths < 0.2


def first_path_end(tree: TokenTree) -> int:
    node = -1
    while node in tree.children:
        node = tree.children[node][0]
    return node


def same_path(draft: Draft, node: int, tree: TokenTree, other: int) -> bool:
    return draft.path_tokens(node) == tree.path_tokens(other)


# ---- planned trees ----


def test_a_planned_tree_takes_the_best_children() -> None:
    toy = Toy(3, 5)
    shape = described([2, 2])
    tree, rows = grow(Planned(REQUEST, shape), toy)
    assert tuple(tree.parents) == shape.parents
    assert rows == [2]  # the last level needs no pass
    for node, parent in enumerate(tree.parents):
        above = tuple(tree.path_tokens(parent))
        assert tree.tokens[node] == toy.best(above, 5).tokens[shape.ranks[node]]
        assert tree.confidence is not None
        assert tree.confidence[node] == toy.after(above)[tree.tokens[node]]


def test_nodes_without_a_token_stay_away_with_all_below() -> None:
    draft = Planned(REQUEST, described([[0], [1], [2], [0, 0], [1, 0], [1, 1], [2, 0]]))
    draft.add(-1, Found([7, 8], [0.5, 0.3]))
    draft.advance()
    assert draft.path_tokens(draft.frontier[1]) == [8]
    draft.add(draft.frontier[0], Found([], []))
    draft.add(draft.frontier[1], Found([9], [0.2]))
    draft.advance()
    assert draft.frontier == []
    tree = draft.tree("toy")
    assert paths_of(tree) == [(7,), (8,), (8, 9)]
    assert tree.confidence == [0.5, 0.3, 0.2]


@pytest.mark.parametrize("budget", [0, 3])
@pytest.mark.parametrize("depth", [0, 2])
def test_no_room_is_no_tree(budget: int, depth: int) -> None:
    tree, _ = grow(Grown(REQUEST, budget, depth), Toy(1, 4))
    assert len(tree) == (3 if budget and depth else 0)


# ---- through the drafter, on a model whose vocabulary can be searched ----


def conditional(folder: str, request: Any, text: list[int], path: Text) -> list[float]:
    """The draft model's probabilities; with noise, of the perturbed scores."""
    scores = fed_back(folder, [*text, *path])[-1]
    if not request["greedy"]:
        key = Key(request["seed"], 0, request["position"] + len(path), Purpose.CHOICE)
        scores = scores + noise(streams([key]), len(scores))[0]
    return torch.softmax(scores.double(), -1).tolist()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_drafters_trees_are_the_likeliest_nodes(models: Models, temperature: float) -> None:
    config = {
        "model": models.small_noisy,
        "tree": "confidence",
        "depth": 3,
        "num_speculative_tokens": 6,
    }
    llm = make_llm(models.small, config)
    drafter, seen = drafter_of(llm), []
    propose = drafter.propose

    def watched(batch: list[Request], budgets: list[int]) -> list[TokenTree]:
        trees = propose(batch, budgets)
        seen.extend(
            (list(r.tokens), r.position, r.seed, budget, tree)
            for r, budget, tree in zip(batch, budgets, trees, strict=True)
        )
        return trees

    drafter.propose = watched
    params = [
        SamplingParams(temperature=temperature, seed=seed, max_tokens=12, ignore_eos=True)
        for seed in range(2)
    ]
    run(llm, [([1, 3, 2], params[0]), ([2, 2, 1, 3], params[1])])
    assert len(seen) > 5
    for text, position, seed, budget, tree in seen:
        request = {"greedy": temperature == 0, "seed": seed, "position": position}
        level: dict[Text, float] = {(): 1.0}
        everything: dict[Text, float] = {}
        for _ in range(3):
            level = {
                (*path, token): chance * p
                for path, chance in level.items()
                for token, p in enumerate(conditional(models.small_noisy, request, text, path))
            }
            everything |= level
        expected = sorted(everything.values(), reverse=True)[:budget]
        expected = [chance for chance in expected if chance >= 0.01]
        found = sorted((everything[path] for path in paths_of(tree)), reverse=True)
        assert found == pytest.approx(expected, abs=1e-4)
