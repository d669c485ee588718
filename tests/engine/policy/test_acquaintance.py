"""Drafters that cost time, and of which nothing is known."""

from tests.engine.policy.replay import Oracle, Replay, oracle
from tests.engine.policy.test_policy import promised

from outrider.core.params import SamplingParams
from outrider.core.request import Request
from outrider.core.tree import TokenTree
from outrider.engine.policy.acceptance import BETTER, in_odds
from outrider.engine.policy.acquaintance import ENOUGH, Acquaintance
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


def test_on_a_gpu_a_stranger_is_asked_for_as_much_as_others() -> None:
    assert asked(honesty=1.0, ahead=True)[0] > 1


def test_who_has_shown_what_it_can_is_a_stranger_no_more() -> None:
    known = Acquaintance()
    for held in (False, True, True, False, True, True, True):
        assert known.stranger
        known.learn(held)
    assert known.most == ENOUGH
    known.learn(False)
    assert not known.stranger


def gain(policy: Policy) -> float:
    """What a text that has just begun may expect of one guess."""
    request = Request("new", [1], SamplingParams(), seed=0)
    return float(policy.gains([request], "d", [Size(1, 1)], [], [1])[0][0])


def test_texts_of_another_kind_are_not_hoped_for_of_who_was_never_right() -> None:
    policy = promised()
    request = Request("a", [1], SamplingParams(), seed=0)
    policy.learn(request, "d", TokenTree.chain([5], "d"), [9])
    chance = policy.tracks["d"].level_chance(1)
    assert gain(policy) == chance
    policy._acquaintances["d"].most = ENOUGH
    assert gain(policy) == in_odds(chance, BETTER)


def test_a_report_is_an_introduction() -> None:
    request = Request("a", [1], SamplingParams(), seed=0)
    for policy, most in ((promised(), 1), (promised(0.7, 0.7), 10**6)):
        policy.learn(request, "d", TokenTree.chain([5], "d"), [9])
        assert min(policy.most("d"), 10**6) == most
