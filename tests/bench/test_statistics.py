import random

import pytest
from tests.bench.helpers import a_run

from outrider.bench.cells import cells_of
from outrider.bench.statistics import Ratio, median_interval, quantile, quartiles, ratio_to_base


def test_quantiles() -> None:
    assert quartiles([3.0]) == (3.0, 3.0)
    assert quartiles([4.0, 1.0, 2.0, 3.0, 5.0]) == (2.0, 4.0)
    assert quartiles([1.0, 2.0]) == (1.25, 1.75)
    assert quantile([5.0, 1.0], 0) == 1.0 and quantile([5.0, 1.0], 1) == 5.0


def test_ratio_of_a_machine_that_slows_down() -> None:
    """Always twice as fast as the run beside it, so the machine's mood does not show."""
    base = {0: 10.0, 1: 5.0, 2: 8.0}
    assert ratio_to_base({i: 2 * x for i, x in base.items()}, base) == Ratio(2.0, 2.0, 2.0)
    assert ratio_to_base(base, base) == Ratio(1.0, 1.0, 1.0)


def test_of_few_pairs_the_interval_is_their_range() -> None:
    base = {0: 10.0, 1: 10.0, 2: 10.0}
    assert ratio_to_base({0: 12.0, 1: 15.0, 2: 11.0}, base) == Ratio(1.2, 1.1, 1.5)


def test_only_common_repeats_are_pairs() -> None:
    assert ratio_to_base({0: 30.0, 1: 20.0}, {0: 10.0, 2: 1.0}) == Ratio(3.0, None, None)


def test_without_pairs_it_is_the_ratio_of_medians() -> None:
    ratio = ratio_to_base({0: 10.0, 1: 20.0, 2: 30.0}, {5: 10.0, 6: 10.0})
    assert ratio == Ratio(2.0, 1.0, 3.0)
    assert ratio_to_base({0: 10.0}, {1: 5.0, 2: 5.0}) == Ratio(2.0, None, None)


def test_nothing_measured() -> None:
    assert ratio_to_base({}, {0: 1.0}) == ratio_to_base({0: 1.0}, {}) == Ratio(None, None, None)
    assert median_interval((1.0,)) is median_interval(()) is None


def test_the_interval_covers_the_true_median() -> None:
    """25 values: about 95 % of the intervals hold it. Fewer than 170 of 200 would have a
    probability below 1e-6 at a coverage of 93 %."""
    rng = random.Random(5)
    hits = 0
    for _ in range(200):
        interval = median_interval(tuple(rng.gauss(1.0, 0.1) for _ in range(25)))
        assert interval is not None
        hits += interval[0] <= 1.0 <= interval[1]
    assert hits >= 170


def test_the_same_samples_give_the_same_interval() -> None:
    values = tuple(random.Random(1).random() for _ in range(9))
    first = median_interval(values)
    median_interval.cache_clear()
    assert median_interval(values) == first


def test_cells_sum_up_the_runs() -> None:
    runs = [
        a_run(drafter, category, repeat, speed * (1 + repeat), drafts=4, accepted=6)
        for repeat in range(2)
        for category in ("chat", "code")
        for drafter, speed in (("none", 10.0), ("ngram", 20.0))
    ]
    runs[1].accepted_per_position, runs[3].accepted_per_position = [2], [1, 1]
    runs[0].phases = {"draft": 1.0, "forward": 2.0}
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
    assert cells["chat", "none"].phases == {"draft": 1, "forward": 2, "verify": 0, "rest": 0}


def test_overall_takes_whole_repeats_only() -> None:
    runs = [a_run("none", "chat", 0, 10.0), a_run("none", "code", 0, 10.0)]
    runs += [a_run("none", "chat", 1, 99.0), a_run("ngram", "chat", 0, 20.0)]
    cells = {(c.category, c.drafter): c for c in cells_of(runs, ["chat", "code"], 64)}
    assert cells["overall", "none"].samples == pytest.approx([10.0])
    assert ("overall", "ngram") not in cells
    assert cells["chat", "ngram"].ratio == pytest.approx(2.0)
    assert cells["chat", "ngram"].ratio_low is None
    assert next(iter(cells_of(runs[3:], ["chat", "code"], 64))).ratio is None
