from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.engine.policy.cost import FIRST as FIRST_PASSES
from outrider.engine.policy.cost import (
    SOON,
    STALE,
    TOLD,
    Crowd,
    Measured,
    PassCost,
    as_many,
    smooth,
)
from outrider.engine.policy.explain import Decisions, explain
from outrider.engine.policy.gate import Pass
from outrider.engine.policy.policy import Policy
from outrider.engine.policy.timing import FIRST
from outrider.model.row_sizes import filled_up

MEASURED = Measured([1, 2, 4, 8], [10.0, 14.0, 15.0, 17.0], 256, per_sequence=0.5, per_key=0.01)


@given(st.lists(st.floats(0.1, 100), min_size=1, max_size=12))
def test_smoothed_values_never_fall_and_keep_their_sum(values: list[float]) -> None:
    found = smooth(values)
    assert all(a <= b + 1e-9 for a, b in pairwise(found))
    assert sum(found) == pytest.approx(sum(values))
    assert smooth(sorted(values)) == pytest.approx(sorted(values))


def test_between_and_beyond_the_points() -> None:
    cost = PassCost(MEASURED)
    assert [cost.seconds(n) for n in (1, 3, 8, 12)] == [10.0, 14.5, 17.0, 19.0]
    assert cost.seconds(1, sequences=3) == 11.0
    assert cost.seconds(1, sequences=1, keys=356) == 11.0
    assert cost.seconds(1, sequences=2, keys=300) == 10.5  # below the context measured
    assert PassCost(Measured([4], [7.0], 256)).seconds(9) == 7.0  # one point tells no slope


@pytest.mark.parametrize("sizes", [as_many, filled_up])
@pytest.mark.parametrize(
    ("rows", "more"), [(1, 0), (1, 12), (3, 4), (9, 3), (15, 14), (63, 3), (126, 4)]
)
def test_growing_passes_are_the_single_ones(
    rows: int, more: int, sizes: Callable[[int], int]
) -> None:
    cost = PassCost(MEASURED, filled_up=sizes)
    single = [cost.seconds(n, 3, 2000) for n in range(rows, rows + more + 1)]
    assert cost.growing(rows, more, 3, 2000) == pytest.approx(single)


def test_a_pass_that_must_wait_for_drafts_costs_that_too() -> None:
    """One more row is nearly free, but the device would stand still before it."""
    policy = Policy(lambda: Measured([1, 8], [10.0, 10.1], 256))
    base = Pass(writers=1, rows=1, sequences=1, keys=0)
    assert policy.choose([[0.3]], base, 8).kept == [[0]]
    for _ in range(FIRST):
        policy.waited.learn(4.0, requests=1)
    assert policy.choose([[0.3]], base, 8).kept == [[]]
    assert policy.choose([[0.9, 0.8]], base, 8).kept == [[0, 1]]
    told = str(explain("auto", [], True, policy, Decisions()))
    assert "pays from  0.41 tokens" in told and "idles 4000.00 ms" in told


def test_a_machine_that_is_slow_for_all_keeps_the_shape() -> None:
    cost = PassCost(MEASURED)
    for _ in range(200):
        cost.learn(1, 1, 0, 25.0)
        cost.learn(8, 1, 0, 42.5)
    one, eight = cost.seconds(1), cost.seconds(8)
    assert one == pytest.approx(25.0, rel=0.02)
    assert eight / one == pytest.approx(1.7, rel=0.02)


def test_a_point_alone_in_use_moves_all_alike() -> None:
    cost = PassCost(MEASURED)
    for _ in range(200):
        cost.learn(4, 1, 0, 30.0)
    assert [cost.seconds(n) for n in (1, 4, 8)] == pytest.approx([20, 30, 34], rel=0.02)


def test_a_wrong_point_is_corrected() -> None:
    """Calibration was disturbed: a pass over eight rows is really no dearer than one over four."""
    cost = PassCost(replace(MEASURED, seconds=[10.0, 14.0, 15.0, 60.0]))
    for _ in range(200):
        cost.learn(1, 1, 0, 10.0)
        cost.learn(4, 1, 0, 15.0)
        cost.learn(8, 1, 0, 16.0)
    assert cost.seconds(8) == pytest.approx(16.0, rel=0.1)
    assert cost.seconds(1) == pytest.approx(10.0, rel=0.1)


def test_what_was_never_seen_of_many_texts_is_guessed_from_their_pass_without_drafts() -> None:
    """It takes two thirds of what was measured; and a lone text twice as long, which says nothing
    of four."""
    cost = PassCost(replace(MEASURED, rows=[1, 4, 8, 64], seconds=[10.0, 12.0, 18.0, 90.0]))
    for _ in range(20):
        cost.learn(1, 1, 0, 20.0)
        cost.learn(4, 4, 0, 8.0)
    assert cost.seconds(4, 4) == pytest.approx(8.0, rel=0.1)
    assert cost.seconds(8, 4) / cost.seconds(4, 4) == pytest.approx(18 / 12, rel=0.1)


