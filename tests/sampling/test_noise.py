import math

import pytest
import torch

from outrider.sampling import noise as noise_module
from outrider.sampling.noise import (
    EXPONENTIAL_MAX,
    EXPONENTIAL_MIN,
    GROUP,
    GUMBEL_MAX,
    GUMBEL_MIN,
    Key,
    Purpose,
    gumbel,
    noise,
    philox,
    streams,
    uniform,
)
from tests.sampling.frequencies import joint_p_values, marginal_p_value
from tests.sampling.statistics import ALPHA

# Random123's kat_vectors, philox4x32 with 10 rounds: counter, key, result.
KNOWN_ANSWERS = [
    ("00000000 " * 4, "00000000 " * 2, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff " * 4, "ffffffff " * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    (
        "243f6a88 85a308d3 13198a2e 03707344",
        "a4093822 299f31d0",
        "d16cfe09 94fdcceb 5001e420 24126ea1",
    ),
]


def words(text: str) -> list[torch.Tensor]:
    return [torch.tensor([int(word, 16)]) for word in text.split()]


@pytest.mark.parametrize(("counter", "key", "result"), KNOWN_ANSWERS)
def test_philox_known_answers(counter: str, key: str, result: str) -> None:
    assert philox(words(counter), words(key))[0].tolist() == [int(w) for w in words(result)]


def test_philox_rounds_are_the_same_in_torch_operators() -> None:
    """CUDA tensors take this path; numpy's is taken on a CPU."""
    generator = torch.Generator().manual_seed(0)
    inputs = list(torch.randint(0, 1 << 32, (6, 100), generator=generator))
    by_torch = torch.stack(noise_module._philox_rounds(*inputs), -1)
    assert torch.equal(by_torch, philox(inputs[:4], inputs[4:]))


def test_extreme_bits_give_finite_noise_within_the_bounds() -> None:
    bits = torch.tensor([0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFE, 0xFFFFFFFF])
    unit = noise_module._open_unit(bits)
    assert unit.min() > 0 and unit.max() < 1
    exponential = noise_module._exponential(bits)
    assert exponential.min().item() == pytest.approx(EXPONENTIAL_MIN, rel=1e-9)
    assert exponential.max().item() == pytest.approx(EXPONENTIAL_MAX, rel=1e-12)
    # largest and smallest noise: a group's least from bits 0, and both parts from all-one bits
    assert gumbel(exponential[:1] / GROUP).item() == pytest.approx(GUMBEL_MAX, rel=1e-6)
    assert gumbel(exponential[-1:] * (1 + 1 / GROUP)).item() == pytest.approx(GUMBEL_MIN, rel=1e-6)
    assert math.isfinite(GUMBEL_MAX) and math.isfinite(GUMBEL_MIN)


def test_noise_does_not_depend_on_the_width_or_the_batch() -> None:
    keys = [Key(seed, 0, 7, Purpose.CHOICE) for seed in (1, 2, 1 << 63)]
    wide = noise(streams(keys), 1000)
    assert torch.equal(noise(streams(keys), 333), wide[:, :333])
    assert torch.equal(noise(streams(keys[::-1]), 1000), wide.flip(0))
    assert wide.isfinite().all() and wide.min() >= GUMBEL_MIN and wide.max() <= GUMBEL_MAX


def test_every_part_of_the_key_matters() -> None:
    base = Key(5, 0, 3, Purpose.CHOICE)
    others = [
        base._replace(seed=6),
        base._replace(seed=5 + (1 << 32)),
        base._replace(sample=1),
        base._replace(position=4),
        base._replace(purpose=Purpose.RESIDUAL),
        base._replace(lane=1),
    ]
    rows = noise(streams([base, *others]), 256)
    assert len({tuple(row.tolist()) for row in rows}) == 1 + len(others)
    assert len(set(uniform(streams([base, *others])).tolist())) == 1 + len(others)


def test_moments_of_the_noise() -> None:
    """Gumbel: mean 0.5772, variance pi^2/6; six standard errors of 1.28 million draws (2e-9)."""
    values = noise(streams([Key(s, 0, 0, Purpose.CHOICE) for s in range(200)]), 6400).double()
    n = values.numel()
    assert abs(values.mean() - 0.5772157) < 6 * math.sqrt(math.pi**2 / 6 / n)
    # the variance of the squared deviation is (kurtosis - 1) times the squared variance
    assert abs(values.var() - math.pi**2 / 6) < 6 * math.sqrt(4.4) * math.pi**2 / 6 / math.sqrt(n)
    # neighbours inside a group share its least value and must still be uncorrelated
    centred = values - values.mean()
    for distance in (1, 3, 63):
        product = (centred[:, distance:] * centred[:, :-distance]).mean()
        assert abs(product) < 6 * math.pi**2 / 6 / math.sqrt(n - 200 * distance)


@pytest.mark.parametrize("vocabulary", [5, 300])
def test_choices_follow_softmax(vocabulary: int) -> None:
    assert marginal_p_value(vocabulary) > ALPHA


def test_choices_with_different_keys_are_independent() -> None:
    assert {name: p for name, p in joint_p_values().items() if p <= ALPHA} == {}
