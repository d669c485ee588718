import pytest
import torch
from torch import Tensor

from outrider.core.params import SamplingParams
from outrider.sampling import truncate as truncate_module
from outrider.sampling.truncate import top_p_cut, truncate

V = 3000


def full_sort_cut(scores: Tensor, p: list[float]) -> Tensor:
    ordered = scores.sort(-1, descending=True).values
    mass = ordered.double().softmax(-1).cumsum(-1)
    last = (mass < torch.tensor(p)[:, None]).sum(-1, keepdim=True).clamp(max=V - 1)
    return ordered.gather(1, last)[:, 0]


@pytest.mark.parametrize("scale", [0.0, 0.1, 1.0, 3.0, 10.0])
def test_top_p_windows_equal_a_full_sort(scale: float) -> None:
    """From one token that suffices to nearly all of them: every window size is needed."""
    scores = torch.randn(16, V, generator=torch.Generator().manual_seed(4)).double() * scale
    p = torch.linspace(0.05, 0.999, 16).tolist()
    assert torch.equal(top_p_cut(scores, p), full_sort_cut(scores, p))


def test_top_p_does_not_depend_on_neighbours() -> None:
    scores = torch.randn(8, V, generator=torch.Generator().manual_seed(5))
    scores[::2] *= 6
    p = [0.9, 0.99] * 4
    together = top_p_cut(scores, p)
    alone = torch.cat([top_p_cut(scores[i : i + 1], p[i : i + 1]) for i in range(8)])
    assert torch.equal(alone, together)


def test_top_p_after_top_k_counts_only_what_is_left() -> None:
    p = torch.tensor([[0.4, 0.3, 0.2, 0.1]], dtype=torch.float64)
    scores = p.log()
    truncate(scores, [SamplingParams(top_k=2, top_p=0.56)])
    assert scores.isfinite().tolist() == [[True, False, False, False]]  # 0.4 of 0.7 is 0.571


def test_ties_at_the_cut_stay() -> None:
    for params in (SamplingParams(top_k=2), SamplingParams(top_p=0.5)):
        scores = torch.tensor([[1.0, 0.0, 1.0, 1.0, -2.0]])
        truncate(scores, [params])
        assert scores.isfinite().tolist() == [[True, False, True, True, False]]


def test_something_always_remains() -> None:
    hard = SamplingParams(top_k=1, top_p=1e-9, min_p=1.0)
    scores = torch.randn(5, V)
    best = scores.argmax(-1)
    truncate(scores, [hard] * 5)
    assert torch.equal(scores.isfinite().nonzero()[:, 1], best)


def test_nearly_all_mass_keeps_nearly_all_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(truncate_module, "WINDOW", 4)
    scores = torch.zeros(1, V)
    truncate(scores, [SamplingParams(top_p=1 - 1e-12)])
    assert scores.isfinite().all()
