"""Of all that was proposed for a pass, what is worth checking."""

from math import log1p
from typing import NamedTuple

from outrider.core.request import Request
from outrider.core.tree import TokenTree
from outrider.drafters.base import Drafter
from outrider.drafters.merging import best_nodes, unite
from outrider.engine.policy.gate import Pass
from outrider.engine.policy.policy import Policy


class Proposal(NamedTuple):
    """What one drafter would check, before anything is cut."""

    drafter: Drafter
    tree: TokenTree
    chances: list[float]  # per node: that the target's text runs through it

    @property
    def divisible(self) -> bool:
        """Whether nodes of it may be left out, and others' guesses stand beside it."""
        return self.drafter.divisible and self.tree.q is None


class Cut(NamedTuple):
    """What is left of the proposals, and what the pass promises with it."""

    trees: dict[Request, TokenTree]
    expected: dict[Request, float]  # tokens beyond the target's own
    log_gain: float  # sum of log(1 + expected), with what the pass had before
    speed: float  # of the mean request, in tokens per second


def worth_checking(
    policy: Policy,
    proposals: dict[Request, list[Proposal]],
    alone: dict[Request, Drafter],
    budget: dict[Request, int],
    base: Pass,
    room: int,
    late: bool,
) -> Cut:
    """`alone` says whose proposal is checked as it is, if anyone's. Where the trees come too late,
    the pass under way will have told what their first level guesses: only what lies below can
    gain."""
    whole: dict[Request, Proposal] = {}
    merged: dict[Request, tuple[TokenTree, list[float]]] = {}
    for request, several in proposals.items():
        uncut = [p for p in several if not p.divisible or p.drafter is alone.get(request)]
        if uncut:
            whole[request] = uncut[-1]
        elif several:
            merged[request] = _merged(policy, several, budget[request])
    taken = sum(len(p.tree) for p in whole.values())
    expected = {r: sum(p.chances) for r, p in whole.items()}
    base = base._replace(
        rows=base.rows + taken,
        log_gain=base.log_gain + sum(map(log1p, expected.values())),
    )
    offered = [_below_first(tree, paths) if late else paths for tree, paths in merged.values()]
    choice = policy.choose(offered, base, max(0, room - taken))
    checked = dict.fromkeys(proposals, TokenTree.empty())
    checked |= {r: p.tree for r, p in whole.items()}
    for request, paths, kept in zip(merged, offered, choice.kept, strict=True):
        tree = merged[request][0]
        checked[request] = tree if late and kept else tree.select(kept)
        expected[request] = sum(paths[node] for node in kept)
    return Cut(checked, {r: expected.get(r, 0.0) for r in proposals}, choice.log_gain, choice.speed)


def _merged(policy: Policy, proposals: list[Proposal], most: int) -> tuple[TokenTree, list[float]]:
    """The `most` likeliest nodes of all, and that the target's text runs through them."""
    if len(proposals) == 1:  # as mostly
        [(_, tree, chances)] = proposals
    else:
        drafters, trees, alone = zip(*proposals, strict=True)
        union = unite(list(trees))
        tree = union.tree
        chances = policy.concord.chances(union, [d.name for d in drafters], list(alone))
    kept = best_nodes(chances, most)
    return tree.select(kept), [chances[node] for node in kept]


def _below_first(tree: TokenTree, paths: list[float]) -> list[float]:
    return [path for path, depth in zip(paths, tree.depths, strict=True) if depth > 1]
