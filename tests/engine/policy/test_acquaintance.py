"""Drafters that cost time, and of which nothing is known."""

import pytest
from tests.engine.policy.replay import Oracle, Replay, oracle
from tests.engine.policy.test_policy import promised

from outrider.core.params import SamplingParams
from outrider.core.request import Request
from outrider.core.tree import TokenTree
from outrider.drafters.worth import Worth
from outrider.engine.policy.acceptance import BETTER, in_odds
from outrider.engine.policy.acquaintance import KNOWN, Acquaintance
from outrider.engine.policy.offer import Size
from outrider.engine.policy.policy import Policy


def asked(honesty: float, texts: int = 1, ahead: bool = False) -> list[int]:
    """Nodes that a drafter was asked for, one time after the other."""
    budgets: list[int] = []

    class Costly(oracle(honesty)):  # type: ignore[misc]
        light = False

        def lookup(self, request: Request, ahead: list[int], budget: int) -> TokenTree:
            budgets.append(budget)
            found: TokenTree = Oracle.lookup(self, request, ahead, budget)
            return found

    replay = Replay([Costly])
    replay.policy.ahead = ahead
    replay.run(texts, 100)
    return budgets


def test_who_is_right_may_guess_more_the_next_time() -> None:
    """What came of a draft is told when the next one is made."""
    assert asked(honesty=1.0)[:5] == [1, 1, 2, 4, 8]


def test_who_is_never_right_is_asked_for_one_guess() -> None:
    budgets = asked(honesty=0.0)
    assert budgets and set(budgets) == {1}
    assert max(asked(honesty=0.0, texts=8)) == 1


def test_guesses_go_as_deep_as_they_may_so_that_it_is_known_what_that_takes() -> None:
    depths: list[int] = []

    class Deep(oracle(1.0)):  # type: ignore[misc]
        light = False

        def depth(self, nodes: int) -> int:
            return nodes

        def propose_to(
            self, batch: list[Request], budgets: list[int], depth: int, worth: Worth
        ) -> list[TokenTree]:
            depths.append(depth)
            trees: list[TokenTree] = self.propose(batch, budgets)
            return trees

    Replay([Deep]).run(1, 100)
    assert depths[:5] == [1, 1, 2, 4, 8]


def test_where_drafts_are_captured_a_stranger_is_asked_for_as_much_as_others() -> None:
    assert asked(honesty=1.0, ahead=True)[0] > 1


def test_who_has_shown_what_it_can_is_a_stranger_no_more() -> None:
    known = Acquaintance()
    for held in (False, True, True, False, True, True, True):
        assert known.stranger
        known.learn(held)
        known.settle()
    assert known.most == KNOWN
    known.learn(False)
    known.settle()
    assert not known.stranger


def test_a_step_counts_once_however_many_texts_it_has() -> None:
    """They may be copies of each other."""
    acquaintance = Acquaintance()
    for right, most in ((8, 2), (4, 4), (3, 2), (0, 1), (0, 1)):
        for number in range(8):
            acquaintance.learn(number < right)
        acquaintance.settle()
        assert acquaintance.most == most
    acquaintance.settle()  # nothing was drafted
    assert acquaintance.most == 1


def new(name: str = "new") -> Request:
    return Request(name, [1], SamplingParams(), seed=0)


def gain(policy: Policy) -> float:
    """What a text that has just begun may expect of one guess."""
    return float(policy.gains([new()], "d", [Size(1, 1)], [], [1])[0][0])


@pytest.mark.parametrize(("rate", "hoped"), [(0, False), (2, True)])
def test_texts_of_another_kind_are_hoped_for_of_who_is_sometimes_right(
    rate: int, hoped: bool
) -> None:
    policy = promised()
    for number in range(20):
        right = number % 5 in (0, 2)[:rate]
        policy.learn(new(str(number)), "d", TokenTree.chain([5], "d"), [5 if right else 9])
    chance = policy.tracks["d"].level_chance(1)
    assert gain(policy) == pytest.approx(in_odds(chance, BETTER) if hoped else chance)


def test_a_report_is_an_introduction_while_it_holds() -> None:
    stranger, introduced = promised(), promised(0.7, 0.7)
    assert stranger.may_guess("d") == 1
    assert introduced.may_guess("d") is None
    while "d" in introduced.standing.promised:
        introduced.learn(new(), "d", TokenTree.chain([5], "d"), [9])
        introduced.settle()
    assert introduced.may_guess("d") == 1


def test_silence_is_no_way_to_be_known() -> None:
    policy, request = promised(), new()
    for silent, most in ((False, 2), (False, 4), (True, 2), (True, 1)):
        policy.may_guess("d")
        if silent:
            policy.learn_silence("d", [request])
        else:
            policy.learn(request, "d", TokenTree.chain([5], "d"), [5])
        policy.settle()
        assert policy.may_guess("d") == most


def test_all_is_forgotten_by_a_reset() -> None:
    policy = promised()
    policy.may_guess("d")
    policy.learn(new(), "d", TokenTree.chain([5], "d"), [5])
    policy.settle()
    policy.reset()
    assert policy.may_guess("d") == 1
