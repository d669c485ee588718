"""The best few are found without computing all noise."""

from collections import Counter
from itertools import permutations

import pytest
import torch
from torch import Tensor

from outrider.sampling import shared_noise
from outrider.sampling.choose import perturbed_max
from outrider.sampling.noise import Key, Purpose, group_noise, noise, streams
from outrider.sampling.shared_noise import SharedNoise
from outrider.sampling.top import perturbed_top
from tests.sampling.statistics import ALPHA, p_value
from tests.sampling.test_choose import shapes_of_scores


def make_streams(count: int) -> Tensor:
    return streams([Key(seed, 0, 3, Purpose.DRAFT, 2) for seed in range(count)])


@pytest.mark.parametrize("sure", [1, 2, 5])
@pytest.mark.parametrize(("name", "scores"), shapes_of_scores().items())
def test_what_is_sure_equals_all_noise(name: str, scores: Tensor, sure: int) -> None:
    stream = make_streams(len(scores))
    everything = scores + noise(stream, scores.shape[1])
    found, tokens = perturbed_top(scores, stream, 8, sure)
    expected = everything.topk(min(sure, scores.shape[1]), -1).values
    assert torch.equal(found[:, :sure][:, : expected.shape[1]], expected)
    for row in range(len(scores)):  # every token has the value that is claimed, and comes once
        real = found[row].isfinite()
        assert torch.equal(everything[row, tokens[row, real]], found[row, real])
        assert len(set(tokens[row, real].tolist())) == int(real.sum())


def test_the_order_is_that_of_draws_without_replacement() -> None:
    """P(a, then b) = q(a) q(b) / (1 - q(a))."""
    q = torch.tensor([0.5, 0.3, 0.15, 0.05])
    samples = 4000
    stream = streams([Key(seed, 0, 0, Purpose.DRAFT) for seed in range(samples)])
    _, tokens = perturbed_top(q.log().expand(samples, 4), stream, 2, 2)
    expected = {(a, b): float(q[a] * q[b] / (1 - q[a])) for a, b in permutations(range(4), 2)}
    assert p_value([tuple(pair) for pair in tokens.tolist()], expected) > ALPHA
    assert len(Counter(map(tuple, tokens.tolist()))) == len(expected)


def test_rows_with_nothing_to_choose_give_nothing_finite() -> None:
    scores = torch.zeros(3, 5000)
    scores[0] = -torch.inf
    scores[1] = torch.nan
    scores[2, 3:] = -torch.inf
    values, tokens = perturbed_top(scores, make_streams(3), 5, 5)
    assert values.isfinite().sum(-1).tolist() == [0, 0, 3]
    assert sorted(tokens[2, :3].tolist()) == [0, 1, 2]


@pytest.mark.parametrize("name", ["usual", "flat", "float64", "narrow"])
def test_rows_at_the_same_place_have_the_noise_they_would_have_alone(name: str) -> None:
    """Nodes of one level of a tree: eight places for 24 rows, each number computed once."""
    scores = shapes_of_scores()[name]
    stream = make_streams(8).repeat(3, 1)
    assert torch.equal(
        perturbed_max(scores, stream)[1], (scores + noise(stream, scores.shape[1])).argmax(-1)
    )
    together = perturbed_top(scores, stream, 8, 4)
    alone = [perturbed_top(scores[i : i + 1], stream[i : i + 1], 8, 4) for i in range(24)]
    for both, each in zip(together, zip(*alone)):
        assert torch.equal(both[:, :4], torch.cat(each)[:, :4])


def test_noise_that_rows_share_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []

    def counted(stream: Tensor, *others: Tensor) -> Tensor:
        opened.append(len(stream))
        return group_noise(stream, *others)

    monkeypatch.setattr(shared_noise, "group_noise", counted)
    shared = SharedNoise(make_streams(2).repeat(4, 1), 10)
    found = shared.of_groups(torch.arange(8), torch.tensor([[3, 7]] * 8))
    assert opened == [4] and torch.equal(found[:2].repeat(4, 1, 1), found)
