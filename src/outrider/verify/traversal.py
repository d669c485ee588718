"""Traversal verification: drawn drafts are tested against the distribution they were drawn from.

Accepts more than coupled verification at high temperature. On a chain it is block verification, at
depth 1 recursive rejection sampling. It needs draws that are fresh and independent of the draft's.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

import torch
from torch import Tensor

from outrider.core.request import Request
from outrider.core.tree import ROOT, TokenTree
from outrider.core.verdict import Verdict
from outrider.sampling.noise import Key, Purpose, streams, uniform


class Draws(Protocol):
    """The random decisions; each is asked for at most once per node (or ROOT) and step."""

    def accept(self, node: int, probability: float) -> bool: ...
    def pick(self, node: int, weights: Tensor) -> int: ...


class KeyedDraws:
    """Draws keyed by the root's output position and the node (see `Key` for the reason)."""

    def __init__(self, accept: list[float], residual: list[float]) -> None:
        self._accept, self._residual = accept, residual  # u of the root, then of every node

    def accept(self, node: int, probability: float) -> bool:
        return self._accept[node + 1] < probability  # u in (0, 1): 0 never accepts, 1 always does

    def pick(self, node: int, weights: Tensor) -> int:
        """weights [vocabulary] float64 -> a token, with probability in proportion."""
        # Zeros are left out first: a parallel sum need not stay level across them.
        tokens = weights.nonzero()[:, 0]  # [n]
        reached = weights[tokens].cumsum(0)  # [n]
        index = int((reached < self._residual[node + 1] * reached[-1]).sum())
        return int(tokens[index])


def keyed_draws(requests: Sequence[Request], trees: Sequence[TokenTree]) -> list[KeyedDraws]:
    """The draws of one step of many requests, made together: the calls are what they cost."""
    keys = [
        Key(request.seed, request.sample, request.position, purpose, lane=node + 1)
        for request, tree in zip(requests, trees)
        for purpose in (Purpose.ACCEPT, Purpose.RESIDUAL)
        for node in range(ROOT, len(tree))
    ]
    u = iter(uniform(streams(keys)).tolist())
    sizes = [1 + len(tree) for tree in trees]
    return [KeyedDraws(list(islice(u, n)), list(islice(u, n))) for n in sizes]


# The rule, with p and q the rows of target and drafter, S(w) a draw in proportion to w, u uniform:
#
#   walk(v, a, P):                              a = acceptance value of v; at first P = p(v)
#     for child c of v, in draw order:          Q = what c was drawn from
#       r = walk(c, min(1, a·P(c)/Q(c)), p(c));  if r: return r
#       W = (a·P - Q)+;  s = sum(W);  if s = 0: return None
#       a = s / (s + (1 - a));  P = W / s
#     if u < a: return path(v), S(P)
#     return None
#
# walk(root, 1, p(root)) is None only through rounding; then the step emits S(p(root)).


@dataclass(eq=False)
class _Visit:
    """One call of walk, held on a stack of our own: chains may be longer than Python's."""

    node: int
    a: float
    P: Tensor  # [vocabulary] float64
    waiting: list[int]  # children not yet tried, the next one last
    Q: Tensor | None = None  # [vocabulary] float64: what the child in trial was drawn from

    def reject(self) -> None:
        assert self.Q is not None
        W = (self.a * self.P - self.Q).clamp_(min=0)
        s = W.sum().item()
        if s == 0:
            self.a, self.waiting = 0.0, []
        else:
            # The brackets matter: 1 - a is often 0, and must not swallow a tiny s.
            self.a, self.P = s / (s + (1 - self.a)), W / s


def traverse(tree: TokenTree, p: Callable[[int], Tensor], draws: Draws) -> Verdict:
    """p(node) is the target's distribution after a node (or ROOT), [vocabulary] float64."""
    stack = [_visit(tree, ROOT, 1.0, p)]
    while stack:
        visit = stack[-1]
        if visit.waiting:
            child = visit.waiting.pop()
            token = tree.tokens[child]
            visit.Q = _drawn_from(tree, child, visit.P)
            a = min(1.0, visit.a * visit.P[token].item() / visit.Q[token].item())
            if a > 0:
                stack.append(_visit(tree, child, a, p))
            else:
                visit.reject()  # the walk below could not succeed
        elif draws.accept(visit.node, visit.a):
            return Verdict(tree.path(visit.node), draws.pick(visit.node, visit.P))
        else:
            stack.pop()
            if stack:
                stack[-1].reject()
    return Verdict([], draws.pick(ROOT, p(ROOT)))


def _visit(tree: TokenTree, node: int, a: float, p: Callable[[int], Tensor]) -> _Visit:
    return _Visit(node, a, p(node), tree.children.get(node, [])[::-1])


def _drawn_from(tree: TokenTree, child: int, like: Tensor) -> Tensor:
    """Q of a child, [vocabulary] float64.

    Without q rows a draft is a point mass: each child is certain, whatever its siblings are.
    Without replacement, the tokens of earlier siblings could not be drawn again.
    """
    if tree.q is None:
        Q = torch.zeros_like(like)
        Q[tree.tokens[child]] = 1
        return Q
    Q = tree.q[child].to(like, copy=True)
    if not tree.with_replacement:
        siblings = tree.children[tree.parents[child]]
        Q[[tree.tokens[c] for c in siblings[: siblings.index(child)]]] = 0
    Q /= Q.sum()
    if not Q[tree.tokens[child]] > 0:
        raise ValueError(
            f"drafter {tree.source!r}: node {child} holds token {tree.tokens[child]}, which its"
            " row of q cannot give; q must be the distribution the token was drawn from"
        )
    return Q
