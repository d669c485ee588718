"""Coupled verification: the target chooses, and the walk through the tree follows its choices.

The choice at a node is a function of the text before it and of the noise at its output position,
neither of which the drafter can change. So the text is the one plain decoding would have written.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate

from outrider.core.tree import ROOT, TokenTree
from outrider.core.verdict import Verdict

# The target's tokens at some rows of the pass.
Choices = Callable[[list[int]], list[int]]


def walk(trees: Sequence[TokenTree], choices: Choices) -> list[Verdict]:
    """The rows of the pass are, for each tree, its root's and then its nodes'.

    `choices` is asked for the rows that texts reach and for no others, each once: for all texts
    together, one round after the other.
    """
    # node = root
    # loop: y = choice(node); emit y; if some child of node has token y: node = child, else stop
    roots = list(accumulate([1 + len(tree.tokens) for tree in trees], initial=0))[:-1]
    kept: list[list[int]] = [[] for _ in trees]
    said = [0] * len(trees)  # each text's last
    reached = [(i, ROOT) for i in range(len(trees))]
    while reached:
        tokens = choices([roots[i] + 1 + node for i, node in reached])
        onward = []
        for (i, node), token in zip(reached, tokens, strict=True):
            said[i] = token
            child = _child(trees[i], node, token)
            if child is not None:
                kept[i].append(child)
                onward.append((i, child))
        reached = onward
    return [Verdict(path, token) for path, token in zip(kept, said, strict=True)]


def _child(tree: TokenTree, node: int, token: int) -> int | None:
    """The child of a node that says this; the first, where several do."""
    for child in range(node + 1, len(tree.tokens)):  # parents come first
        if tree.parents[child] == node and tree.tokens[child] == token:
            return child
    return None
