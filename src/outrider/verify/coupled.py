"""Coupled verification: the target chooses at every node, and the walk follows its choices.

The choice at a node is a function of the text before it and of the noise at its output position,
neither of which the drafter can change. So the text is the one plain decoding would have written.
"""

from collections.abc import Sequence

from outrider.core.tree import ROOT, TokenTree
from outrider.core.verdict import Verdict


def walk(tree: TokenTree, choices: Sequence[int]) -> Verdict:
    """choices[0] is the target's token after the root, choices[i + 1] the one after node i.

    Only the choices of nodes that are reached are looked at, each once.
    """
    # node = root
    # loop: y = choice(node); emit y; if some child of node has token y: node = child, else stop
    kept: list[int] = []
    node, choice = ROOT, choices[0]
    # Parents come first, so one look at each node in turn is enough.
    for child, (parent, token) in enumerate(zip(tree.parents, tree.tokens, strict=True)):
        if parent == node and token == choice:
            kept.append(child)
            node, choice = child, choices[child + 1]
    return Verdict(kept, choice)
