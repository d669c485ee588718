"""Linear layers made so that a pass over a few rows costs little more than a pass over one.

In bfloat16 on a CPU they are packed: see `packed.py`.

torch's float32 products on a CPU take `x @ W.T` with W stored row by row. Up to 3 rows that takes
as long as one: the weight is read once. From 4 on it takes two to four times as long.

A weight that fits into a cache is stored column by column: then 2 to 16 rows take half as long
again as one. A large one would take twice as long for 2 rows already, so it stays as it is, and
from 4 rows on the product is turned round, `W @ x.T`, which takes twice as long as one row up to
some dozens.

Values and shapes of the weights stay as they are.
"""

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from outrider.model.packed import PackedLinear, can_pack, pack
from outrider.model.quantized import is_plain

LARGE, LONG = 1 << 21, 1024  # elements of a weight that no cache holds, and of each of its lines
AS_ONE = 3  # rows that take as long as one
TURNED = 48  # rows up to which the product is turned round


class LargeLinear(nn.Linear):
    """The same layer; how it multiplies depends on the rows."""

    def forward(self, input: Tensor) -> Tensor:
        """[..., in] -> [..., out]."""
        rows = input.numel() // self.in_features
        if not AS_ONE < rows <= TURNED:
            return linear(input, self.weight, self.bias)
        columns = input.reshape(rows, self.in_features).t()  # [in, rows]
        if self.bias is None:
            product = torch.mm(self.weight, columns)  # [out, rows]
        else:
            product = torch.addmm(self.bias[:, None], self.weight, columns)
        return product.t().reshape(*input.shape[:-1], self.out_features).contiguous()


def lay_out_for_few_rows(model: nn.Module) -> None:
    """For layers on a CPU, in float32 and bfloat16."""
    for module in model.modules():
        if not is_plain(module):
            continue
        layer = cast(nn.Linear, module)
        if can_pack(layer.weight):
            pack(layer)
        elif layer.weight.device.type == "cpu" and layer.weight.dtype == torch.float32:
            _lay_out(layer)


def _lay_out(module: nn.Linear) -> None:
    weight = module.weight
    if weight.numel() >= LARGE and weight.shape[1] >= LONG:
        if type(module) is nn.Linear:
            module.__class__ = LargeLinear
    elif weight.is_contiguous():  # not so where it is shared, and was laid out before
        weight.data = weight.data.t().contiguous().t()  # an embedding tied to it stays tied


def count_laid_out(model: nn.Module) -> tuple[int, int]:
    """Linear layers made for few rows, and all that there are."""
    layers = [module for module in model.modules() if isinstance(module, nn.Linear)]
    made = [
        isinstance(m, (LargeLinear, PackedLinear)) or (is_plain(m) and not m.weight.is_contiguous())
        for m in layers
    ]
    return sum(made), len(layers)
