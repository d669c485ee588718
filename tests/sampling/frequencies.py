"""The map from noise to choices, as frequencies over many seeds."""

from itertools import product

import numpy as np
import torch

import outrider.sampling.choose as choose_module
from outrider.core.params import SamplingParams
from outrider.core.request import Request
from outrider.sampling.noise import Purpose
from outrider.sampling.rows import Row
from tests.sampling.statistics import ALPHA, p_value

SAMPLES = 5_000
SMALL = np.array([0.45, 0.3, 0.2, 0.05])


def many(seed_step: int = 1, sample: int = 0, tokens: int = 0) -> list[Row]:
    """One row for each of many seeds, after `tokens` output tokens."""
    return [
        Row(Request("toy", [0], SamplingParams(), seed * seed_step, sample), [0] * tokens)
        for seed in range(1, SAMPLES + 1)
    ]


def chosen(p: np.ndarray, rows: list[Row], purpose: Purpose = Purpose.CHOICE) -> list[int]:
    scores = torch.from_numpy(p).log().float().expand(len(rows), len(p))
    return choose_module.choose(scores, rows, purpose).tolist()


def marginal_p_value(vocabulary: int) -> float:
    """One choice, from a distribution that spreads over several groups of tokens."""
    p = np.random.default_rng(vocabulary).exponential(size=vocabulary) ** 3
    p /= p.sum()
    return p_value(chosen(p, many()), dict(enumerate(p.tolist())))


def joint_p_value(first: list[int], second: list[int]) -> float:
    """Two choices that should be independent."""
    cells = {(a, b): float(SMALL[a] * SMALL[b]) for a, b in product(range(4), repeat=2)}
    return p_value(zip(first, second), cells)


def joint_p_values() -> dict[str, float]:
    base = chosen(SMALL, many())
    others = {
        "position": chosen(SMALL, many(tokens=1)),
        "sample": chosen(SMALL, many(sample=1)),
        "purpose": chosen(SMALL, many(), Purpose.DRAFT),
        "seed": base[1:] + base[:1],
        "high half of the seed": chosen(SMALL, many(seed_step=1 << 32)),
    }
    lanes = choose_module.draw(
        torch.from_numpy(SMALL).log().expand(SAMPLES, 4), many(), [3] * SAMPLES
    )
    others["lane"] = lanes.tolist()
    return {name: joint_p_value(base, other) for name, other in others.items()}


def choice_alarm() -> bool:
    values = [marginal_p_value(5), marginal_p_value(300), *joint_p_values().values()]
    return min(values) < ALPHA
