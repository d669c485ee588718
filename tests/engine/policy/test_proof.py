"""Drafts that are slower by the clock come to a stop, and are tried again."""

import pytest

from outrider.engine.policy.proof import (
    LONGEST_STOP,
    PLAIN_STEPS,
    SETTLED,
    SHORTEST_STOP,
    STEPS,
    TEXTS,
    Proof,
)

assert 8 * STEPS == TEXTS  # eight texts below


def steps(proof: Proof, count: int, drafted: bool, tokens: int, seconds: float) -> None:
    for _ in range(count):
        proof.learn(8, tokens, seconds, drafted)


def refused(proof: Proof, texts: int = 8) -> int:
    """Steps without drafts until they may come again."""
    count = 0
    while proof.refuses(texts):
        count += 1
    return count


@pytest.mark.parametrize(("seconds", "slower"), [(1.4, False), (1.6, True)])
def test_drafts_that_are_slower_stop(seconds: float, slower: bool) -> None:
    """Twelve tokens instead of eight, in a step that takes that much longer."""
    proof = Proof()
    steps(proof, PLAIN_STEPS, False, 8, 1.0)
    steps(proof, STEPS - 1, True, 12, seconds)
    assert not proof.stopped(8)
    steps(proof, 1, True, 12, seconds)
    assert proof.stopped(8) is slower and not proof.stopped(16) and not proof.stopped(1)
    assert refused(proof) == (SHORTEST_STOP if slower else 0)


def test_what_a_step_takes_without_drafts_must_be_seen() -> None:
    proof = Proof()
    steps(proof, STEPS, True, 12, 9.0)
    assert refused(proof) == SETTLED + PLAIN_STEPS  # that many are enough to see it
    steps(proof, PLAIN_STEPS, False, 8, 1.0)
    steps(proof, 1, True, 12, 9.0)
    assert proof.stopped(8)


def test_who_is_slower_again_stops_for_longer() -> None:
    proof = Proof()
    steps(proof, PLAIN_STEPS, False, 8, 1.0)
    stops = []
    for _ in range(8):
        steps(proof, STEPS, True, 8, 2.0)
        stops.append(refused(proof))
    assert stops[:3] == [SHORTEST_STOP, 2 * SHORTEST_STOP, 4 * SHORTEST_STOP]
    assert stops[-1] == LONGEST_STOP
    steps(proof, STEPS, True, 40, 2.0)  # and one success makes up for it
    assert refused(proof) == 0
    while not proof.stopped(8):
        steps(proof, 1, True, 8, 2.0)
    assert refused(proof) == SHORTEST_STOP


def test_what_texts_were_like_is_forgotten_and_the_machine_is_not() -> None:
    proof = Proof()
    steps(proof, PLAIN_STEPS, False, 8, 1.0)
    steps(proof, STEPS, True, 8, 2.0)
    proof.forget()
    assert not proof.stopped(8)
    steps(proof, STEPS, True, 8, 2.0)
    assert proof.stopped(8)  # without seeing steps without drafts once more


def test_of_one_text_it_takes_longer_to_see() -> None:
    proof = Proof()
    for drafted, seconds in ((False, 1.0), (True, 3.0)):
        for _ in range(TEXTS - 1):
            proof.learn(1, 1, seconds, drafted)
    assert not proof.stopped(1)
    proof.learn(1, 1, 1.0, False)
    proof.learn(1, 1, 3.0, True)
    assert proof.stopped(1)


def test_what_is_left_of_drafts_after_a_stop_does_not_count() -> None:
    """A pass that was under way, and those after it that had to wait."""
    proof = Proof()
    steps(proof, PLAIN_STEPS, False, 8, 1.0)
    steps(proof, 3 * STEPS, True, 8, 2.0)
    assert refused(proof) == SHORTEST_STOP
    steps(proof, STEPS - 1, True, 8, 2.0)
    assert not proof.stopped(8)
