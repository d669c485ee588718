"""What is left of proposals."""

from typing import Any

import pytest

from outrider.core.params import SamplingParams
from outrider.core.request import Request
from outrider.core.tree import TokenTree
from outrider.drafters.base import Drafter
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
