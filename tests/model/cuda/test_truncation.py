"""The cuts found by the kernels leave the tokens that the rules of sampling/truncate.py leave.

A rule in doubt is one whose sum of probabilities comes so close to top-p that rounding decides: for
those rows either neighbouring cut is right.
"""

import random
from math import log

import pytest
import torch
from tests.model.cuda.passes import DEVICE, choosing_inputs
from torch import Tensor

from outrider.core.params import SamplingParams
from outrider.model.cuda import truncation
from outrider.model.cuda.truncation import CutMemory, find_cuts
from outrider.model.segment import Choosing
from outrider.sampling.noise import GUMBEL_MAX, GUMBEL_MIN
from outrider.sampling.truncate import truncate

OURS, HOSTS = 1e-8, 2e-6  # relative errors of sums of probabilities
ROWS = 400 if DEVICE.type == "cuda" else 10  # the interpreter is slow
REACH = GUMBEL_MAX - GUMBEL_MIN  # no token that lies lower than this below the best can win


def kept_by_kernels(logits: Tensor, params: list[SamplingParams]) -> Tensor:
    """logits [rows, vocabulary] -> bool of the same shape."""
    asked = [
        Choosing(0.0 if p.greedy else p.temperature, 1, 0, 0, p.top_k, p.top_p, p.min_p)
        for p in params
    ]
    memory = CutMemory.of(*logits.shape, DEVICE)
    cuts = find_cuts(logits.to(DEVICE), choosing_inputs(asked), memory)
    # Nothing is left over for the next pass.
    assert not (memory.found.any() or memory.above.any() or memory.arrived.any())
    return ~(scores_of(logits, params) < cuts.cpu()[:, None])


def scores_of(logits: Tensor, params: list[SamplingParams]) -> Tensor:
    return logits.float() / torch.tensor([p.temperature or 1.0 for p in params])[:, None]


def kept_by_host(logits: Tensor, params: list[SamplingParams]) -> Tensor:
    scores = scores_of(logits, params)
    truncate(scores, params)
    return scores.isfinite()


def kept_by_rule(scores: Tensor, params: SamplingParams, error: float) -> tuple[Tensor, Tensor]:
    """By sorting, in float64. scores [vocabulary] -> what is kept where top-p counts a sum that is
    in doubt as too little, and where it counts it as enough."""
    ordered = scores.double().sort(descending=True).values
    cut = -torch.inf
    if 0 < params.top_k < len(scores):
        cut = float(ordered[params.top_k - 1])
    low = high = cut
    if params.top_p < 1:
        weights = torch.where(ordered >= cut, (ordered - ordered[0]).exp(), 0.0)
        mass = weights.cumsum(0) / weights.sum()
        low, high = (
            float(ordered[min(int((mass < goal).sum()), len(ordered) - 1)])
            for goal in (params.top_p * (1 + error), params.top_p * (1 - error))
        )
        low = max(low, cut)
    if params.min_p:
        least = float(scores.max() + torch.tensor(log(params.min_p), dtype=torch.float32))
        low, high = max(low, least), max(high, least)
    return scores >= low, scores >= high


def check(logits: Tensor, params: list[SamplingParams]) -> None:
    got, host = kept_by_kernels(logits, params), kept_by_host(logits, params)
    scores = scores_of(logits, params)
    for i, each in enumerate(params):
        winnable = scores[i] > scores[i].max() - REACH
        for kept, error in ((got[i], OURS), (host[i], HOSTS)):
            most, fewest = kept_by_rule(scores[i], each, error)
            assert bool((kept <= most)[winnable].all()), each
            assert bool((kept >= fewest)[winnable].all()), each
        most, fewest = kept_by_rule(scores[i], each, HOSTS)
        if torch.equal(most, fewest):  # nothing is in doubt
            assert torch.equal(got[i] & winnable, host[i] & winnable), each


def random_params(rng: random.Random, vocabulary: int) -> SamplingParams:
    while True:
        params = SamplingParams(
            temperature=rng.choice([0.2, 0.7, 1.0, 1.0, 3.0]),
            top_k=rng.choice([0, 0, 1, 2, 5, 50, vocabulary - 1, vocabulary, 1 << 40]),
            top_p=rng.choice([1.0, 1.0, 1e-9, 0.1, 0.5, 0.8, 0.95, 0.999, 1 - 1e-12]),
            min_p=rng.choice([0.0, 0.0, 1e-3, 0.3, 1.0]),
        )
        if params.truncates:
            return params


def random_row(rng: random.Random, vocabulary: int) -> Tensor:
    """Flat, peaked, coarse (many ties), with tokens that are excluded."""
    generator = torch.Generator().manual_seed(rng.randrange(1 << 30))
    row = torch.randn(vocabulary, generator=generator) * rng.choice([0.0, 0.01, 1.0, 3.0, 12.0])
    row += rng.choice([0.0, 0.0, 17.0, -30.0])
    if rng.random() < 0.3:
        row = (row * 2).round() / 2
    if rng.random() < 0.3:
        row[rng.randrange(vocabulary)] += rng.choice([3.0, 25.0, 60.0])
    if rng.random() < 0.3:
        row[torch.rand(vocabulary, generator=generator) < rng.choice([0.2, 0.99])] = -torch.inf
        row[rng.randrange(vocabulary)] = rng.choice([-3.0, 0.0])
    return row


@pytest.mark.parametrize(
    ("vocabulary", "dtype"),
    [(7, torch.float32), (300, torch.float16), (5000, torch.float32), (5000, torch.bfloat16)],
)
def test_kept_tokens_are_those_of_the_rules(vocabulary: int, dtype: torch.dtype) -> None:
    rng = random.Random(vocabulary)
    logits = torch.stack([random_row(rng, vocabulary) for _ in range(ROWS)]).to(dtype)
    check(logits, [random_params(rng, vocabulary) for _ in range(ROWS)])


def test_cuts_within_a_step() -> None:
    """Many tokens in every step: a bound that is off by one leaves some out, or lets some in."""
    row = torch.randn(5000, generator=torch.Generator().manual_seed(2))
    asked = [{"top_k": 37}, {"top_k": 900}, *({"top_p": p / 10} for p in (3, 5, 7, 8, 9))]
    check(row.repeat(len(asked), 1), [SamplingParams(**options) for options in asked])


@pytest.mark.parametrize("asked", [{"top_p": 0.9}, {"top_k": 700, "top_p": 0.6}])
def test_more_tokens_than_can_be_listed(
    asked: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(truncation, "CAPACITY", 8)
    logits = torch.randn(1, 5000, generator=torch.Generator().manual_seed(1)) * 0.3
    check(logits, [SamplingParams(**asked)])


def test_lists_longer_than_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(truncation, "BLOCK", 256)
    logits = torch.randn(1, 3000, generator=torch.Generator().manual_seed(1)) * 0.2
    check(logits, [SamplingParams(top_k=900, top_p=0.7)])


def test_rows_that_ask_for_nothing_are_left_whole() -> None:
    logits = torch.randn(4, 500, generator=torch.Generator().manual_seed(1))
    asked = [{}, {"temperature": 0, "top_k": 1}, {"top_k": 1}, {"top_k": -1}]
    kept = kept_by_kernels(logits, [SamplingParams(**options) for options in asked])
    assert kept.sum(-1).tolist() == [500, 500, 1, 500]
