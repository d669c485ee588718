"""The tails and the power against scipy, and the distribution test on distributions we know."""

import random

import pytest
import torch
from scipy import stats

from outrider.audit.distribution import Law, Tree, judge_distribution
from outrider.audit.statistics import (
    POWER,
    chi_square_sf,
    detectable_variation,
    noncentral_sf,
)


@pytest.mark.parametrize("df", [1, 7, 80])
@pytest.mark.parametrize("x", [0.0, 3.0, 60.0, 200.0])
def test_tails_equal_scipys(df, x):
    assert chi_square_sf(x, df) == pytest.approx(stats.chi2.sf(x, df), rel=1e-8, abs=1e-15)
    for shift in (0.0, 0.5, 30.0, 900.0):
        expected = stats.ncx2.sf(x, df, shift) if shift else stats.chi2.sf(x, df)
        assert noncentral_sf(x, df, shift) == pytest.approx(expected, rel=1e-6, abs=1e-12)


def test_the_detectable_variation_has_the_stated_power():
    samples, df, level = 2000, 40, 1e-6
    smallest = detectable_variation(samples, df, level)
    critical = stats.chi2.isf(level, df)
    power = stats.ncx2.sf(critical, df, 4 * samples * smallest**2)
    assert power == pytest.approx(POWER, abs=1e-3)
    assert detectable_variation(4 * samples, df, level) == pytest.approx(smallest / 2, rel=1e-6)


class FixedModel:
    """Logits that depend on the last token alone; a Reference for tests."""

    def __init__(self, vocabulary: int) -> None:
        generator = torch.Generator().manual_seed(1)
        self.table = torch.randn(vocabulary, vocabulary, generator=generator).double()

    def last(self, texts, alone=False):
        return self.table[[text[-1] for text in texts]]

    def sample(self, rng: random.Random, law: Law, length: int) -> tuple[int, ...]:
        text = [0]
        for _ in range(length):
            p = law.apply(self.table[text[-1]]).tolist()
            text.append(rng.choices(range(len(p)), p)[0])
        return tuple(text[1:])


def test_right_samples_pass_and_wrong_ones_do_not():
    model, rng, law = FixedModel(5), random.Random(3), Law()
    tree = Tree(model, [0])
    right = [model.sample(rng, law, 5) for _ in range(3000)]
    check = judge_distribution("right", tree, law, right, 1e-6)
    assert check.passed and check.figures["p_value"] > 1e-3
    assert check.figures["degrees_of_freedom"] > 50
    wrong = [model.sample(rng, Law(temperature=1.4), 5) for _ in range(3000)]
    check = judge_distribution("wrong", tree, law, wrong, 1e-6)
    assert not check.passed and check.figures["p_value"] < 1e-9


def test_the_first_token_is_not_judged():
    """It comes from prefill: samples with any mixture of first tokens pass."""
    model, rng, law = FixedModel(4), random.Random(5), Law()
    samples = []
    for i in range(3000):
        first = 1 if i % 5 else 2
        text = [first]
        for _ in range(3):
            p = law.apply(model.table[text[-1]]).tolist()
            text.append(rng.choices(range(4), p)[0])
        samples.append(tuple(text))
    assert judge_distribution("mixed", Tree(model, [0]), law, samples, 1e-6).passed


def test_a_token_of_probability_zero_is_named():
    model, rng, law = FixedModel(5), random.Random(3), Law(bias={1: 100.0, 2: 100.0})
    samples = [model.sample(rng, law, 4) for _ in range(500)]
    assert judge_distribution("biased", Tree(model, [0]), law, samples, 1e-6).passed
    check = judge_distribution("one", Tree(model, [0]), law, [*samples, (1, 2, 4, 1)], 1e-6)
    assert not check.passed and "1 of 501 samples" in check.detail
