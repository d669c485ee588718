"""The proposal of a drafter: a tree of tokens that hangs below the last committed token."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

ROOT = -1  # the parent index of a child of the root


@dataclass(eq=False)
class TokenTree:
    """Nodes in an order where parents come first; among siblings the order is the draw order.

    `parents[i]` is a node index or ROOT. A chain is `parents == [-1, 0, 1, ...]`; no nodes at all
    is plain decoding. `confidence[i]` is the drafter's guess of the chance that the target chooses
    node i once it has reached its parent; the policy corrects it by experience. `q` holds, for node
    i, the distribution its token was drawn from, and is given only when tokens were drawn at random
    and traversal verification will test them: such a tree must be checked as it is, since leaving
    out a token that was drawn changes the distribution.
    """

    tokens: list[int]
    parents: list[int]
    source: str
    confidence: list[float] | None = None
    q: Tensor | None = None  # [nodes, vocabulary], rows sum to 1
    with_replacement: bool = False  # how siblings were drawn from their shared row of q

    def __post_init__(self) -> None:
        if len(self.tokens) != len(self.parents):
            raise ValueError(f"{len(self.tokens)} tokens but {len(self.parents)} parents")
        for node, parent in enumerate(self.parents):
            if not ROOT <= parent < node:
                raise ValueError(f"node {node} has parent {parent}; parents must come first")

    @classmethod
    def empty(cls) -> "TokenTree":
        return cls([], [], source="none")

    @classmethod
    def chain(
        cls,
        tokens: list[int],
        source: str,
        q: Tensor | None = None,
        confidence: list[float] | None = None,
    ) -> "TokenTree":
        return cls(list(tokens), list(range(-1, len(tokens) - 1)), source, confidence, q)

    def __len__(self) -> int:
        return len(self.tokens)

    @cached_property
    def depths(self) -> list[int]:
        """Distance from the root, 1 for its children."""
        return depths_of(self.parents)

    @cached_property
    def children(self) -> dict[int, list[int]]:
        """Node (or ROOT) -> its children in draw order; leaves are absent."""
        return children_of(self.parents)

    def path(self, node: int) -> list[int]:
        """Node indices from the root's child down to `node`, inclusive; empty for ROOT."""
        return path_to(node, self.parents)

    def path_tokens(self, node: int) -> list[int]:
        return [self.tokens[i] for i in self.path(node)]

    def child(self, node: int, token: int) -> int | None:
        """The child of a node that says this; the first, where several do."""
        return next((c for c in self.children.get(node, ()) if self.tokens[c] == token), None)

    def follow(self, text: list[int]) -> list[int]:
        """The nodes that the start of `text` runs through, root's child first."""
        nodes: list[int] = []
        for token in text:
            node = self.child(nodes[-1] if nodes else ROOT, token)
            if node is None:
                break
            nodes.append(node)
        return nodes

    def select(self, nodes: list[int]) -> "TokenTree":
        """The tree of these nodes alone: in ascending order, none without its parent."""
        if len(nodes) == len(self):
            return self
        if self.q is not None:
            raise ValueError("a drawn tree must be checked as it is")
        place = {node: i for i, node in enumerate(nodes)} | {ROOT: ROOT}
        return TokenTree(
            [self.tokens[node] for node in nodes],
            [place[self.parents[node]] for node in nodes],
            self.source,
            None if self.confidence is None else [self.confidence[node] for node in nodes],
        )


def is_chain(parents: list[int]) -> bool:
    return parents == [*range(-1, len(parents) - 1)]


def depths_of(parents: Sequence[int]) -> list[int]:
    depths: list[int] = []
    for parent in parents:
        depths.append(1 if parent == ROOT else depths[parent] + 1)
    return depths


def children_of(parents: Sequence[int]) -> dict[int, list[int]]:
    children: dict[int, list[int]] = {}
    for node, parent in enumerate(parents):
        children.setdefault(parent, []).append(node)
    return children


def path_to(node: int, parents: Sequence[int]) -> list[int]:
    path: list[int] = []
    while node != ROOT:
        path.append(node)
        node = parents[node]
    return path[::-1]


def ancestor_mask(parents: list[int]) -> Tensor:
    """[n, n] bool: row i is True at i and at every ancestor of i. ROOT starts a path."""
    if is_chain(parents):  # as prompts are: long
        return torch.from_numpy(np.tri(len(parents), dtype=np.bool_))
    mask = np.eye(len(parents), dtype=np.bool_)  # whose rows cost less to touch than torch's
    for node, parent in enumerate(parents):
        if parent != ROOT:
            mask[node] |= mask[parent]
    return torch.from_numpy(mask)
