"""Chi-square tests: the tail, the power, and what difference a sample size can show."""

import math
from collections.abc import Callable

import torch

POWER = 0.99  # chance that a difference of the stated size is found


def chi_square_sf(x: float, df: float) -> float:
    """P(X > x) for a chi-square variable."""
    if x <= 0:
        return 1.0
    half = torch.tensor([df / 2, x / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))


def noncentral_sf(x: float, df: float, shift: float) -> float:
    """P(X > x) for a noncentral chi-square variable: a Poisson mixture of central ones."""
    if shift <= 0:
        return chi_square_sf(x, df)
    mean = shift / 2
    spread = 12 * math.sqrt(mean) + 40
    terms = torch.arange(
        max(0, int(mean - spread)), int(mean + spread) + 1, dtype=torch.float64
    )  # [terms]: the rest of the Poisson mass is below 1e-16
    log_weight = terms * math.log(mean) - mean - torch.lgamma(terms + 1)
    tails = torch.special.gammaincc(df / 2 + terms, torch.full_like(terms, x / 2))
    return min(1.0, float((log_weight.exp() * tails).sum()))


def detectable_variation(samples: int, df: int, level: float, shift: float = 0.0) -> float:
    """The smallest total variation that a test at this level finds with probability POWER.

    Whatever its shape, a difference of total variation d on the cells has a chi-square divergence
    of at least 4 d^2 (Cauchy-Schwarz), hence a noncentrality of at least 4 n d^2. `shift` is the
    noncentrality that the threshold already forgives.
    """
    critical = _root(lambda x: level - noncentral_sf(x, df, shift), 0.0, 10.0 * (df + shift) + 100)
    needed = _root(lambda s: noncentral_sf(critical, df, s) - POWER, 0.0, 20.0 * critical + 200)
    return min(1.0, math.sqrt(needed / (4 * samples)))


def _root(rising: Callable[[float], float], low: float, high: float) -> float:
    for _ in range(80):
        middle = (low + high) / 2
        if rising(middle) < 0:
            low = middle
        else:
            high = middle
    return high
