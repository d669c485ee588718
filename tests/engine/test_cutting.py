"""What is left of proposals."""

from typing import Any

import pytest
import torch

from outrider.core.params import SamplingParams
from outrider.core.request import Request
from outrider.core.tree import TokenTree
from outrider.drafters.base import Drafter
from outrider.drafters.merging import unite
from outrider.engine.cutting import Cut, Proposal, worth_checking
from outrider.engine.policy.cost import Measured
from outrider.engine.policy.gate import Pass
from outrider.engine.policy.policy import Policy

DEAR = Measured([1, 64], [1.0, 20.0], context=256)  # a further row costs a third of a pass
BASE = Pass(writers=1, rows=1, sequences=1, keys=0)


class Divisible(Drafter):
    name = "divisible"
    divisible = True

    def __init__(self) -> None: ...


class Named(Divisible):
    def __init__(self, name: str) -> None:
        self.name = name  # type: ignore[misc]


class Whole(Divisible):
    divisible = False


@pytest.fixture
def text() -> Request:
    return Request("r", [1], SamplingParams(), seed=0)


def checked(request: Request, proposals: list[Proposal], alone: Any = None) -> Cut:
    policy, budget = Policy(lambda: DEAR), {request: 8}
    chosen = {} if alone is None else {request: alone}
    return worth_checking(policy, {request: proposals}, chosen, budget, BASE, 8, late=False)


def test_what_will_hardly_hold_is_cut(text: Request) -> None:
    tree = TokenTree.chain([5, 6, 7], "d")
    cut = checked(text, [Proposal(Divisible(), tree, [0.9, 0.1, 0.05])])
    assert cut.trees[text].tokens == [5] and cut.expected[text] == pytest.approx(0.9)


def test_proposals_that_agree_are_merged(text: Request) -> None:
    first = Proposal(Divisible(), TokenTree.chain([5, 6], "d"), [0.95, 0.9])
    other = Proposal(Divisible(), TokenTree.chain([5, 8], "e"), [0.95, 0.01])
    assert checked(text, [first, other]).trees[text].tokens == [5, 6]


def test_a_chain_that_goes_on_by_itself_is_checked_whole(text: Request) -> None:
    """Nothing is cut from it and nobody's guesses join it: it would be another shape each time."""
    leader = Divisible()
    lookup = Proposal(Divisible(), TokenTree.chain([9], "e"), [0.95])
    chain = Proposal(leader, TokenTree.chain([5, 6, 7], "d"), [0.9, 0.1, 0.05])
    cut = checked(text, [lookup, chain], alone=leader)
    assert cut.trees[text].tokens == [5, 6, 7]
    assert cut.expected[text] == pytest.approx(1.05)
    assert checked(text, [lookup, chain]).trees[text].tokens != [5, 6, 7]


def test_a_copy_that_is_disputed_is_believed_as_far_as_such_copies_have_held(text: Request) -> None:
    policy, names = Policy(lambda: DEAR), ["copy", "model"]
    several = [
        Proposal(Named("copy"), TokenTree.chain([5], "copy"), [0.9]),
        Proposal(Named("model"), TokenTree.chain([6], "model"), [0.8]),
    ]

    def tokens() -> list[int]:
        cut = worth_checking(policy, {text: several}, {}, {text: 1}, BASE, 1, late=False)
        return cut.trees[text].tokens

    assert tokens() == [5]
    for _ in range(60):
        union = unite([proposal.tree for proposal in several])
        policy.concord.learn(union, names, [[0.9], [0.8]], [6])
    assert tokens() == [6]


def test_what_is_drawn_or_must_be_whole_is_not_divisible() -> None:
    tree = TokenTree.chain([5], "d")
    drawn = TokenTree([5], [-1], "d", None, torch.ones(1, 9) / 9)
    assert Proposal(Divisible(), tree, [0.5]).divisible
    assert not Proposal(Divisible(), drawn, [0.5]).divisible
    assert not Proposal(Whole(), tree, [0.5]).divisible
