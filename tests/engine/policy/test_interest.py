"""When a batch for which nothing was worth drafting is left alone."""

from outrider.engine.policy.interest import LONGEST_REST, REST, Rest


def rested(futile: bool, hurried: bool, seconds: float) -> int:
    """Steps without a thought, after one that took so many of the seconds of a step."""
    rest = Rest()
    rest.learn(futile, hurried, seconds, step=1.0)
    steps = 0
    while not rest.over():
        steps += 1
    return steps


def test_long_thoughts_that_a_device_waits_for_bring_long_rests() -> None:
    assert rested(True, True, seconds=0.01) == REST
    assert rested(True, True, seconds=1.0) == 100  # a hundredth of the time
    assert rested(True, True, seconds=50.0) == LONGEST_REST


def test_nobody_rests_where_drafts_pay_or_nothing_waits() -> None:
    assert rested(False, True, seconds=1.0) == rested(True, False, seconds=1.0) == 0
