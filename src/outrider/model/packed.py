"""Linear layers in bfloat16 on a CPU, their weights in the order in which oneDNN computes.

torch otherwise brings a weight into that order at every product, which over a few rows takes about
as long as the product itself. Packed once, eight rows take little longer than one.
"""

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

FEW = 4  # rows; for fewer oneDNN goes another way, which takes longer
LARGE = 1 << 20  # elements of a weight for which that is more than rows of padding cost


class PackedLinear(nn.Linear):
    """The same layer. Its weight keeps shape, dtype and values, but has no memory that a view could
    show; `weight.to_dense()` is a copy as others know it."""

    def forward(self, input: Tensor) -> Tensor:
        """[..., in] -> [..., out]."""
        rows = input.numel() // self.in_features
        if not 0 < rows < FEW or self.weight.numel() < LARGE:
            return self._product(input)
        padded = pad(input.reshape(rows, self.in_features), (0, 0, 0, FEW - rows))
        return self._product(padded)[:rows].reshape(*input.shape[:-1], self.out_features)

    def _product(self, input: Tensor) -> Tensor:
        product = torch.ops.mkldnn._linear_pointwise(input, self.weight, self.bias, "none", [], "")
        return cast(Tensor, product)


def can_pack(weight: Tensor) -> bool:
    """Whether torch has oneDNN's products for such a weight here."""
    return (
        weight.device.type == "cpu"
        and weight.dtype == torch.bfloat16
        and torch.backends.mkldnn.is_available()
        and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    )


def pack(module: nn.Linear) -> None:
    """Make it a packed one. An embedding that shares its weight keeps the one that it has."""
    if not is_packed(module.weight):  # not so where it was taken from a layer that is packed
        packed = torch.ops.mkldnn._reorder_linear_weight(module.weight.detach(), None)
        module.weight = nn.Parameter(packed, requires_grad=False)
    module.__class__ = PackedLinear


def is_packed(weight: Tensor) -> bool:
    return weight.layout == torch._mkldnn  # type: ignore[attr-defined]
