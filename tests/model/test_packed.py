"""Packed weights: the same products, whatever the rows; memory once, and what others read of it."""

import pytest
import torch
from torch import nn
from torch.nn.functional import linear

from outrider.model import packed
from outrider.model.layout import count_laid_out, lay_out_for_few_rows
from outrider.model.packed import PackedLinear, can_pack, is_packed, pack
from outrider.model.quantized import is_plain, weight_bytes

pytestmark = pytest.mark.skipif(
    not can_pack(torch.empty(0, dtype=torch.bfloat16)),
    reason="torch has no oneDNN products in bfloat16 here",
)


def layer(bias: bool = False) -> nn.Linear:
    return nn.Linear(24, 40, bias=bias, dtype=torch.bfloat16)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("large", [False, True])  # few rows of a large one are padded
@torch.inference_mode()
def test_products_are_those_of_the_plain_layer(
    bias: bool, large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed, "LARGE", 0 if large else 1 << 20)
    plain = layer(bias)
    weight, given = plain.weight.detach().clone(), plain.bias
    pack(plain)
    assert type(plain) is PackedLinear
    for shape in [(1,), (1, 1), (1, 3), (2, 2), (5,), (1, 33), (0,), (1, 0)]:
        x = torch.randn(*shape, 24, dtype=torch.bfloat16)
        out = plain(x)
        assert out.shape == (*shape, 40) and out.dtype == torch.bfloat16
        exact = linear(x.float(), weight.float(), None if given is None else given.float())
        torch.testing.assert_close(out.float(), exact, rtol=1e-2, atol=1e-2)


def test_rows_do_not_see_their_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "LARGE", 0)
    one = layer()
    pack(one)
    seen = []
    monkeypatch.setattr(
        PackedLinear, "_product", lambda self, x: seen.append(len(x)) or x.new_ones(len(x), 40)
    )
    rows = [1, packed.FEW - 1, packed.FEW, packed.FEW + 1]
    assert [len(one(torch.randn(n, 24, dtype=torch.bfloat16))) for n in rows] == rows
    assert seen == [packed.FEW, packed.FEW, packed.FEW, packed.FEW + 1]


def test_the_weight_keeps_what_others_ask_it_for() -> None:
    one = layer()
    before = one.weight.detach().clone()
    pack(one)
    weight = one.weight
    assert isinstance(weight, nn.Parameter) and is_packed(weight) and not weight.requires_grad
    assert (weight.shape, weight.dtype, weight.device.type) == ((40, 24), torch.bfloat16, "cpu")
    assert torch.equal(weight.to_dense(), before)
    assert sum(p.numel() for p in one.parameters()) == 40 * 24
    assert weight_bytes(nn.ModuleList([one, layer()])) == 2 * 2 * 40 * 24
    assert is_plain(one)
    two = layer()
    pack(two)
    assert weight_bytes(nn.ModuleList([one, two])) == 2 * 2 * 40 * 24


def test_an_embedding_keeps_the_weight_that_it_shared() -> None:
    model = nn.ModuleDict({"words": nn.Embedding(40, 24, dtype=torch.bfloat16), "head": layer()})
    model["head"].weight = model["words"].weight
    before = model["words"].weight.detach().clone()
    lay_out_for_few_rows(model)
    assert count_laid_out(model) == (1, 1)
    assert torch.equal(model["words"](torch.tensor([7])), before[7:8])
    assert torch.equal(model["head"].weight.to_dense(), before)


def test_a_packed_weight_is_shared_and_not_packed_again() -> None:
    first, second = layer(), layer()
    lay_out_for_few_rows(first)
    second.weight = first.weight  # as a head borrows the output layer of its target
    lay_out_for_few_rows(second)
    assert second.weight is first.weight and type(second) is PackedLinear
    x = torch.randn(2, 24, dtype=torch.bfloat16)
    assert torch.equal(first(x), second(x))


def test_a_layer_laid_out_twice_is_packed_once() -> None:
    one = layer()
    lay_out_for_few_rows(one)
    weight = one.weight
    lay_out_for_few_rows(one)
    assert one.weight is weight


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_other_types_are_not_packed(dtype: torch.dtype) -> None:
    assert not can_pack(torch.empty(0, dtype=dtype))
    assert not can_pack(torch.empty(0, dtype=torch.bfloat16, device="meta"))
