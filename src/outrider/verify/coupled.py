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
    node = ROOT
    while True:
        token = choices[node + 1]
        match = (c for c in tree.children.get(node, []) if tree.tokens[c] == token)
        node = next(match, ROOT)
        if node == ROOT:
            return Verdict(kept, token)
        kept.append(node)
