"""One request's tree while it grows: level by level, so that all requests share every pass."""

from math import inf
from typing import NamedTuple

import torch

from outrider.core.request import Request
from outrider.core.tree import ROOT, TokenTree, path_to
from outrider.drafters.candidates import Found
from outrider.drafters.level_times import LevelTimes
from outrider.drafters.shapes import Shape
from outrider.sampling.choose import NO_TOKEN

LEAST = 0.01  # path probability below which a node is not worth a row of any pass
ENABLING = 0.45  # of a level's price, which it need not pay: without it there are none below it
LIKELY_CHILD = 0.8  # given its parent: more is not hoped for where rows have a price


class Prices(NamedTuple):
    """What more of a tree must promise, in tokens, as shares of all that the step writes."""

    second: float = 0.0  # of drafting
    row: float = 0.0
    holds: float = 1.0  # of the nodes that hold, the share that has a child that does
    promised: float = 0.0  # tokens of the step that others have proposed


NO_PRICES = Prices()


class Draft:
    """`frontier` holds the nodes (at first ROOT) whose children come next. They are added by `add`,
    then `advance` moves on to the next level. It is empty when the tree is complete.

    A node that is in a frontier has an entry in the drafter's KV, in the place of the request's
    reserved slots that `place` says. The tree numbers its nodes so that most of them lie where the
    target will write its own; the drafter's entries of the others are computed again if accepted.
    """

    def __init__(self, request: Request) -> None:
        self.request = request
        self.frontier: list[int] = []
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.confidence: list[float] = []
        self._q: dict[int, torch.Tensor] = {}  # node -> [vocabulary]

    def wanted(self, node: int) -> int:
        """Children that a node of the frontier may have."""
        raise NotImplementedError

    def add(self, node: int, found: Found) -> None:
        raise NotImplementedError

    def advance(self) -> None:
        raise NotImplementedError

    def place(self, node: int) -> int:
        raise NotImplementedError

    def tree(self, source: str) -> TokenTree:
        raise NotImplementedError

    @property
    def next_level(self) -> float:
        """Seconds of drafting that a level below the frontier is worth."""
        return inf

    def path(self, node: int) -> list[int]:
        """Nodes from the root's child down to `node`, inclusive."""
        return path_to(node, self.parents)

    def path_tokens(self, node: int) -> list[int]:
        return [self.tokens[i] for i in self.path(node)]

    def _tree_of(self, nodes: list[int], source: str) -> TokenTree:
        """Parents come first in `nodes`."""
        place = {node: i for i, node in enumerate(nodes)} | {ROOT: ROOT}
        return TokenTree(
            [self.tokens[node] for node in nodes],
            [place[self.parents[node]] for node in nodes],
            source,
            [self.confidence[node] for node in nodes],
            torch.stack([self._q[node] for node in nodes]) if self._q else None,
        )


class Planned(Draft):
    """Fills a shape that is known beforehand; nodes for which there is no token stay away."""

    def __init__(self, request: Request, shape: Shape) -> None:
        super().__init__(request)
        self.shape = shape
        self.parents = list(shape.parents)
        self.tokens = [NO_TOKEN] * len(shape)
        self.confidence = [0.0] * len(shape)
        self.frontier = [ROOT] if len(shape) else []

    def wanted(self, node: int) -> int:
        return len(self.shape.children[node])

    def add(self, node: int, found: Found) -> None:
        children = self.shape.children[node]
        for child, token, confidence in zip(children, found.tokens, found.confidence, strict=False):
            self.tokens[child] = token
            self.confidence[child] = confidence
            if found.q is not None:
                self._q[child] = found.q

    def advance(self) -> None:
        self.frontier = [
            child
            for node in self.frontier
            for child in self.shape.children[node]
            if child in self.shape.children and self.tokens[child] != NO_TOKEN
        ]

    def place(self, node: int) -> int:
        return node

    def tree(self, source: str) -> TokenTree:
        nodes = [node for node, token in enumerate(self.tokens) if token != NO_TOKEN]
        return self._tree_of(nodes, source)


