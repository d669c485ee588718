"""Medians, quartiles, and how sure a ratio of two speeds is."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import median

RESAMPLES = 2000
CONFIDENCE = 0.95
SEED = 0  # the same measurements give the same interval


@dataclass(frozen=True)
class Ratio:
    """No interval where one measurement is all there is: it says nothing about noise."""

    value: float | None  # None without a measurement of both
    low: float | None
    high: float | None


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
    compared as a pair: the median of the pairs' ratios. Without common repeats it is the ratio of
    the medians.
    """
    if not speeds or not base:
        return Ratio(None, None, None)
    common = sorted(speeds.keys() & base.keys())
    if common:
        ratios = tuple(speeds[repeat] / base[repeat] for repeat in common)
        return Ratio(median(ratios), *(median_interval(ratios) or (None, None)))
    ours, theirs = tuple(speeds.values()), tuple(base.values())
    value = median(ours) / median(theirs)
    if min(len(ours), len(theirs)) < 2:
        return Ratio(value, None, None)
    return Ratio(value, *_interval(lambda rng: _redrawn(ours, rng) / _redrawn(theirs, rng)))


@cache  # cells are summed up anew after every run, and most have not changed since
def median_interval(values: tuple[float, ...]) -> tuple[float, float] | None:
    """Where the median lies; None for a single value."""
    return _interval(lambda rng: _redrawn(values, rng)) if len(values) > 1 else None


def _redrawn(values: Sequence[float], rng: random.Random) -> float:
    return median(rng.choices(values, k=len(values)))


def _interval(draw: Callable[[random.Random], float]) -> tuple[float, float]:
    """The percentile bootstrap. Of fewer than about six values it can give no more than the
    smallest and the largest, which then cover the truth less often than it claims."""
    rng = random.Random(SEED)
    drawn = [draw(rng) for _ in range(RESAMPLES)]
    tail = (1 - CONFIDENCE) / 2
    return quantile(drawn, tail), quantile(drawn, 1 - tail)
