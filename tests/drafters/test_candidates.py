"""Children by rank: the likeliest, the target's choice and its runners-up, or draws."""

from typing import Any

import pytest
import torch
from torch import Tensor

from outrider.core.params import SamplingParams
from outrider.core.request import Request
from outrider.drafters.candidates import candidates
from outrider.sampling.choose import choose, draw
from outrider.sampling.guess import Known
from outrider.sampling.noise import Key, Purpose, noise, streams
from outrider.sampling.rows import Row


def make_rows(count: int, **options: Any) -> list[Row]:
    params = SamplingParams(**options)
    return [Row(Request(str(i), [0], params, seed=70 + i), [1] * (i % 3)) for i in range(count)]


def make_scores(rows: int, vocabulary: int = 3000) -> Tensor:
    return 3 * torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(4))


def test_greedy_children_are_the_likeliest_with_their_probabilities() -> None:
    scores = make_scores(4)
    p = scores.softmax(-1)
    for lanes in (None, [0, 1, 2, 3]):
        for row, found in enumerate(
            candidates(scores, make_rows(4, temperature=0), [1, 2, 3, 5], lanes)
        ):
            best = p[row].topk([1, 2, 3, 5][row])
            assert found.tokens == best.indices.tolist()
            assert found.confidence == pytest.approx(best.values.tolist(), rel=1e-4)
            assert found.q is None  # nobody drew them


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_children_of_a_smaller_vocabulary_are_the_targets_tokens(temperature: float) -> None:
    known = Known.of(torch.randperm(3000, generator=torch.Generator().manual_seed(3))[:1000], 3000)
    scores, rows = make_scores(20, 1000), make_rows(20, temperature=temperature)
    own = candidates(scores, rows, [3] * 20, known=known)
    spread = candidates(known.spread(scores), rows, [3] * 20)
    same = [one.tokens == other.tokens for one, other in zip(own, spread, strict=True)]
    assert sum(same) >= (20 if temperature == 0 else 17)  # noise is not searched to the end
    if temperature == 0:
        for one, other in zip(own, spread, strict=True):
            assert one.confidence == pytest.approx(other.confidence, rel=1e-4)


def test_guesses_start_with_the_choice_under_the_same_noise() -> None:
    scores, rows = make_scores(40), make_rows(40)
    found = candidates(scores, rows, [3] * 40)
    assert [f.tokens[0] for f in found] == choose(scores, rows).tolist()
    keys = [Key(row.request.seed, 0, row.position, Purpose.CHOICE) for row in rows]
    expected = (scores + noise(streams(keys), scores.shape[1])).topk(3).indices
    assert [f.tokens for f in found] == expected.tolist()
    for f in found:
        assert f.confidence == sorted(f.confidence, reverse=True)
        assert 0 < sum(f.confidence) <= 1 + 1e-6


def test_confidence_under_noise_is_the_softmax_of_the_perturbed_scores() -> None:
    scores, rows = make_scores(6, vocabulary=5), make_rows(6)
    keys = [Key(row.request.seed, 0, row.position, Purpose.CHOICE) for row in rows]
    expected = (scores + noise(streams(keys), 5)).softmax(-1)
    for row, found in enumerate(candidates(scores, rows, [5] * 6)):
        values = [float(expected[row, token]) for token in found.tokens]
        assert found.confidence == pytest.approx(values, rel=1e-4)


def test_draws_start_with_the_draw_of_their_lane() -> None:
    scores, rows = make_scores(40), make_rows(40)
    lanes = list(range(40))
    found = candidates(scores, rows, [2] * 40, lanes)
    assert [f.tokens[0] for f in found] == draw(scores, rows, lanes).tolist()
    for row, f in enumerate(found):
        assert f.q is not None and torch.equal(f.q, scores[row].softmax(-1))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("lanes", [None, [0, 1, 2, 3]])
def test_rows_give_no_more_than_they_have(temperature: float, lanes: list[int] | None) -> None:
    scores = torch.zeros(4, 500, dtype=torch.float64)
    scores[0] = -torch.inf
    scores[1, 7] = torch.nan
    scores[2] = -torch.inf
    scores[2, [3, 400]] = torch.tensor([0.0, -90.0], dtype=torch.float64)
    found = candidates(scores, make_rows(4, temperature=temperature), [3] * 4, lanes)
    assert [len(f.tokens) for f in found] == [0, 0, 2, 3]
    assert found[2].tokens == [3, 400]
    for f in found:
        assert f.q is None or all(f.q[token] > 0 for token in f.tokens)


def test_what_cannot_be_drawn_is_not_proposed() -> None:
    """A token whose probability is 0 in q, though its score is finite."""
    scores = torch.full((1, 100), -1000.0)
    scores[0, 5] = 0.0
    (found,) = candidates(scores, make_rows(1), [4], [0])
    assert found.tokens == [5]
