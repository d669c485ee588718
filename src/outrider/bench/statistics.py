"""Medians, quartiles, and how sure a ratio of two speeds is."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations_with_replacement, zip_longest
from math import exp, log, sqrt
from statistics import fmean, median, stdev

CONFIDENCE = 0.95
ENOUGH = 6  # values from which on the signed-rank interval can be 95 % sure
STUDENT = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}  # 97.5 % quantiles of t, for fewer


@dataclass(frozen=True)
class Ratio:
    """No interval where one measurement is all there is: it says nothing about noise."""

    value: float | None  # None without a measurement of both
    low: float | None
    high: float | None
    pairs: int = 0

    @property
    def half_width(self) -> float | None:
        """Of the interval, as a share of the value."""
        if self.value is None or self.low is None or self.high is None:
            return None
        return (self.high - self.low) / 2 / self.value

    def reached(self, precision: float) -> bool:
        """Fewer pairs can lie close together by chance, so they never settle it."""
        half = self.half_width
        return self.pairs >= ENOUGH and half is not None and half <= precision


def quantile(values: Sequence[float], share: float) -> float:
    """Linear between neighbours; 0 is the smallest value and 1 the largest."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def quartiles(values: Sequence[float]) -> tuple[float, float]:
    return quantile(values, 0.25), quantile(values, 0.75)


def ratio_to_base(speeds: dict[int, float], base: dict[int, float]) -> Ratio:
    """How much faster than the base, by repeat.

    Runs of one repeat lie next to each other in time and share the machine's mood, so they are
    compared as a pair. Without common repeats it is the ratio of the medians.
    """
    if not speeds or not base:
        return Ratio(None, None, None)
    common = sorted(speeds.keys() & base.keys())
    if not common:
        return Ratio(median(speeds.values()) / median(base.values()), None, None)
    ratios = tuple(speeds[repeat] / base[repeat] for repeat in common)
    low, high = interval(ratios) or (None, None)
    return Ratio(middle(ratios), low, high, len(ratios))


def middle(values: tuple[float, ...]) -> float:
    """The median of all pairs' geometric means: Hodges and Lehmann's estimate for ratios.

    Nearly as steady as the mean on a quiet machine, and unmoved by a few disturbed runs.
    """
    return median(_pair_means(values))


def interval(values: tuple[float, ...]) -> tuple[float, float] | None:
    """Where the middle of such values lies, 95 % sure; None for a single value.

    From six values on it is Wilcoxon's signed-rank interval: exact for any noise that is
    symmetric on the scale of ratios, however long its tails. Simulated, with repeats added until
    the half-width was 3 %, it covered the truth in 94 to 97 % of the cases with noise of 1 to 5 %,
    also when one run in fourteen was slowed down by 10 to 40 %. A bootstrap of the median
    covered 86 to 94 %: few values lie close together by chance, and stopping picks just those
    moments. Student's interval on logarithms covered 92 to 96 %, but disturbed runs of 1 to 3 %
    noise kept it from 3 % after 20 repeats in 40 to 50 % of the cases, this one in 10 to 15 %.

    Fewer than six values cannot be 95 % sure without a shape of the noise; for them it is
    Student's, which is wide enough not to mislead.
    """
    if len(values) < 2:
        return None
    if len(values) < ENOUGH:
        logs = [log(value) for value in values]
        half = STUDENT[len(values)] * stdev(logs) / sqrt(len(values))
        return exp(fmean(logs) - half), exp(fmean(logs) + half)
    means, cut = _pair_means(values), _cut(len(values))
    return means[cut], means[-1 - cut]


@cache  # cells are summed up anew after every run, and most have not changed since
def _pair_means(values: tuple[float, ...]) -> list[float]:
    """Geometric means of all pairs, each value with itself included, in order."""
    return sorted(sqrt(a * b) for a, b in combinations_with_replacement(values, 2))


@cache
def _cut(count: int) -> int:
    """How many pair means lie outside the interval at each end.

    Below the true middle lies each value with probability 1/2, so the ranks on one side are a
    random subset of 1 .. count; the cut is the largest sum that is rarer than the tail.
    """
    ways = [1]  # by sum: subsets of the ranks so far
    for rank in range(1, count + 1):
        longer = [0] * rank + ways
        ways = [a + b for a, b in zip_longest(ways, longer, fillvalue=0)]
    allowed = (1 - CONFIDENCE) / 2 * 2**count
    cut, seen = 0, ways[0]
    while seen + ways[cut + 1] <= allowed:
        cut += 1
        seen += ways[cut]
    return cut
