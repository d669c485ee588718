"""A token at the cut of top-k is judged by how far rounding could move it."""

import math

import pytest
import torch

from outrider.audit.judge import Ask, Judge
from outrider.core.params import SamplingParams
from outrider.engine.intake import Checked

LOGITS = torch.tensor([3.0, 2.0, 1.95, -4.0], dtype=torch.float64)


def distance(token: int, tolerance: float, **options: object) -> float:
    params = SamplingParams(temperature=1.0, seed=3, **options)  # type: ignore[arg-type]
    ask = Ask("", "", params, Checked([1], None, 8, frozenset(), []))
    judge = Judge(None, None, tolerance=tolerance)  # type: ignore[arg-type]
    return judge.distance(ask, 0, [], LOGITS, token)


def test_a_token_just_below_the_cut_is_measured_by_its_score() -> None:
    whole = distance(2, 0.1)
    assert math.isfinite(whole)
    assert distance(2, 0.1, top_k=2) <= whole + 0.1 + 1e-9


@pytest.mark.parametrize("tolerance", [0.01, 0.04])
def test_a_token_that_rounding_cannot_save_is_infinitely_far(tolerance: float) -> None:
    assert distance(2, tolerance, top_k=2) == math.inf
    assert distance(3, 0.1, top_k=2) == math.inf


def test_the_best_token_is_at_no_distance() -> None:
    assert min(distance(token, 0.0) for token in range(4)) == 0.0


def test_a_rival_that_rounding_may_drop_does_not_count() -> None:
    # Only the two rivals at the cut differ from the plain distance, and only within reach of it.
    for seed_token in range(3):
        near, far = distance(seed_token, 0.1, top_k=2), distance(seed_token, 0.0, top_k=2)
        assert near <= far + 0.1 + 1e-9
