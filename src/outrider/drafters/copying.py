"""A tree of what followed where a text has been like this before."""

from collections.abc import Sequence
from heapq import heappop, heappush
from operator import attrgetter
from typing import NamedTuple

from outrider.core.tree import ROOT, TokenTree

VOICES = 4  # of the matches that agree with a path, the longest ones are heard further down


class Continuation(NamedTuple):
    followed: Sequence[int]  # the tokens that came after the match
    length: int  # of the match
    trust: float  # a factor of its weight


def match_weight(length: int) -> float:
    """What a match of this length counts, where 1 stands for all that has not been seen.

    Fitted to texts of a language model. A match of 1, 2, 4, 8 or 24 tokens that stands alone, at a
    trust of 1, goes on with probability 0.15, 0.43, 0.72, 0.89 or 0.98.
    """
    return 0.37 * (length - 0.4) ** 1.5


class Grower:
    """Grows trees of the nodes with the highest path probability, best first.

    No path is less likely than `least_path`, and no token after its parent than `least_token`. A
    match grows with the path that it agrees with. Matches and what followed them are at most
    `deepest` tokens long.
    """

    def __init__(self, deepest: int, least_path: float, least_token: float) -> None:
        self.least_path = least_path
        self.least_token = least_token
        self._weights = [0.0, *(match_weight(length) for length in range(1, 2 * deepest + 1))]

    def grow(self, continuations: list[Continuation], budget: int, source: str) -> TokenTree:
        tokens: list[int] = []
        parents: list[int] = []
        confidence: list[float] = []
        depths: list[int] = []
        waiting: list[tuple[float, int, int, int, float, list[Continuation]]] = []  # a heap
        node, depth, path, order = ROOT, 0, 1.0, 0
        agreeing = sorted(continuations, key=attrgetter("length"), reverse=True)
        while len(tokens) < budget:
            shares, branches = self._branches(agreeing, depth)
            for token, chance in shares.items():
                if chance >= self.least_token and path * chance >= self.least_path:
                    order += 1  # among equals the first one
                    branch = (-path * chance, order, node, token, chance, branches[token])
                    heappush(waiting, branch)
            if not waiting:
                break
            negated, _, parent, token, chance, agreeing = heappop(waiting)
            node, path = len(tokens), -negated
            depth = 1 if parent == ROOT else depths[parent] + 1
            tokens.append(token)
            parents.append(parent)
            confidence.append(chance)
            depths.append(depth)
        return TokenTree(tokens, parents, source, confidence)

    def _branches(
        self, agreeing: list[Continuation], depth: int
    ) -> tuple[dict[int, float], dict[int, list[Continuation]]]:
        """Per token that follows: its chance, and who goes on with it."""
        weights = self._weights
        shares: dict[int, float] = {}
        branches: dict[int, list[Continuation]] = {}
        total = 1.0
        for continuation in agreeing:
            followed, length, trust = continuation
            if depth < len(followed):
                token, weight = followed[depth], trust * weights[length + depth]
                total += weight
                if token in shares:
                    shares[token] += weight
                    if len(branches[token]) < VOICES:
                        branches[token].append(continuation)
                else:
                    shares[token] = weight
                    branches[token] = [continuation]
        return {token: share / total for token, share in shares.items()}, branches
