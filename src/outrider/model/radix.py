"""A radix tree over committed tokens: which texts have their KV in memory, and in which slots."""

import heapq
from array import array
from collections.abc import Iterator, Sequence
from itertools import count


class Node:
    """An edge of tokens with their slots, and what continues it."""

    __slots__ = ("children", "last_used", "locks", "parent", "slots", "tokens")

    def __init__(self, tokens: array, slots: array, parent: "Node | None") -> None:
        self.tokens = tokens
        self.slots = slots
        self.parent = parent
        self.children: dict[int, Node] = {}
        self.locks = 0  # requests that read this node's slots
        self.last_used = 0


class RadixTree:
    def __init__(self) -> None:
        self.root = Node(array("q"), array("q"), None)
        self._clock = count(1)

    def match(self, tokens: Sequence[int]) -> tuple[Node, array]:
        """The deepest node whose text is a prefix of `tokens`, and the slots of that prefix.

        An edge that matches in part is split there, so that a lock covers exactly what is read.
        """
        node, slots, now = self.root, array("q"), next(self._clock)
        position = 0
        while position < len(tokens) and (child := node.children.get(tokens[position])) is not None:
            common = _common_length(child.tokens, tokens, position)
            if common < len(child.tokens):
                child = self._split(child, common)
            child.last_used = now
            slots += child.slots
            position += common
            node = child
        return node, slots

    def insert(self, tokens: Sequence[int], slots: array) -> tuple[Node, array]:
        """Add a text; its node, and the slots the tree now holds for it.

        Where the tree already had a prefix, its own slots stay and the given ones are not taken.
        """
        node, held = self.match(tokens)
        if len(held) < len(tokens):
            rest = array("q", tokens[len(held) :])
            leaf = Node(rest, slots[len(held) : len(tokens)], node)
            leaf.last_used = next(self._clock)
            node.children[rest[0]] = leaf
            held = held + leaf.slots
            node = leaf
        return node, held

    def lock(self, node: Node) -> None:
        for ancestor in _to_root(node):
            ancestor.locks += 1

    def unlock(self, node: Node) -> None:
        for ancestor in _to_root(node):
            ancestor.locks -= 1

    def evict(self, wanted: int) -> array:
        """Drop the least recently used unlocked text, leaf ends first; the slots set free."""
        freed = array("q")
        leaves = [(n.last_used, id(n), n) for n in self.nodes() if not n.children and not n.locks]
        heapq.heapify(leaves)
        while leaves and len(freed) < wanted:
            _, _, leaf = heapq.heappop(leaves)
            keep = max(0, len(leaf.slots) - (wanted - len(freed)))
            freed += leaf.slots[keep:]
            first = leaf.tokens[0]
            leaf.tokens, leaf.slots = leaf.tokens[:keep], leaf.slots[:keep]
            if keep:
                continue
            parent = self._remove(leaf, first)
            if parent is not self.root and not parent.children and not parent.locks:
                heapq.heappush(leaves, (parent.last_used, id(parent), parent))
        return freed

    def nodes(self) -> Iterator[Node]:
        """All nodes but the root."""
        stack = list(self.root.children.values())
        while stack:
            node = stack.pop()
            yield node
            stack += node.children.values()

    def _remove(self, leaf: Node, first: int) -> Node:
        """The node above a leaf whose first token was `first`."""
        parent = leaf.parent
        assert parent is not None
        del parent.children[first]
        return parent

    def _split(self, node: Node, at: int) -> Node:
        """Cut an edge in two; the new upper node, which inherits the locks."""
        upper = Node(node.tokens[:at], node.slots[:at], node.parent)
        upper.locks, upper.last_used = node.locks, node.last_used
        upper.children[node.tokens[at]] = node
        assert node.parent is not None
        node.parent.children[upper.tokens[0]] = upper
        node.tokens, node.slots, node.parent = node.tokens[at:], node.slots[at:], upper
        return upper


def _to_root(node: Node | None) -> Iterator[Node]:
    while node is not None:
        yield node
        node = node.parent


def _common_length(edge: array, tokens: Sequence[int], start: int) -> int:
    limit = min(len(edge), len(tokens) - start)
    if edge[:limit] == array("q", tokens[start : start + limit]):
        return limit
    return next(i for i in range(limit) if edge[i] != tokens[start + i])
