"""What it tells that several drafters guess the same, or each something else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.engine.policy.replay import Replay, oracle

from outrider.core.tree import ROOT, TokenTree
from outrider.drafters.merging import unite
from outrider.engine.policy.concord import Concord

NAMES = ["copy", "model"]


def chain(*tokens: int) -> TokenTree:
    return TokenTree.chain(list(tokens), "d")


def taught(disputed: bool, agreed: bool) -> Concord:
    """By copies of which half seemed likely to hold: those that the model disputes do or do not,
    and so do those that it has guessed, too."""
    concord = Concord()
    for _ in range(60):
        apart, together = unite([chain(1), chain(2)]), unite([chain(1), chain(1)])
        concord.learn(apart, NAMES, [[0.5], [0.5]], [1 if disputed else 2])
        concord.learn(together, NAMES, [[0.5], [0.5]], [1 if agreed else 3])
    return concord


def test_copies_that_a_model_disputes_are_believed_as_far_as_such_have_held() -> None:
    union = unite([chain(1), chain(2)])
    copied, guessed = taught(disputed=False, agreed=True).chances(union, NAMES, [[0.5], [0.5]])
    assert copied < 0.1 and guessed > 0.9
    copied, guessed = taught(disputed=True, agreed=True).chances(union, NAMES, [[0.5], [0.5]])
    assert copied > 0.9 and guessed < 0.1


def test_so_are_guesses_that_all_share() -> None:
    union = unite([chain(1), chain(1)])
    assert taught(disputed=False, agreed=True).chances(union, NAMES, [[0.5], [0.5]])[0] > 0.9
    assert taught(disputed=False, agreed=False).chances(union, NAMES, [[0.5], [0.5]])[0] < 0.1


def test_what_lies_below_a_shared_guess_is_as_sure_as_that() -> None:
    """A copy that seemed unlikely at first, and would have gone on for sure."""
    union = unite([chain(1, 5), chain(1)])
    shared, below = Concord().chances(union, NAMES, [[0.2, 0.18], [0.8]])
    assert (shared, below) == pytest.approx((0.8, 0.8 * 0.9))


def test_who_guesses_alone_is_believed_as_ever() -> None:
    """Below a guess of its own, and for a text for which nobody else has any."""
    concord = taught(disputed=False, agreed=True)
    union = unite([chain(1, 5), chain(2)])
    copied, below, _ = concord.chances(union, NAMES, [[0.5, 0.4], [0.5]])
    assert below / copied == pytest.approx(0.8)
    assert concord.chances(unite([chain(1, 5)]), ["copy"], [[0.5, 0.4]]) == pytest.approx(
        [0.5, 0.4]
    )


def test_nothing_is_learned_where_the_text_did_not_come() -> None:
    concord = Concord()
    for _ in range(60):
        concord.learn(unite([chain(1, 5), chain(1, 6)]), NAMES, [[0.5, 0.4], [0.5, 0.4]], [9])
    apart = concord.chances(unite([chain(1), chain(2)]), NAMES, [[0.5], [0.5]])
    assert apart == [0.5, 0.5]


def test_the_engine_learns_it_of_all_that_was_proposed() -> None:
    """Of two drafters one knows the text, the other half of it."""
    replay = Replay([oracle(1.0, name="model", claims=0.5), oracle(0.5, name="copy", claims=0.5)])
    replay.run(4, 100)
    union, chances = unite([chain(1), chain(2)]), [[0.5], [0.5]]
    copied, guessed = replay.policy.concord.chances(union, NAMES, chances)
    assert copied < 0.2 and guessed > 0.5
    replay.drafting.reset()
    assert replay.policy.concord.chances(union, NAMES, chances) == [0.5, 0.5]


@given(
    st.lists(st.lists(st.integers(0, 2), max_size=4), min_size=1, max_size=3),
    st.lists(st.integers(0, 2), max_size=4),
)
def test_no_node_is_likelier_than_its_parent(chains: list[list[int]], text: list[int]) -> None:
    """The choice of nodes rests on that."""
    trees = [TokenTree.chain(tokens, f"{i}") for i, tokens in enumerate(chains)]
    chances = [[0.9 ** (i + 1) for i in range(len(tree))] for tree in trees]
    names, union, concord = [tree.source for tree in trees], unite(trees), Concord()
    for _ in range(5):
        concord.learn(union, names, chances, text)
    paths = concord.chances(union, names, chances)
    for path, parent in zip(paths, union.tree.parents, strict=True):
        assert 0 <= path <= (1.0 if parent == ROOT else paths[parent])
