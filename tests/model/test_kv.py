"""Slot ownership under random interleavings, and proof that the integrity check can fail."""

from array import array
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from outrider.core.params import SamplingParams
from outrider.core.request import Request
from outrider.model.kv import KVCache, SlotLeak
from outrider.model.radix import Node

Text = tuple[int, ...]
texts = st.lists(st.integers(0, 1), min_size=1, max_size=8)


def make_request(tokens: list[int]) -> Request:
    return Request("r", list(tokens), SamplingParams(), seed=0)


def write(kv: KVCache, request: Request) -> None:
    """Compute everything that is pending, as a prefill in one pass does."""
    rows = request.pending
    assert kv.reserve(request, rows)
    kv.commit(request, list(range(rows)))


def opened(kv: KVCache, tokens: list[int], written: bool = True) -> Request:
    request = make_request(tokens)
    kv.open(request)
    if written:
        write(kv, request)
    return request


def text_of(node: Node) -> Text:
    return (*text_of(node.parent), *node.tokens) if node.parent else ()


class RandomLives(RuleBasedStateMachine):
    """Requests open, reserve, commit, share and close in any order.

    `written` plays the KV memory: which text each slot's entry was computed for. A slot that is
    handed out while somebody still reads it shows as an entry of another text.
    """

    @initialize(total=st.integers(4, 14), caching=st.booleans())
    def start(self, total: int, caching: bool) -> None:
        self.kv = KVCache(total, caching)
        self.live: list[Request] = []
        self.resting: list[Request] = []  # preempted: closed, to be opened again
        self.written: dict[int, Text | None] = {}
        self.handed_out: Counter[int] = Counter()

    def pick(self, data: st.DataObject) -> Request:
        return self.live[data.draw(st.integers(0, len(self.live) - 1))]

    def cached(self) -> dict[Text, int]:
        held = {}
        for node in self.kv.tree.nodes():
            text = text_of(node)
            for i, slot in enumerate(reversed(node.slots)):
                held[text[: len(text) - i]] = slot
        return held

    def open(self, request: Request) -> None:
        tokens, held = tuple(request.tokens), self.cached()
        known = [i for i in range(1, len(tokens)) if tokens[:i] in held]  # never the last token
        assert self.kv.open(request) == len(request.slots) == max(known, default=0)
        self.live.append(request)

    @rule(tokens=texts)
    def open_new(self, tokens: list[int]) -> None:
        self.open(make_request(tokens))

    @precondition(lambda self: self.resting)
    @rule()
    def open_again(self) -> None:
        self.open(self.resting.pop())

    @precondition(lambda self: self.live)
    @rule(data=st.data(), rows=st.integers(0, 6), nodes=st.integers(0, 4))
    def reserve(self, data: st.DataObject, rows: int, nodes: int) -> None:
        request = self.pick(data)
        if request.reserved:
            return  # one step at a time
        rows = min(rows, request.pending)
        count = rows + (nodes if rows == request.pending else 0)
        in_use = {slot for r in self.live for slot in [*r.slots, *r.reserved]}
        room, free = self.kv.total - len(in_use), self.kv.available
        assert self.kv.reserve(request, count) == (count <= room)
        assert len(request.reserved) == (count if count <= room else 0)
        if count <= room:
            assert self.kv.available == max(0, free - count)  # nothing is evicted without need
        for slot in request.reserved:  # the pass writes rows and nodes, right or wrong
            self.written[slot] = None
            self.handed_out[slot] += 1

    @precondition(lambda self: any(r.reserved for r in self.live))
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from([r for r in self.live if r.reserved]))
        rows = min(request.pending, len(request.reserved))
        nodes = list(range(rows, len(request.reserved)))
        kept = [i for i in nodes if data.draw(st.booleans())]
        for _ in kept:
            request.append(data.draw(st.integers(0, 1)))
        slots = [request.reserved[i] for i in [*range(rows), *kept]]
        start = len(request.slots)
        for i, slot in enumerate(slots, start + 1):
            self.written[slot] = tuple(request.tokens[:i])
        self.kv.commit(request, [*range(rows), *kept])
        assert list(request.slots[start:]) == slots
        assert not request.reserved
        if not request.pending:
            request.append(data.draw(st.integers(0, 1)))  # the target's own token

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        request = self.pick(data)
        length = len(request.slots)
        self.kv.share(request)
        assert len(request.slots) == length
        if self.kv.prefix_caching and length:
            assert self.cached()[tuple(request.tokens[:length])] == request.slots[-1]

    @precondition(lambda self: self.live)
    @rule(data=st.data(), again=st.booleans())
    def close(self, data: st.DataObject, again: bool) -> None:
        request = self.pick(data)
        text = tuple(request.tokens[: len(request.slots)])
        self.kv.close(request)
        self.kv.close(request)  # a second time is harmless
        assert not request.slots
        assert not request.reserved
        assert not text or (text in self.cached()) == self.kv.prefix_caching
        self.live.remove(request)
        if again:
            self.resting.append(request)

    @invariant()
    def slots_add_up(self) -> None:
        self.kv.check()

    @invariant()
    def every_slot_holds_the_text_it_is_read_for(self) -> None:
        for request in self.live:
            for i, slot in enumerate(request.slots, 1):
                assert self.written[slot] == tuple(request.tokens[:i])
        for text, slot in self.cached().items():
            assert self.written[slot] == text

    @invariant()
    def generation_counts_how_often_a_slot_was_handed_out(self) -> None:
        expected = [self.handed_out[slot] for slot in range(self.kv.total + 1)]
        assert self.kv.generation.tolist() == expected

    def teardown(self) -> None:
        for request in getattr(self, "live", []):
            self.kv.close(request)
        if hasattr(self, "kv"):
            self.kv.check()
            everything = make_request([0])
            self.kv.open(everything)
            assert self.kv.reserve(everything, self.kv.total)  # nothing was lost to a stale lock