def test_drafts_do_not_seem_dear_after_a_slow_minute() -> None:
    """In which all passes had drafts: a pass without was not seen to be slow, but it would have
    been. And the other way round."""
    for slow in (1.5, 1 / 1.5):
        cost = PassCost(MEASURED)
        for _ in range(40):
            cost.learn(4, 4, 0, 16.5)
            cost.learn(8, 4, 0, 18.5)
        for _ in range(30):
            cost.learn(8, 4, 0, slow * 18.5)
        assert cost.seconds(8, 4) == pytest.approx(slow * 18.5, rel=0.03)
        assert cost.seconds(8, 4) / cost.seconds(4, 4) == pytest.approx(18.5 / 16.5, rel=0.03)


def test_what_is_not_seen_for_long_is_no_less_known_than_at_first() -> None:
    cost = PassCost(MEASURED)
    for _ in range(30_000):
        cost.learn(4, 4, 0, 16.5)
    cost.learn(8, 4, 0, 2 * 18.5)  # a hiccup, maybe
    assert 18.5 < cost.seconds(8, 4) < 1.4 * 18.5
    assert cost.seconds(4, 4) == pytest.approx(16.5, rel=0.1)


def test_one_hiccup_changes_little() -> None:
    cost = PassCost(MEASURED)
    before = cost.seconds(8) / cost.seconds(1)
    cost.learn(8, 1, 0, 5000.0)
    assert cost.seconds(8) / cost.seconds(1) == pytest.approx(before, rel=0.1)


def test_many_texts_are_known_after_a_few_passes() -> None:
    """What calibration tells of many texts is a guess: here, twice the truth."""
    cost = PassCost(MEASURED)
    for _ in range(FIRST_PASSES):
        for _ in range(SOON):
            assert not cost.plain_is_due(4)
            cost.learn(6, 4, 0, 9.0)
        assert cost.plain_is_due(4)
        assert not cost.plain_is_due(4)  # once: what it takes is told a step later
        cost.learn(4, 4, 0, 8.0)
    for _ in range(SOON):
        cost.learn(6, 4, 0, 9.0)
        cost.learn(16, 9, 0, 20.0)
    assert not cost.plain_is_due(4) and not cost.plain_is_due(1)
    assert cost.plain_is_due(9)  # is another size
    assert abs(cost.seconds(4, 4) - 8.0) < abs(cost.seconds(4, 4) - MEASURED.seconds[2])


def test_what_drafts_take_does_not_change_a_pass_without() -> None:
    """Five rows of four texts are nearest to the point at four, which is that of a plain pass."""
    cost = PassCost(MEASURED)
    for _ in range(20):
        cost.learn(4, 4, 0, 10.0)
        cost.learn(5, 4, 0, 20.0)
    assert cost.seconds(4, 4) == pytest.approx(10.0, rel=0.15)
    assert cost.seconds(8, 4) > 20.0


@pytest.mark.parametrize("texts", [3, 5, 6, 7])
def test_so_it_is_between_the_points(texts: int) -> None:
    """Where the nearest point to a plain pass has more rows than there are texts."""
    cost = PassCost(MEASURED)
    assert cost._point_of(texts, texts) < cost._point_of(texts + 1, texts)


def test_more_texts_than_any_point_has_rows() -> None:
    """What lies beyond the last point goes on as before it, however fast such passes are."""
    cost = PassCost(MEASURED)
    for _ in range(50):
        cost.learn(8, 8, 0, 5.0)
    times = cost.growing(8, 200, 8)
    assert times[0] == pytest.approx(5.0, rel=0.1)
    assert all(a < b for a, b in pairwise(times))


def test_after_many_passes_with_drafts_one_without_is_due() -> None:
    cost = PassCost(MEASURED)
    for _ in range(FIRST_PASSES):
        cost.learn(3, 3, 0, 15.0)
    for _ in range(STALE):
        assert not cost.plain_is_due(3)
        cost.learn(6, 3, 0, 17.0)
    assert cost.plain_is_due(3)
    cost.learn(3, 3, 0, 15.0)
    assert not cost.plain_is_due(3)
    assert not PassCost(MEASURED, fixed=True).plain_is_due(3)


def test_where_calibration_has_told_of_many_texts_that_is_seldom() -> None:
    """Once soon, to see whether that holds. Of more texts it has told nothing."""
    cost = PassCost(CROWDED)
    for texts, times in ((8, [SOON, TOLD, TOLD]), (64, [SOON] * FIRST_PASSES + [STALE])):
        for passes in times:
            for _ in range(passes):
                assert not cost.plain_is_due(texts)
                cost.learn(2 * texts, texts, 0, 22.0)
            assert cost.plain_is_due(texts)
            cost.learn(texts, texts, 0, 16.0)