class Grown(Draft):
    """The `budget` nodes of highest path probability among all that are at most `depth` deep.

    Of each level, those nodes are expanded that are among the best known so far. That is exact: a
    node's path probability is at most its parent's, so what is among the best in the end has
    had its parent among the best all along. Of those, none is expanded that cannot have a child
    among them.

    Nodes that are not worth their price stay away, but for the first guess if it is at all likely.
    """

    def __init__(
        self,
        request: Request,
        budget: int,
        depth: int,
        prices: Prices = NO_PRICES,
        least: float = LEAST,
    ) -> None:
        super().__init__(request)
        self.budget, self.depth = budget, depth
        self.least, self.prices = least, prices
        self._likely_child = LIKELY_CHILD if prices.row else 1.0
        self.frontier = [ROOT] if budget > 0 and depth > 0 else []
        self._chance: dict[int, float] = {ROOT: 1.0}  # path probabilities
        self._best: list[int] = []  # best first
        self._written = 1 + prices.promised  # tokens that the step writes, as far as is known
        self._floor = max(least, prices.row * self._written)  # of a node's chance
        self._level = 0
        self._new: list[int] = []  # nodes of the level under way
        self._places: dict[int, int] = {}

    def wanted(self, node: int) -> int:
        return self.budget

    def add(self, node: int, found: Found) -> None:
        for token, confidence in zip(found.tokens, found.confidence, strict=True):
            chance = self._chance[node] * confidence
            # The first guess is there anyway, and is judged whether or not it is worth a row.
            if chance < (self._floor if self.tokens else self.least):
                return  # the next ones are no better
            new = len(self.tokens)
            self.tokens.append(token)
            self.parents.append(node)
            self.confidence.append(confidence)
            self._chance[new] = chance
            self._new.append(new)

    def advance(self) -> None:
        self._level += 1
        # Stable, and parents are older than their children: no child goes before its parent.
        ranked = sorted([*self._best, *self._new], key=lambda node: -self._chance[node])
        self._best = ranked[: self.budget]
        fresh = set(self._new).intersection(self._best)
        self._new = []
        own = sum(self._chance[node] for node in self._best)
        self._written = 1 + self.prices.promised + own
        self._floor = max(self.least, self.prices.row * self._written)
        self.frontier = [node for node in self._best if node in fresh and self._may_bear(node)]
        if self._level == self.depth:
            self.frontier = []
        self._settle_down()

    def _may_bear(self, node: int) -> bool:
        """Whether a child of the node may be among the best: older ones come first among equals."""
        hoped = self._likely_child * self._chance[node]
        full = len(self._best) == self.budget
        return hoped >= self._floor and not (full and hoped <= self._chance[self._best[-1]])

    @property
    def next_level(self) -> float:
        """By the tokens that it may gain, beyond what its rows must: about one for each node."""
        chances = [self._chance[node] for node in self.frontier]
        promise = self.prices.holds * sum(chances) - len(chances) * self._floor
        second = self.prices.second * self._written
        return promise / second if second else inf

    def _settle_down(self) -> None:
        """Give the frontier places that none of the best holds: there are as many as the budget.

        The likeliest takes the first free one, the others the last ones: so the likeliest path,
        which is the first of the tree, has its entries in the first places mostly.
        """
        self._places = {node: self._places[node] for node in self._best if node in self._places}
        free = sorted(set(range(self.budget)).difference(self._places.values()))
        for i, node in enumerate(self.frontier):
            self._places[node] = free.pop(0 if i == 0 else -1)

    def place(self, node: int) -> int:
        return self._places[node]

    def tree(self, source: str) -> TokenTree:
        """Depth first, the likelier child first."""
        children: dict[int, list[int]] = {}
        for node in self._best:
            children.setdefault(self.parents[node], []).append(node)
        order: list[int] = []
        waiting = children.get(ROOT, [])[::-1]
        while waiting:
            order.append(waiting.pop())
            waiting += children.get(order[-1], [])[::-1]
        return self._tree_of(order, source)


def level_price(drafts: int, times: LevelTimes) -> float:
    """Seconds that one more level must be worth: less than it takes, as those below it may pay
    more. But of many drafts few go on for long, and the price is all that the others see of it."""
    return (1 - ENABLING / drafts) * times.of(drafts)


def going_on(drafts: list[Draft], times: LevelTimes) -> list[Draft]:
    """Those that one more level pays for, all in one pass: for a few of them it takes nearly as
    long as for all."""
    ranked = sorted(drafts, key=lambda draft: draft.next_level, reverse=True)
    best, count, worth = 0.0, 0, 0.0
    for number, draft in enumerate(ranked, 1):
        worth += draft.next_level
        gain = worth - level_price(number, times)
        if gain >= best:
            best, count = gain, number
    kept = set(ranked[:count])
    return [draft for draft in drafts if draft in kept]
