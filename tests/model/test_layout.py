"""The layout for few rows changes where weights lie, and nothing else."""

import torch
from torch import nn

from outrider.model.layout import lay_out_for_few_rows


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
    model = Tied(torch.bfloat16)
    lay_out_for_few_rows(model)
    assert model.head.weight.stride() == (5, 1)
