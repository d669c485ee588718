"""Tree shapes that are known before anything is drafted.

A child's rank is its place among its siblings: rank 0 is the drafter's first guess. Nodes stand
best first, so the best part of a shape that a smaller budget allows is its beginning.
"""

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import accumulate, product
from typing import Any

from outrider.core.errors import ConfigError
from outrider.core.tree import ROOT, children_of, depths_of

Path = tuple[int, ...]  # ranks from the root's child down to a node
MOST_NODES = 1024  # of a tree that a user describes


@dataclass(frozen=True)
class Shape:
    """`parents` as in TokenTree."""

    parents: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.parents)

    @cached_property
    def depths(self) -> list[int]:
        return depths_of(self.parents)

    @cached_property
    def children(self) -> dict[int, list[int]]:
        """Node (or ROOT) -> its children by rank; leaves are absent."""
        return children_of(self.parents)

    @cached_property
    def ranks(self) -> list[int]:
        return [self.children[parent].index(node) for node, parent in enumerate(self.parents)]

    def cut(self, nodes: int, depth: int) -> "Shape":
        """The best `nodes` nodes that are at most `depth` deep."""
        if len(self) <= nodes and max(self.depths, default=0) <= depth:
            return self
        place = {ROOT: ROOT}
        for node, at in enumerate(self.depths):
            if at <= depth and len(place) <= nodes:
                place[node] = len(place) - 1
        return Shape(tuple(place[self.parents[node]] for node in place if node != ROOT))


@cache
def chain(length: int) -> Shape:
    return Shape(tuple(range(ROOT, length - 1)))


# ---- shapes that a user describes ----


def described(tree: Any) -> Shape:
    """From the branching factor of each depth ([3, 2, 1]: three children of the root, two of each
    of those, one of each of these) or from the paths of all nodes in ranks ([[0], [1], [0, 0]]).

    Best first means by the product of (rank + 1) along the path: a second guess is taken to be
    worth half of a first one. Among equals the shallower comes first.
    """
    if not isinstance(tree, list) or not tree:
        raise _wrong(tree, "must be a list that is not empty")
    if all(_is_count(entry) and entry > 0 for entry in tree):
        paths = _of_factors(tree)
    elif all(_is_path(entry) for entry in tree):
        paths = [tuple(path) for path in tree]
        _check_closed(tree, set(paths))
    else:
        raise _wrong(tree, "must hold factors of at least 1, or paths of ranks of at least 0")
    return _of_paths(sorted(paths, key=_place))


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_path(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and bool(value) and all(map(_is_count, value))


def _wrong(tree: Any, why: str) -> ConfigError:
    return ConfigError(
        f"tree={tree!r} {why}; e.g. [3, 2, 1], or [[0], [1], [0, 0]], or one of 'chain', "
        "'optimal' and 'confidence'"
    )


def _of_factors(factors: list[int]) -> list[Path]:
    sizes = list(accumulate(factors, lambda a, b: min(a * b, MOST_NODES + 1)))
    if sum(sizes) > MOST_NODES:
        raise _wrong(factors, f"has more than {MOST_NODES} nodes")
    levels = range(1, len(factors) + 1)
    return [path for end in levels for path in product(*map(range, factors[:end]))]


def _check_closed(tree: Any, paths: set[Path]) -> None:
    if len(paths) != len(tree):
        raise _wrong(tree, "names a path twice")
    if len(paths) > MOST_NODES:
        raise _wrong(tree, f"has more than {MOST_NODES} nodes")
    for path in paths:
        *above, rank = path
        if above and tuple(above) not in paths:
            raise _wrong(tree, f"has {list(path)} without its parent {above}")
        if rank and (*above, rank - 1) not in paths:
            # A drawn token may not be left out, and a better guess is never worth less.
            raise _wrong(tree, f"has {list(path)} without its sibling {[*above, rank - 1]}")


def _place(path: Path) -> tuple[int, int, Path]:
    value = 1
    for rank in path:
        value *= rank + 1
    return value, len(path), path


def _of_paths(paths: Sequence[Path]) -> Shape:
    """Parents and better siblings come first in `paths`."""
    node = {(): ROOT} | {path: i for i, path in enumerate(paths)}
    return Shape(tuple(node[path[:-1]] for path in paths))


# ---- the best shape for a measured acceptance ----


def best_shape(acceptance: Sequence[float], nodes: int, depth: int) -> Shape:
    """The tree of at most so many nodes that is expected to have most of them accepted.

    acceptance[r] is the chance that the child of rank r is chosen once its parent is; it does not
    rise with r. This is the problem of Sequoia, whose dynamic programme needs O(nodes² · ranks ·
    depth). But a node's chance, the product along its path, exceeds neither its parent's nor its
    better sibling's, so the most likely nodes of all make up a tree; and no tree of that size can
    be worth more than the most likely nodes. O(nodes · log nodes).
    """
    return _of_paths(list(_best_first(acceptance, nodes, depth)))


def _best_first(acceptance: Sequence[float], nodes: int, depth: int) -> Iterator[Path]:
    """The most likely nodes; shallower ones first among equals."""
    if not acceptance or depth < 1:
        return
    # (-chance, depth, path, the parent's chance)
    waiting: list[tuple[float, int, Path, float]] = [(-acceptance[0], 1, (0,), 1.0)]
    for _ in range(nodes):
        if not waiting:
            return
        negative, at, path, above = heapq.heappop(waiting)
        yield path
        rank = path[-1] + 1
        if rank < len(acceptance):
            sibling = (*path[:-1], rank)
            heapq.heappush(waiting, (-above * acceptance[rank], at, sibling, above))
        if at < depth:
            heapq.heappush(waiting, (negative * acceptance[0], at + 1, (*path, 0), -negative))


def fastest_shape(
    acceptance: Sequence[float],
    nodes: int,
    depth: int,
    pass_seconds: Callable[[int], float],
    level_seconds: float,
) -> Shape:
    """The tree, of at most so many nodes and so deep, with most tokens per second.

    A step writes one token more than it accepts. It costs a target pass over the root and all
    nodes, pass_seconds(rows), and a draft pass per depth. Whether to draft at all is not asked
    here: the shape has a node at least.
    """
    best, best_rate = Shape(()), 0.0
    seconds = [pass_seconds(1 + size) for size in range(nodes + 1)]
    for deepest in range(1, min(depth, nodes) + 1):
        whole = best_shape(acceptance, nodes, deepest)
        tokens, reached = 1.0, 0
        for size, chance in enumerate(chances(whole, acceptance), 1):
            tokens += chance
            reached = max(reached, whole.depths[size - 1])
            rate = tokens / (seconds[size] + reached * level_seconds)
            if rate > best_rate:
                best, best_rate = whole.cut(size, deepest), rate
    return best


def chances(shape: Shape, acceptance: Sequence[float]) -> list[float]:
    """Per node: that the text runs through it. Their sum is the expected number accepted."""
    found: list[float] = []
    for parent, rank in zip(shape.parents, shape.ranks, strict=True):
        found.append((1.0 if parent == ROOT else found[parent]) * acceptance[rank])
    return found
