"""Exact enumeration: run the production code under every outcome of its random decisions.

The checks return the largest error of the joint distribution, so that the same function passes on
clean code and fails on planted faults.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from outrider import verify as verify_module
from outrider.core.params import SamplingParams
from outrider.core.request import Request
from outrider.core.tree import ROOT, TokenTree
from outrider.sampling.counts import Counts

Prefix = tuple[int, ...]


class Branches:
    """Random decisions that follow a script, then take the first outcome that is possible."""

    def __init__(self, script: Sequence[int]) -> None:
        self.script = script
        self.trail: list[tuple[int, int]] = []  # (outcome taken, number of outcomes)
        self.weight = 1.0

    def take(self, probabilities: Sequence[float]) -> int:
        possible = [i for i, probability in enumerate(probabilities) if probability > 0]
        at = len(self.trail)
        taken = self.script[at] if at < len(self.script) else 0
        self.trail.append((taken, len(possible)))
        self.weight *= probabilities[possible[taken]]
        return possible[taken]


def all_runs(run: Callable[[Branches], Any]) -> Iterator[tuple[Any, float]]:
    """(result, probability) of every way the decisions of `run` can go."""
    script: list[int] = []
    while True:
        branches = Branches(script)
        yield run(branches), branches.weight
        trail = branches.trail
        while trail and trail[-1][0] + 1 == trail[-1][1]:
            trail.pop()
        if not trail:
            return
        script = [taken for taken, _ in trail]
        script[-1] += 1


class Toy:
    """A target p and a drafter q over a small vocabulary, random functions of the whole prefix:
    a quarter of the entries are 0, a fifth of the rows have q = p."""

    def __init__(self, seed: int, vocabulary: int) -> None:
        self.seed, self.vocabulary = seed, vocabulary
        self._rows: dict[tuple[int, Prefix], np.ndarray] = {}

    def p(self, prefix: Prefix) -> np.ndarray:
        return self._row(0, prefix)

    def q(self, prefix: Prefix) -> np.ndarray:
        same = np.random.default_rng([self.seed, 2, *prefix]).random() < 0.2
        return self._row(0 if same else 1, prefix)

    def _row(self, which: int, prefix: Prefix) -> np.ndarray:
        row = self._rows.get((which, prefix))
        if row is None:
            random = np.random.default_rng([self.seed, which, *prefix])
            row = random.exponential(size=self.vocabulary) ** 1.5
            zero = random.random(self.vocabulary) < 0.25
            zero[random.integers(self.vocabulary)] = False
            row = np.where(zero, 0, row)
            row = self._rows[which, prefix] = row / row.sum()
        return row


class Outcome(NamedTuple):
    """One step: the drafted tokens that were kept, and the distribution of the token after them."""

    kept: Prefix
    final: np.ndarray


class EnumeratedDraws:
    """Traversal's decisions. The last one, `pick`, is kept whole: its outcomes need no runs."""

    def __init__(self, branches: Branches) -> None:
        self.branches = branches
        self.final: np.ndarray | None = None

    def accept(self, node: int, probability: float) -> bool:
        return self.branches.take([1 - probability, probability]) == 1

    def pick(self, node: int, weights: Tensor) -> int:
        assert self.final is None
        self.final = (weights / weights.sum()).numpy()
        return 0


class EnumeratedChoices:
    """The target's choices; every look draws, so a second look at a node draws anew."""

    def __init__(self, p: Tensor, branches: Branches) -> None:
        self.p, self.branches = p, branches

    def tolist(self) -> "EnumeratedChoices":
        return self

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return EnumeratedChoices(self.p[index], self.branches)
        return self.branches.take(self.p[index].tolist())


def verified(
    tree: TokenTree, request: Request, logits: Tensor, branches: Branches, method: str
) -> Outcome:
    """One request through the production `verify`, with its decisions replaced."""
    draws = EnumeratedDraws(branches)
    counts = Counts(logits.shape[-1])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verify_module, "keyed_draws", lambda requests, trees: [draws])
        patch.setattr(
            verify_module,
            "choose",
            lambda scores, rows: EnumeratedChoices(
                verify_module.distribution(scores, rows), branches
            ),
        )
        [verdict] = verify_module.verify([tree], [request], logits, counts, method)
    kept = tuple(tree.tokens[node] for node in verdict.kept)
    if draws.final is not None:
        return Outcome(kept, draws.final)
    return Outcome(kept, np.eye(logits.shape[-1])[verdict.next_token])


