"""One tree out of several: paths that agree are shared."""

from typing import NamedTuple

from outrider.core.tree import ROOT, TokenTree


class Union(NamedTuple):
    """All nodes of several trees."""

    tree: TokenTree
    origins: list[dict[int, int]]  # per node: the trees that have it -> which of their nodes it is


def unite(trees: list[TokenTree]) -> Union:
    tokens: list[int] = []
    parents: list[int] = []
    origins: list[dict[int, int]] = []
    known: dict[tuple[int, int], int] = {}  # (parent, token) -> node
    for number, tree in enumerate(trees):
        place = {ROOT: ROOT}
        for node, (token, parent) in enumerate(zip(tree.tokens, tree.parents, strict=True)):
            key = (place[parent], token)
            if key not in known:
                known[key] = len(tokens)
                tokens.append(token)
                parents.append(key[0])
                origins.append({})
            place[node] = known[key]
            origins[place[node]].setdefault(number, node)
    source = "+".join(tree.source for tree in trees if len(tree))
    return Union(TokenTree(tokens, parents, source or trees[0].source), origins)


def merge(trees: list[TokenTree], chances: list[list[float]], most: int) -> TokenTree:
    """The `most` likeliest nodes of the union, where all that is known are the drafters' own words;
    `chances[t][i]`: that the target's text runs through node i of tree t."""
    union, origins = unite(trees)
    best = [max(chances[t][node] for t, node in origin.items()) for origin in origins]
    return union.select(best_nodes(best, most))


def best_nodes(chances: list[float], count: int) -> list[int]:
    """The `count` likeliest nodes, ascending; a tie goes to the parent, which comes first."""
    if len(chances) <= count:
        return list(range(len(chances)))
    order = sorted(range(len(chances)), key=lambda node: -chances[node])
    return sorted(order[:count])
