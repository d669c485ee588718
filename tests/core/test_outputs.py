"""The counters of speculation."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.core.outputs import Speculation

steps = st.lists(st.integers(0, 6).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))))


def recorded(history: list[tuple[int, int]]) -> Speculation:
    speculation = Speculation(drafter="ngram")
    for drafted, accepted in history:
        speculation.record(drafted, accepted)
    return speculation


@given(steps)
def test_counters_equal_their_definitions(history):
    got = recorded(history)
    longest = max((accepted for _, accepted in history), default=0)
    assert got.steps == len(history)
    assert got.drafts == sum(drafted > 0 for drafted, _ in history)
    assert got.drafted == sum(drafted for drafted, _ in history)
    assert got.accepted == sum(accepted for _, accepted in history)
    assert got.accepted_per_position == [
        sum(accepted > position for _, accepted in history) for position in range(longest)
    ]


@given(steps, steps)
def test_adding_two_requests_equals_recording_both(one, other):
    total = recorded(one)
    total.add(recorded(other))
    assert total == recorded(one + other)


def test_adding_leaves_the_other_alone():
    total, other = Speculation(), recorded([(3, 2)])
    total.add(other)
    total.record(3, 3)
    assert other == recorded([(3, 2)])


def test_mean_acceptance_length_counts_the_targets_own_token():
    assert recorded([(4, 4), (4, 0)]).mean_acceptance_length == pytest.approx(3.0)


def test_steps_without_a_draft_do_not_dilute_the_mean():
    assert recorded([(4, 2), (0, 0), (0, 0)]).mean_acceptance_length == pytest.approx(3.0)


def test_plain_decoding_has_a_mean_of_one():
    assert recorded([(0, 0)]).mean_acceptance_length == 1.0
    assert Speculation().mean_acceptance_length == 1.0


def test_as_a_dict_it_holds_counters_and_mean():
    assert recorded([(3, 2), (3, 1), (0, 0)]).to_dict() == {
        "drafter": "ngram",
        "steps": 3,
        "drafts": 2,
        "drafted": 6,
        "accepted": 3,
        "accepted_per_position": [2, 1],
        "mean_acceptance_length": 2.5,
    }
