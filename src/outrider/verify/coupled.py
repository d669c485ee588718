"""Coupled verification: the target chooses, and the walk through the tree follows its choices.

The choice at a node is a function of the text before it and of the noise at its output position,
neither of which the drafter can change. So the text is the one plain decoding would have written.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, pairwise

from outrider.core.tree import ROOT, TokenTree
from outrider.core.verdict import Verdict

# The target's tokens at some rows of the pass.
Choices = Callable[[list[int]], list[int]]


def spans(trees: Sequence[TokenTree]) -> list[tuple[int, int]]:
    """Where each tree's rows lie in the pass: its root's, and then its nodes'."""
    return list(pairwise(accumulate([1 + len(tree.tokens) for tree in trees], initial=0)))


def walk(trees: Sequence[TokenTree], choices: Choices) -> list[Verdict]:
    """`choices` is asked for the rows that texts reach and for no others, each once: for all texts
    together, one round after the other."""
    # node = root
    # loop: y = choice(node); emit y; if some child of node has token y: node = child, else stop
    roots = [root for root, _ in spans(trees)]
    kept: list[list[int]] = [[] for _ in trees]
    said = choices(roots) if trees else []  # each text's last

    def advanced(texts: Iterable[int]) -> list[int]:
        """Those whose tree goes on with what the target said: they are one node further."""
        onward = []
        for i in texts:
            child = trees[i].child(kept[i][-1] if kept[i] else ROOT, said[i])
            if child is not None:
                kept[i].append(child)
                onward.append(i)
        return onward

    going = advanced(i for i, tree in enumerate(trees) if tree.tokens)  # few of a large batch
    while going:
        tokens = choices([roots[i] + 1 + kept[i][-1] for i in going])
        for i, token in zip(going, tokens, strict=True):
            said[i] = token
        going = advanced(going)
    return [Verdict(path, token) for path, token in zip(kept, said, strict=True)]
