"""Who owns which KV slot: free, private to one request, or cached with a lock count."""

from array import array
from dataclasses import dataclass

import numpy as np

from outrider.core.request import Request
from outrider.model.radix import Node, RadixTree

EVICTIONS = 64  # it takes so many, at least, to empty a cache


class SlotLeak(AssertionError):
    """The slots do not add up: a fault in Outrider, never in a request."""


@dataclass
class Lease:
    """What a request reads from the cache: its first `borrowed` slots, down to `node`."""

    node: Node
    borrowed: int


class KVCache:
    """Slots 1 to `total`; slot 0 is the scrap slot. Holds no tensors: the runners do."""

    def __init__(self, total: int, prefix_caching: bool = True) -> None:
        self.total = total
        self.prefix_caching = prefix_caching
        self.tree = RadixTree()
        self._free = array("q", range(total, 0, -1))  # a stack: used memory stays small and warm
        self._leases: dict[Request, Lease] = {}
        # How often a slot was handed out. A drafter that notes it beside its own entry can tell
        # for ever after whether the entry still belongs to the slot's present text.
        self.generation = np.zeros(total + 1, dtype=np.int64)
        self._handed_out = self.generation.data  # the same, quick to count up one by one

    def open(self, request: Request) -> int:
        """Start a request: borrow the longest cached prefix; the number of tokens it covers.

        The last token is always computed again, for its logits.
        """
        node, slots = self.tree.root, array("q")
        if self.prefix_caching:
            node, slots = self.tree.match(request.tokens[:-1])
        self.tree.lock(node)
        self._leases[request] = Lease(node, len(slots))
        request.slots = slots
        return len(slots)

    def reserve(self, request: Request, count: int) -> bool:
        """Set `count` more slots aside for the request, evicting cached text if need be."""
        if len(self._free) < count:
            # Finding the oldest texts takes a look at all: not for every single token.
            self._free += self.tree.evict(max(count - len(self._free), self.total // EVICTIONS))
        if len(self._free) < count:
            return False
        free, handed_out, reserved = self._free, self._handed_out, request.reserved
        for _ in range(count):  # one, nearly always
            slot = free.pop()
            handed_out[slot] += 1
            reserved.append(slot)
        return True

    def trim(self, request: Request, count: int) -> None:
        """Of the reserved slots, keep the first `count`."""
        if len(request.reserved) > count:
            self._free.extend(reversed(request.reserved[count:]))
            del request.reserved[count:]

    def commit(self, request: Request, keep: list[int], ahead: int = 0) -> None:
        """Of the reserved slots, append those at the indices `keep` to the text; free the rest, but
        for the last `ahead` of them, which a pass that has already started writes."""
        reserved = request.reserved
        settled = len(reserved) - ahead
        request.slots.extend([reserved[i] for i in keep])
        if len(keep) < settled:
            kept = set(keep)
            self._free.extend(reserved[i] for i in reversed(range(settled)) if i not in kept)
        del reserved[:settled]

    def share(self, request: Request) -> None:
        """Put the request's text into the prefix cache and go on reading it from there."""
        if not self.prefix_caching:
            return
        lease = self._leases[request]
        node, held = self.tree.insert(request.tokens[: len(request.slots)], request.slots)
        own = request.slots[lease.borrowed :]
        # Another request may have computed the same text meanwhile; then its slots are kept.
        duplicates = [s for s, h in zip(own, held[lease.borrowed :], strict=True) if s != h]
        self._free.extend(duplicates)
        self.tree.lock(node)
        self.tree.unlock(lease.node)
        request.slots = held
        self._leases[request] = Lease(node, len(held))

    def close(self, request: Request) -> None:
        """End a request: its text goes to the cache, everything else is free again."""
        if request not in self._leases:
            return
        self.commit(request, [])
        self.share(request)
        lease = self._leases.pop(request)
        self._free += request.slots[lease.borrowed :]
        self.tree.unlock(lease.node)
        request.slots = array("q")

    def forget(self) -> None:
        """Drop all cached text that nobody reads."""
        self._free += self.tree.evict(self.total)

    @property
    def available(self) -> int:
        """Slots free now, before any eviction."""
        return len(self._free)

    def check(self) -> None:
        """Every slot is free, private or cached, exactly once, and every lock has its request."""
        nodes = list(self.tree.nodes())
        private = [
            part
            for request, lease in self._leases.items()
            for part in (request.slots[lease.borrowed :], request.reserved)
        ]
        everything = [self._free, *(node.slots for node in nodes), *private]
        counted = np.bincount(
            np.concatenate([np.array(part, dtype=np.int64) for part in everything]),
            minlength=self.total + 1,
        )
        if len(counted) != self.total + 1 or counted[0] or (counted[1:] != 1).any():
            lost = np.flatnonzero(counted[1 : self.total + 1] == 0) + 1
            twice = np.flatnonzero(counted[1:] > 1) + 1
            raise SlotLeak(f"KV slots lost: {lost[:8].tolist()}, owned twice: {twice[:8].tolist()}")
        if self.tree.root.locks != len(self._leases):
            raise SlotLeak(f"{self.tree.root.locks} locks for {len(self._leases)} requests")
        for node in nodes:
            below = sum(child.locks for child in node.children.values())
            ending = sum(lease.node is node for lease in self._leases.values())
            if node.locks != below + ending:
                raise SlotLeak(f"a cached text has {node.locks} locks, {below + ending} are due")