RandomLives.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestRandomLives = RandomLives.TestCase


def test_a_request_borrows_what_another_computed_but_recomputes_its_last_token():
    kv = KVCache(16)
    first = opened(kv, [1, 2, 3, 4])
    kv.share(first)
    second = make_request([1, 2, 3, 4])
    assert kv.open(second) == 3
    assert second.slots == first.slots[:3]
    kv.check()


def test_the_same_text_computed_twice_is_kept_once():
    kv = KVCache(16)
    first, second = opened(kv, [1, 2, 3]), opened(kv, [1, 2, 3])
    assert kv.available == 10
    kv.share(first)
    kv.share(second)
    assert second.slots == first.slots
    assert kv.available == 13
    kv.check()


def test_rejected_nodes_are_free_again_and_kept_ones_are_not_copied():
    kv = KVCache(8)
    request = opened(kv, [1], written=False)
    assert kv.reserve(request, 4)
    root, _, kept, _ = request.reserved
    request.append(5)
    kv.commit(request, [0, 2])
    assert list(request.slots) == [root, kept]
    assert kv.available == 6
    kv.check()


def test_eviction_takes_the_least_recently_used_text():
    kv = KVCache(6)
    for tokens in ([1, 1], [2, 2], [3, 3]):
        kv.close(opened(kv, tokens))
    kv.close(opened(kv, [1, 1, 1], written=False))  # only looks it up
    newcomer = opened(kv, [4, 4])
    assert kv.open(make_request([2, 2, 0])) == 0
    assert kv.open(make_request([1, 1, 0])) == 2
    assert kv.open(make_request([3, 3, 0])) == 2
    assert len(newcomer.slots) == 2


def test_no_more_is_evicted_than_is_needed():
    kv = KVCache(6)
    kv.close(opened(kv, [1, 2, 3, 4]))
    opened(kv, [9, 9, 9])
    assert kv.available == 0
    assert kv.open(make_request([1, 2, 3, 4])) == 3


def test_what_a_request_reads_is_not_evicted():
    kv = KVCache(4)
    reader = opened(kv, [1, 2, 3])
    kv.share(reader)
    other = opened(kv, [9, 9], written=False)
    assert not kv.reserve(other, 2)
    assert kv.reserve(other, 1)
    kv.check()