def test_drafts_take_nothing_up_to_the_rows_that_a_pass_has_anyway() -> None:
    cost, exact = PassCost(MEASURED, filled_up=filled_up), PassCost(MEASURED)
    times = cost.growing(15, 14, 2)  # over 15 to 29 rows
    assert times == [cost.seconds(rows, 2) for rows in range(15, 30)]
    assert times == pytest.approx([exact.seconds(filled_up(rows), 2) for rows in range(15, 30)])
    assert times[1] < times[2] == times[5] < times[6]  # 16, then 17 to 20, then more


def test_what_such_a_pass_took_tells_of_the_rows_that_it_had() -> None:
    points = [1, 16, 20, 24, 32, 64, 72, 96]
    cost = PassCost(Measured(points, [float(n) for n in points], 256), filled_up=filled_up)
    for rows, texts, point in ((17, 2, 20), (65, 8, 72), (30, 30, 32), (31, 29, 32), (33, 29, 64)):
        assert points[cost._point_of(rows, texts)] == point
    believed = cost.seconds(20, 2)
    for _ in range(20):
        cost.learn(17, 2, 0, believed)
    assert cost.seconds(20, 2) == pytest.approx(believed)


def test_where_passes_differ_much_their_relations_are_learned_slowly() -> None:
    """A machine that others use as well: passes differ by an eighth, and its mood comes and goes.
    What drafts take beside a pass without is believed as calibrated, which is true here."""
    rng = np.random.default_rng(0)
    points = [1, 2, 4, 8, 16, 32, 64]
    calibrated = Measured(points, [80.0 + max(0, n - 32) for n in points], context=256)
    found = []
    for _ in range(12):
        cost, mood = PassCost(calibrated), 0.0
        for step in range(150):
            mood = 0.97 * mood + rng.normal(0.0, 0.06)
            rows = 32 if step // 15 % 3 == 0 else int(rng.integers(44, 80))
            cost.learn(rows, 32, 0, (80.0 + rows - 32) * np.exp(mood + rng.normal(0.0, 0.12)))
        found.append(cost.seconds(64, 32) / cost.seconds(32, 32))
    assert np.std(found) < 0.07
    assert np.mean(found) == pytest.approx(112 / 80, rel=0.03)


CROWDED = Measured(
    [1, 8, 16, 32, 64], [10.0, 11.0, 12.0, 20.0, 60.0], 256, 0.5,
    crowds=[Crowd(8, [8, 16, 32], [16.0, 22.0, 40.0]), Crowd(32, [32, 64], [50.0, 60.0])],
)  # fmt: skip


def test_many_texts_take_what_was_measured_of_many() -> None:
    """Of one text, 64 rows take three times as long as 32; of 32 texts they do not."""
    cost = PassCost(CROWDED)
    for texts, rows, seconds in [(1, 16, 12.0), (8, 8, 16.0), (8, 32, 40.0), (32, 64, 60.0)]:
        assert cost.seconds(rows, texts) == pytest.approx(seconds)
    lone = PassCost(replace(CROWDED, crowds=[]))
    assert lone.seconds(64, 32) / lone.seconds(32, 32) > 2


def test_batches_between_two_that_were_measured_lie_between_them() -> None:
    cost = PassCost(CROWDED)
    relations = [cost.seconds(64, texts) / cost.seconds(32, texts) for texts in (8, 16, 32)]
    assert relations[0] > relations[1] > relations[2]
    few = [cost.seconds(16, texts) / cost.seconds(8, texts) for texts in (1, 2, 4, 8)]
    assert few == sorted(few)


def test_what_one_size_of_batch_takes_does_not_depend_on_who_asked_first() -> None:
    """16 and 24 texts share what passes have shown, but not the point of a pass without drafts."""
    between = replace(
        CROWDED, rows=[1, 8, 16, 24, 32, 64], seconds=[10.0, 11.0, 12.0, 17.0, 20.0, 60.0]
    )
    fresh, asked = PassCost(between), PassCost(between)
    for cost in (fresh, asked):
        cost.learn(16, 16, 0, 100.0)  # slower, of that point above all
    asked.seconds(16, 16)
    assert asked.seconds(24, 24) == fresh.seconds(24, 24)


def test_each_size_of_batch_has_a_curve_of_its_own() -> None:
    """Thirty-two rows of eight texts say little of thirty-two texts with a row each."""
    points = [1, 2, 4, 8, 16, 32, 64]
    cost = PassCost(Measured(points, [1.0 + n / 64 for n in points], context=256, per_sequence=0.1))
    believed = cost.seconds(64, 32) / cost.seconds(32, 32)
    for _ in range(60):
        cost.learn(32, 8, 0, 4.0)
    assert abs(cost.seconds(32, 8) / 4.0 - 1) < 0.1
    assert abs(cost.seconds(64, 32) / cost.seconds(32, 32) / believed - 1) < 0.02
    for _ in range(60):
        cost.learn(32, 32, 0, 4.0)
        cost.learn(64, 32, 0, 8.0)
    assert believed < 1.2 and 1.6 < cost.seconds(64, 32) / cost.seconds(32, 32) < 2.1
    growing = cost.growing(32, 32, 32)
    assert growing[32] == pytest.approx(cost.seconds(64, 32)) and len(growing) == 33
