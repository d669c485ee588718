"""Reports of drafters, on texts that are not what they have learned."""

from random import Random

import pytest
from tests.engine.policy.replay import Replay, oracle
from tests.engine.policy.test_policy import fail, offered, promised

from outrider.core.params import SamplingParams
from outrider.core.request import Request
from outrider.core.tree import TokenTree
from outrider.drafters.worth import FREE
from outrider.engine.policy.acceptance import HOPE
from outrider.engine.policy.gate import Pass
from outrider.engine.policy.offer import Offer, Outlook, Size
from outrider.engine.policy.policy import AT_FIRST, UNPROVEN, Policy
from outrider.engine.policy.promise import SURE, Promise

MANY = 2 * AT_FIRST


def texts(count: int) -> list[Request]:
    return [Request(str(i), [1], SamplingParams(), seed=0) for i in range(count)]


def step(policy: Policy, requests: list[Request], right: int) -> None:
    """One in which the drafter is right for so many of them."""
    for number, request in enumerate(requests):
        policy.learn(request, "d", TokenTree.chain([5], "d"), [5 if number < right else 9])
    policy.settle()


def steps_until_broken(policy: Policy, requests: list[Request], right: int) -> int:
    for number in range(1, 200):
        step(policy, requests, right)
        if "d" not in policy.standing.promised:
            return number
    return 200


def test_a_lone_text_of_which_nothing_is_guessed_takes_a_dozen_steps_to_show_it() -> None:
    """Not the hundred drafts that a report counts for."""
    assert 6 <= steps_until_broken(promised(0.7, 0.7), texts(1), right=0) <= 16


def test_many_texts_take_three() -> None:
    assert steps_until_broken(promised(0.7, 0.7), texts(MANY), right=0) == 3


@pytest.mark.parametrize("rate", [0.6, 0.7, 1.0])
def test_who_keeps_it_about_is_believed(rate: float) -> None:
    """At six sevenths of the promise one batch in 9,000 is doubted wrongly (200,000 simulated), so
    another seed would fail once in 400 times; at the promise itself none was."""
    rng = Random(0)
    for _ in range(20):
        policy, batch = promised(0.7, 0.7), texts(MANY)
        for _ in range(48):
            step(policy, batch, right=sum(rng.random() < rate for _ in batch))
        assert "d" in policy.standing.promised


@pytest.mark.parametrize(("honesty", "kept"), [(0.9, True), (0.0, False)])
def test_every_step_has_its_say(honesty: float, kept: bool) -> None:
    replay = Replay([oracle(honesty)])
    replay.policy.promise("oracle", (0.9, 0.9))
    replay.run(count=1, tokens=80)
    assert ("oracle" in replay.policy.standing.promised) == kept


def test_a_bad_step_now_and_then_is_none_too_many() -> None:
    policy, batch = promised(0.7, 0.7), texts(MANY)
    for _ in range(20):
        step(policy, batch, right=0)
        step(policy, batch, right=0)
        step(policy, batch, right=MANY)
        step(policy, batch, right=MANY)
    assert "d" in policy.standing.promised


def test_past_successes_are_no_credit_for_texts_of_another_kind() -> None:
    policy = promised(0.7, 0.7)
    for _ in range(50):
        step(policy, texts(MANY), right=MANY)
    assert steps_until_broken(policy, texts(MANY), right=0) == 3


def test_who_broke_it_is_a_stranger_until_all_is_forgotten() -> None:
    policy = promised(0.9, 0.9)
    policy.tracks["d"].learn_node(0.5, 1, True)
    seen_here = policy.tracks["d"].nodes
    steps_until_broken(policy, texts(MANY), right=0)
    assert policy.tracks["d"].hope == pytest.approx(HOPE)
    assert policy.tracks["d"].nodes is seen_here
    assert offered(policy, MANY) == AT_FIRST
    fail(policy, 100)  # and one who is hopeless is found to be that
    assert policy.tracks["d"].hope < 0.1
    policy.reset()
    assert offered(policy, MANY) == MANY


def test_silence_breaks_it_as_well() -> None:
    policy, batch = promised(0.7, 0.7), texts(MANY)
    for _ in range(3):
        assert "d" in policy.standing.promised
        policy.learn_silence("d", batch)
        policy.settle()
    assert "d" not in policy.standing.promised


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_a_report_may_promise_nothing_or_everything(share: float) -> None:
    promise = Promise((share,))
    for held in (True, False):
        promise.learn(held, 1.0)
        promise.settle()
    assert promise._odds <= SURE


def test_who_is_trusted_need_not_promise_more_than_plain_decoding() -> None:
    outlooks = [Outlook([0.7], 0.0, 1)] * MANY
    base, offer = Pass(MANY, MANY, MANY, 0), Offer(1.01, Size(1, 1), list(range(MANY)), FREE)
    trusted, known = promised(0.7, 0.7), promised()
    for _ in range(UNPROVEN):
        known.learn(texts(1)[0], "d", TokenTree.chain([5], "d"), [5])
    assert trusted.pays("d", offer, outlooks, base, speed=1.0)
    assert not known.pays("d", offer, outlooks, base, speed=1.0)
    assert not trusted.pays("d", offer, outlooks, base, speed=1.02)


def test_silence_for_many_texts_tells_as_much_as_their_wrong_guesses() -> None:
    """The hundredth draft for a text tells little of others, be it a guess or none."""
    silent, wrong = promised(), promised()
    batch = texts(MANY)
    for _ in range(20):
        silent.learn_silence("d", batch)
        step(wrong, batch, right=0)
    counts = [policy.tracks["d"].lasting.count for policy in (silent, wrong)]
    assert counts[0] == pytest.approx(counts[1], rel=0.1)
