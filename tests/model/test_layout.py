"""The layout for few rows changes where weights lie, and nothing else."""

import pytest
import torch
from torch import nn

from outrider.model import layout
from outrider.model.layout import count_laid_out, lay_out_for_few_rows


class Tied(nn.Module):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 5, dtype=dtype)
        self.head = nn.Linear(5, 7, bias=False, dtype=dtype)
        self.head.weight = self.embedding.weight


def test_float32_weights_lie_column_by_column_with_their_values_and_ties() -> None:
    model = Tied(torch.float32)
    before = model.head.weight.detach().clone()
    lay_out_for_few_rows(model)
    assert model.head.weight.stride() == (1, 7)
    assert model.head.weight is model.embedding.weight
    assert torch.equal(model.head.weight, before)
    assert torch.equal(model.embedding(torch.tensor([3])), before[3:4])


def test_other_types_stay_as_they_are() -> None:
    model = Tied(torch.float16)
    lay_out_for_few_rows(model)
    assert model.head.weight.stride() == (5, 1) and type(model.head) is nn.Linear


@pytest.mark.parametrize("bias", [False, True])
def test_a_large_layer_stays_as_it_is_and_says_the_same_for_any_number_of_rows(
    bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "LARGE", 12 * 40)
    monkeypatch.setattr(layout, "LONG", 40)
    model = nn.ModuleList([nn.Linear(40, 12, bias=bias), nn.Linear(12, 40, bias=bias)])
    large, short = model
    plain = nn.Linear(40, 12, bias=bias)
    plain.load_state_dict(large.state_dict())
    lay_out_for_few_rows(model)
    assert large.weight.stride() == (40, 1) and short.weight.stride() == (1, 40)
    assert count_laid_out(model) == (2, 2)
    for shape in [(1,), (1, 3), (4,), (1, 7), (2, 24), (49,), (1, 130)]:
        x = torch.randn(*shape, 40)
        out = large(x)
        assert out.shape == (*shape, 12) and out.is_contiguous()
        torch.testing.assert_close(out, plain(x))