def toy_logits(toy: Toy, tree: TokenTree, before: Prefix = ()) -> Tensor:
    """[1 + nodes, vocabulary] float64"""
    prefixes = [(*before, *tree.path_tokens(node)) for node in range(ROOT, len(tree))]
    return torch.from_numpy(np.stack([toy.p(prefix) for prefix in prefixes])).log()


def drawn_tree(
    toy: Toy, shape: Sequence[int], with_replacement: bool, branches: Branches
) -> TokenTree:
    """Draw a token for every node of `shape` (its parents) from q; where nothing is left to draw
    without replacement, the node and what hangs below it stay away."""
    tokens: list[int] = []
    parents: list[int] = []
    rows: list[np.ndarray] = []
    index = {ROOT: ROOT}
    prefixes: dict[int, Prefix] = {ROOT: ()}
    for node, parent in enumerate(shape):
        if parent not in index:
            continue
        at = index[parent]
        shared = toy.q(prefixes[at])
        left = shared.copy()
        if not with_replacement:
            left[[token for token, other in zip(tokens, parents) if other == at]] = 0
        if left.sum() == 0:
            continue
        token = branches.take((left / left.sum()).tolist())
        index[node] = len(tokens)
        prefixes[len(tokens)] = (*prefixes[at], token)
        tokens.append(token)
        parents.append(at)
        rows.append(shared)
    q = torch.from_numpy(np.stack(rows))
    return TokenTree(tokens, parents, "toy", q=q, with_replacement=with_replacement)


def fixed_tree(toy: Toy, shape: Sequence[int]) -> TokenTree:
    """Tokens that nobody drew; siblings may repeat each other."""
    random = np.random.default_rng([toy.seed, 3])
    tokens = random.integers(toy.vocabulary, size=len(shape)).tolist()
    return TokenTree(tokens, list(shape), "toy")


def joint_error(
    p: Callable[[Prefix], np.ndarray], length: int, outcomes: Iterable[tuple[Outcome, float]]
) -> float:
    """Largest difference between target sampling of `length` tokens and (one step, continued by
    target sampling)."""
    emitted: dict[Prefix, float] = defaultdict(float)
    for (kept, final), weight in outcomes:
        for token, probability in enumerate(final):
            emitted[(*kept, token)] += weight * probability
    worst = 0.0
    for text in product(range(len(p(()))), repeat=length):
        steps = [p(text[:i])[text[i]] for i in range(length)]
        actual = sum(
            emitted.get(text[:i], 0.0) * float(np.prod(steps[i:])) for i in range(1, length + 1)
        )
        worst = max(worst, abs(actual - float(np.prod(steps))))
    return worst


CHAINS = [[-1], [-1, 0], [-1, 0, 1]]
TREES = [[-1, -1], [-1, -1, 0], [-1, 0, -1], [-1, -1, -1], [-1, 0, 0], [-1, 0, 1, -1]]
KINDS = ("chain", "iid", "without replacement", "point")


def step_error(kind: str, method: str, seed: int) -> float:
    """The joint error of one random case; 'point' has no q, the others are drawn from theirs."""
    toy = Toy(seed, vocabulary=3 + seed % 3)
    shapes = CHAINS if kind == "chain" else TREES if toy.vocabulary < 5 else TREES[:5]
    shape = shapes[seed // 3 % len(shapes)]
    request = Request("toy", [0], SamplingParams(), seed=0)

    def run(branches: Branches) -> Outcome:
        if kind == "point":
            tree = fixed_tree(toy, shape)
        else:
            tree = drawn_tree(toy, shape, kind == "iid", branches)
        return verified(tree, request, toy_logits(toy, tree), branches, method)

    depth = max(TokenTree([0] * len(shape), list(shape), "toy").depths)
    return joint_error(toy.p, depth + 1, all_runs(run))


def worst_step_error(kind: str, method: str, seeds: Iterable[int]) -> float:
    return max(step_error(kind, method, seed) for seed in seeds)