def test_without_prefix_caching_nothing_stays():
    kv = KVCache(4, prefix_caching=False)
    request = opened(kv, [1, 2, 3])
    kv.share(request)
    kv.close(request)
    assert kv.available == 4
    assert kv.open(make_request([1, 2, 3, 4])) == 0


def test_a_slot_that_is_handed_out_again_has_a_new_generation():
    kv = KVCache(1)
    kv.close(opened(kv, [1]))
    before = int(kv.generation[1])
    opened(kv, [2])
    assert kv.generation[1] == before + 1


# ---- the check itself ----


def lose_a_free_slot(kv: KVCache, request: Request) -> None:
    kv._free.pop()


def lose_a_private_slot(kv: KVCache, request: Request) -> None:
    request.reserved.pop()


def lose_a_cached_slot(kv: KVCache, request: Request) -> None:
    next(kv.tree.nodes()).slots.pop()


def free_a_slot_twice(kv: KVCache, request: Request) -> None:
    kv._free.append(kv._free[0])


def free_a_private_slot(kv: KVCache, request: Request) -> None:
    kv._free.append(request.reserved[0])


def free_a_cached_slot(kv: KVCache, request: Request) -> None:
    kv._free.append(request.slots[0])


def free_the_scrap_slot(kv: KVCache, request: Request) -> None:
    kv._free.append(0)


def free_a_slot_that_does_not_exist(kv: KVCache, request: Request) -> None:
    kv._free.append(kv.total + 1)


def leak_a_lock(kv: KVCache, request: Request) -> None:
    kv.tree.lock(next(kv.tree.nodes()))


def leak_a_lock_of_the_root(kv: KVCache, request: Request) -> None:
    kv.tree.lock(kv.tree.root)


def lose_a_lock(kv: KVCache, request: Request) -> None:
    kv.tree.unlock(kv._leases[request].node)


def lock_the_wrong_text(kv: KVCache, request: Request) -> None:
    kv.tree.unlock(kv._leases[request].node)
    kv.tree.lock(kv.tree.root)


def forget_a_request(kv: KVCache, request: Request) -> None:
    kv.commit(request, [])
    del kv._leases[request]


FAULTS = [
    lose_a_free_slot,
    lose_a_private_slot,
    lose_a_cached_slot,
    free_a_slot_twice,
    free_a_private_slot,
    free_a_cached_slot,
    free_the_scrap_slot,
    free_a_slot_that_does_not_exist,
    leak_a_lock,
    leak_a_lock_of_the_root,
    lose_a_lock,
    lock_the_wrong_text,
    forget_a_request,
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_the_check_sees_a_planted_fault(fault: Callable[[KVCache, Request], None]):
    kv = KVCache(12)
    request = opened(kv, [1, 2, 3])
    kv.share(request)
    kv.reserve(request, 3)
    kv.check()
    fault(kv, request)
    with pytest.raises(SlotLeak):
        kv.check()


def test_the_check_names_the_slots():
    kv = KVCache(4)
    assert kv.reserve(opened(kv, [1], written=False), 1)
    kv._free = array("q", [2, 3, 3])
    with pytest.raises(SlotLeak, match=r"lost: \[4\], owned twice: \[3\]"):
        kv.check()


def test_a_full_cache_is_not_searched_for_every_token(monkeypatch: pytest.MonkeyPatch) -> None:
    kv = KVCache(6400)
    for first in range(64):
        slots = array("q", range(100 * first + 1, 100 * first + 101))
        kv.tree.insert([first, *range(99)], slots)
    kv._free = array("q")
    searches = []
    evict = kv.tree.evict
    monkeypatch.setattr(kv.tree, "evict", lambda wanted: searches.append(wanted) or evict(wanted))
    request = Request("", [7], SamplingParams(), seed=0)
    kv.open(request)
    assert all(kv.reserve(request, 1) for _ in range(200))
    assert searches == [100, 100]
