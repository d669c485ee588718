"""One tree out of several: paths that agree are shared."""

from outrider.core.tree import ROOT, TokenTree


def merge(
    trees: list[TokenTree], chances: list[list[float]], most: int
) -> tuple[TokenTree, list[float]]:
    """The `most` likeliest nodes of the union of the trees, and per node the best of its chances.

    `chances[t][i]`: that the target's text runs through node i of tree t.
    """
    if len(trees) == 1:  # as mostly
        [tree], [own] = trees, chances
        kept = best_nodes(own, most)
        return tree.select(kept), [own[node] for node in kept]
    tokens: list[int] = []
    parents: list[int] = []
    best: list[float] = []
    known: dict[tuple[int, int], int] = {}  # (parent, token) -> node
    for tree, own in zip(trees, chances, strict=True):
        place = {ROOT: ROOT}
        for node, (token, parent) in enumerate(zip(tree.tokens, tree.parents, strict=True)):
            key = (place[parent], token)
            if key not in known:
                known[key] = len(tokens)
                tokens.append(token)
                parents.append(key[0])
                best.append(own[node])
            place[node] = known[key]
            best[place[node]] = max(best[place[node]], own[node])
    source = "+".join(tree.source for tree in trees if len(tree))
    union = TokenTree(tokens, parents, source or trees[0].source)
    kept = best_nodes(best, most)
    return union.select(kept), [best[node] for node in kept]


def best_nodes(chances: list[float], count: int) -> list[int]:
    """The `count` likeliest nodes, ascending; a tie goes to the parent, which comes first."""
    if len(chances) <= count:
        return list(range(len(chances)))
    order = sorted(range(len(chances)), key=lambda node: -chances[node])
    return sorted(order[:count])
