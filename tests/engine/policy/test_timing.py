"""What drafters take, learned from their calls."""

import pytest

from outrider.engine.policy.timing import Timing


def test_between_sizes_of_batches_a_level_takes_something_between() -> None:
    timing = Timing()
    for _ in range(3):
        timing.learn(8.0, requests=8, levels=1)
    timing.learn(20.0, requests=32, levels=1)
    assert timing.level(20) == pytest.approx(14.0)
    assert timing.level(15) < timing.level(16) < 1.1 * timing.level(15)
    assert timing.level(1) == 8.0 and timing.level(64) == 20.0


def test_a_first_call_that_is_interrupted_does_not_keep_a_drafter_away() -> None:
    timing = Timing()
    for _ in range(3):
        timing.learn(8.0, requests=8, levels=1)
    timing.learn(700.0, requests=24, levels=1)  # at most what three calls take
    assert timing.level(24) == pytest.approx(24.0)
    timing.learn(700.0, requests=2, levels=1)
    assert timing.level(2) == pytest.approx(8.0)


def test_timing_by_batch_and_depth() -> None:
    timing = Timing()
    assert timing.seconds(1, 4) == 0.0
    timing.learn(4.0, requests=2, levels=4)
    assert timing.per_request == 2.0
    assert timing.seconds(2, 3) == 3.0
    assert timing.seconds(64, 1) == 1.0  # the nearest that is known
    timing.learn(16.0, requests=64, levels=4)
    assert timing.seconds(64, 1) == 4.0
    assert timing.seconds(2, 1) == 1.0
