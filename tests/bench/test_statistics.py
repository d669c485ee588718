import random

import numpy
import pytest
from scipy import stats
from tests.bench.helpers import a_run

from outrider.bench.cells import cells_of
from outrider.bench.statistics import (
    ENOUGH,
    Ratio,
    interval,
    middle,
    quantile,
    quartiles,
    ratio_to_base,
)


def test_quantiles() -> None:
    assert quartiles([3.0]) == (3.0, 3.0)
    assert quartiles([4.0, 1.0, 2.0, 3.0, 5.0]) == (2.0, 4.0)
    assert quartiles([1.0, 2.0]) == (1.25, 1.75)
    assert quantile([5.0, 1.0], 0) == 1.0 and quantile([5.0, 1.0], 1) == 5.0


def test_ratio_of_a_machine_that_slows_down() -> None:
    """Always twice as fast as the run beside it, so the machine's mood does not show."""
    base = {i: 10.0 - i for i in range(ENOUGH)}
    twice = ratio_to_base({i: 2 * x for i, x in base.items()}, base)
    assert twice == Ratio(2.0, 2.0, 2.0, pairs=ENOUGH)
    few = ratio_to_base({0: 20.0, 1: 10.0, 2: 16.0}, {0: 10.0, 1: 5.0, 2: 8.0})
    assert (few.value, few.low, few.high) == pytest.approx((2.0, 2.0, 2.0))


def test_only_common_repeats_are_pairs() -> None:
    assert ratio_to_base({0: 30.0, 1: 20.0}, {0: 10.0, 2: 1.0}) == Ratio(3.0, None, None, 1)


def test_without_pairs_it_is_the_ratio_of_medians() -> None:
    ratio = ratio_to_base({0: 10.0, 1: 20.0, 2: 30.0}, {5: 10.0, 6: 10.0})
    assert ratio == Ratio(2.0, None, None)


def test_nothing_measured() -> None:
    assert ratio_to_base({}, {0: 1.0}) == ratio_to_base({0: 1.0}, {}) == Ratio(None, None, None)
    assert interval((1.0,)) is interval(()) is None


def test_the_middle_is_unmoved_by_a_disturbed_run() -> None:
    assert middle((1.0, 4.0)) == 2.0  # on the scale of ratios
    assert middle((1.0, 1.0, 1.0, 1.0, 1.0, 9.0)) == 1.0


def test_the_interval_of_few_values_is_students() -> None:
    """By scipy: the mean of the logarithms, and t."""
    values = (1.1, 1.2, 1.5)
    logs = numpy.log(values)
    expected = stats.t.interval(0.95, 2, logs.mean(), stats.sem(logs))
    assert interval(values) == pytest.approx(numpy.exp(expected), rel=1e-3)


@pytest.mark.parametrize("count", [6, 7, 10, 16])
def test_the_interval_holds_what_the_signed_rank_test_does_not_reject(count: int) -> None:
    rng = random.Random(count)
    values = tuple(rng.lognormvariate(0, 0.1) for _ in range(count))
    low, high = interval(values)

    def rejects(middle: float) -> bool:
        logs = numpy.log(values) - numpy.log(middle)
        return stats.wilcoxon(logs, method="exact").pvalue <= 0.05

    assert not rejects(low * 1.0001) and not rejects(high * 0.9999)
    assert rejects(low * 0.9999) and rejects(high * 1.0001)


@pytest.mark.parametrize("precision", [0.03, 0.0])
def test_the_interval_covers_the_truth(precision: float) -> None:
    """Also when measuring stops as soon as the interval is narrow: 93 % or more by simulation.
    Fewer than 440 of 500 would have a probability below 1e-4."""
    rng = random.Random(5)
    hits = 0
    for _ in range(500):
        values = [rng.lognormvariate(0, 0.04) for _ in range(20)]
        for count in range(ENOUGH, 21):
            low, high = interval(tuple(values[:count]))
            if (high - low) / 2 <= precision:
                break
        hits += low <= 1.0 <= high
    assert hits >= 440


def test_precision_is_the_half_width_as_a_share_of_the_ratio() -> None:
    assert Ratio(2.0, 1.9, 2.1, ENOUGH).half_width == pytest.approx(0.05)
    assert Ratio(2.0, 1.9, 2.1, ENOUGH).reached(0.0501)
    assert not Ratio(2.0, 1.9, 2.1, ENOUGH).reached(0.0499)
    assert not Ratio(2.0, 2.0, 2.0, ENOUGH - 1).reached(0.05)  # chance
    assert Ratio(2.0, None, None, ENOUGH).half_width is None
    assert not Ratio(2.0, None, None, ENOUGH).reached(0.5)


def test_cells_sum_up_the_runs() -> None:
    runs = [
        a_run(drafter, category, repeat, speed * (1 + repeat), drafts=4, accepted=6)
        for repeat in range(2)
        for category in ("chat", "code")
        for drafter, speed in (("none", 10.0), ("ngram", 20.0))
    ]
    runs[1].accepted_per_position, runs[3].accepted_per_position = [2], [1, 1]
    runs[0].phases = {"draft": 1.0, "forward": 2.0, "policy": 0.5, "rest": 1.5}
    cells = {(c.category, c.drafter): c for c in cells_of(runs, ["chat", "code"], 64)}
    assert len(cells) == 6
    cell = cells["chat", "ngram"]
    assert cell.samples == pytest.approx([20.0, 40.0]) and cell.requests == 4
    assert cell.tokens_per_second == pytest.approx(30.0) and cell.max_tokens == 64
    assert (cell.tokens_per_second_low, cell.tokens_per_second_high) == pytest.approx((25.0, 35.0))
    assert (cell.ratio, cell.ratio_low, cell.ratio_high) == pytest.approx((2.0, 2.0, 2.0))
    assert cell.mean_acceptance_length == 2.5 and cell.drafts == 8
    assert cells["overall", "ngram"].tokens == 400
    assert cells["overall", "ngram"].accepted_per_position == [3, 1]
    assert cells["overall", "ngram"].samples == pytest.approx([20.0, 40.0])
    plain = cells["chat", "none"]
    assert plain.phases == {"draft": 1, "forward": 2, "verify": 0, "policy": 0.5, "rest": 1.5}
    assert list(plain.phases)[-1] == "rest"
    assert plain.drafting_share == pytest.approx(1.5 / 5) and cell.drafting_share is None
    assert {c.precision_reached for c in cells.values()} == {None}


def test_overall_takes_whole_repeats_only() -> None:
    runs = [a_run("none", "chat", 0, 10.0), a_run("none", "code", 0, 10.0)]
    runs += [a_run("none", "chat", 1, 99.0), a_run("ngram", "chat", 0, 20.0)]
    cells = {(c.category, c.drafter): c for c in cells_of(runs, ["chat", "code"], 64)}
    assert cells["overall", "none"].samples == pytest.approx([10.0])
    assert ("overall", "ngram") not in cells
    assert cells["chat", "ngram"].ratio == pytest.approx(2.0)
    assert cells["chat", "ngram"].ratio_low is None
    assert next(iter(cells_of(runs[3:], ["chat", "code"], 64))).ratio is None
