"""Weights laid out so that a pass over a few rows costs little more than a pass over one.

torch's float32 products on a CPU take `x @ W.T` with W stored row by row. For 4 to 32 rows that is
up to twice as slow as with W stored column by column (for one row there is no difference), and a
pass over a draft is just such a product. Values, shapes and ties of the weights stay as they are.
"""

import torch
from torch import nn

from outrider.model.quantized import is_plain


def lay_out_for_few_rows(model: nn.Module) -> None:
    """Store each linear layer's weight [out, in] column by column. For float32 on a CPU only:
    other kernels bring their weights into an order of their own."""
    done: set[int] = set()
    for module in model.modules():
        if not is_plain(module) or id(module.weight) in done:
            continue
        weight: nn.Parameter = module.weight  # type: ignore[assignment]
        if weight.device.type == "cpu" and weight.dtype == torch.float32:
            weight.data = weight.data.t().contiguous().t()  # an embedding tied to it stays tied
            done.add(id(weight))


def count_laid_out(model: nn.Module) -> tuple[int, int]:
    """Linear layers whose weight lies column by column, and all that there are."""
    layers = [module for module in model.modules() if isinstance(module, nn.Linear)]
    return sum(is_plain(m) and not m.weight.is_contiguous() for m in layers), len(layers)
