"""The radix tree against a model that knows one dictionary: prefix -> (slot, time of last use)."""

from array import array
from itertools import count

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from outrider.model.radix import Node, RadixTree

Text = tuple[int, ...]
texts = st.lists(st.integers(0, 2), max_size=7).map(tuple)


def text_of(node: Node) -> Text:
    return (*text_of(node.parent), *node.tokens) if node.parent else ()


def prefixes(text: Text) -> list[Text]:
    return [text[:i] for i in range(1, len(text) + 1)]


def insert(tree: RadixTree, text: Text, first_slot: int) -> Node:
    return tree.insert(text, array("q", range(first_slot, first_slot + len(text))))[0]


class AgainstNaiveModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.tree = RadixTree()
        self.slot: dict[Text, int] = {}
        self.used: dict[Text, int] = {}
        self.locked: list[tuple[Node, Text]] = []
        self.new_slots, self.clock = count(1), count(1)

    def touch(self, text: Text) -> Text:
        """The longest known prefix, which counts as used now."""
        known = [prefix for prefix in prefixes(text) if prefix in self.slot]
        self.used |= dict.fromkeys(known, next(self.clock))
        return known[-1] if known else ()

    @rule(text=texts)
    def match(self, text: Text) -> None:
        known = self.touch(text)
        node, slots = self.tree.match(text)
        assert text_of(node) == known
        assert list(slots) == [self.slot[prefix] for prefix in prefixes(known)]

    @rule(text=texts)
    def insert(self, text: Text) -> None:
        known, now = self.touch(text), next(self.clock)
        given = array("q", [next(self.new_slots) for _ in text])
        for prefix in prefixes(text)[len(known) :]:
            self.slot[prefix], self.used[prefix] = given[len(prefix) - 1], now
        node, held = self.tree.insert(text, given)
        assert text_of(node) == text
        assert list(held) == [self.slot[prefix] for prefix in prefixes(text)]

    @rule(text=texts)
    def lock(self, text: Text) -> None:
        known = self.touch(text)
        node, _ = self.tree.match(text)
        self.tree.lock(node)
        self.locked.append((node, known))

    @precondition(lambda self: self.locked)
    @rule(data=st.data())
    def unlock(self, data: st.DataObject) -> None:
        node, text = self.locked.pop(data.draw(st.integers(0, len(self.locked) - 1)))
        assert text_of(node) == text  # splits and evictions left the locked text alone
        self.tree.unlock(node)

    @rule(wanted=st.integers(0, 8))
    def evict(self, wanted: int) -> None:
        """One token at a time: the least recently used of those that end a text nobody reads."""
        expected = []
        for _ in range(wanted):
            inner = {text[:-1] for text in self.slot} | {
                prefix for _, text in self.locked for prefix in prefixes(text)
            }
            ends = [text for text in self.slot if text not in inner]
            if not ends:
                break
            oldest = min(ends, key=self.used.__getitem__)
            expected.append(self.slot.pop(oldest))
        assert sorted(self.tree.evict(wanted)) == sorted(expected)

    @invariant()
    def holds_the_same_texts(self) -> None:
        held = {}
        for node in self.tree.nodes():
            text = text_of(node)
            assert len(node.tokens) == len(node.slots) > 0
            assert node.parent and node.parent.children[node.tokens[0]] is node
            for i, slot in enumerate(reversed(node.slots)):
                held[text[: len(text) - i]] = slot
        assert held == self.slot

    @invariant()
    def counts_the_locks_of_every_node(self) -> None:
        for node in [self.tree.root, *self.tree.nodes()]:
            text = text_of(node)
            assert node.locks == sum(read[: len(text)] == text for _, read in self.locked)


AgainstNaiveModel.TestCase.settings = settings(
    max_examples=150, stateful_step_count=30, deadline=None
)
TestAgainstNaiveModel = AgainstNaiveModel.TestCase


def test_the_least_recently_used_text_goes_first():
    tree = RadixTree()
    for first_slot, text in [(10, (1, 1)), (20, (2, 2)), (30, (3, 3))]:
        insert(tree, text, first_slot)
    tree.match((1, 1))
    assert list(tree.evict(2)) == [20, 21]
    assert list(tree.evict(2)) == [30, 31]
    assert list(tree.evict(2)) == [10, 11]


def test_a_text_is_evicted_from_its_end():
    tree = RadixTree()
    insert(tree, (1, 2, 3, 4), 10)
    assert list(tree.evict(1)) == [13]
    assert list(tree.match((1, 2, 3, 4))[1]) == [10, 11, 12]


def test_a_shared_prefix_outlives_its_continuations_however_old():
    tree = RadixTree()
    insert(tree, (1, 2, 3), 10)
    insert(tree, (1, 2, 4), 20)  # takes only slot 22, and makes (1, 2) newer than (1, 2, 3)
    assert [list(tree.evict(1)) for _ in range(5)] == [[12], [22], [11], [10], []]


def test_locked_text_is_never_evicted():
    tree = RadixTree()
    node = insert(tree, (1, 2), 10)
    insert(tree, (1, 2, 3, 4), 20)
    tree.lock(node)
    assert sorted(tree.evict(100)) == [22, 23]
    tree.unlock(node)
    assert sorted(tree.evict(100)) == [10, 11]


def test_a_lock_covers_only_what_is_read_of_an_edge():
    tree = RadixTree()
    insert(tree, (1, 2, 3, 4), 10)
    tree.lock(tree.match((1, 2, 9))[0])
    assert sorted(tree.evict(100)) == [12, 13]
