"""What EAGLE-3's first layer reads: a token's embedding and a feature, normed, side by side."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from outrider.model.cuda.chain import chained
from outrider.model.cuda.inputs import RowInputs
from outrider.model.cuda.linear import Norm


def join_features(
    inputs: RowInputs,
    embedding: Tensor,  # [vocabulary, width]
    features: Tensor,  # [rows, width]
    token_norm: Norm,
    feature_norm: Norm,
    residual: Tensor | None,  # [rows, width]: takes the normed feature; may be `features` itself
) -> Tensor:
    """[rows, 2 * width]: of the rows' tokens, and of the features."""
    rows, width = features.shape
    both = torch.empty(rows, 2 * width, dtype=features.dtype, device=features.device)
    _join_features[(rows,)](
        inputs.packed, embedding, features, token_norm.weight, feature_norm.weight, both,
        residual if residual is not None else both, token_norm.epsilon, feature_norm.epsilon,
        WIDTH=width, BLOCK=triton.next_power_of_2(width), RESIDUAL=residual is not None,
        num_warps=8, **chained(features.device),
    )  # fmt: skip
    return both


@triton.jit
def _normed(values, weight, inner, inside, epsilon, WIDTH: tl.constexpr):
    exact = values.to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(exact * exact, 0) / WIDTH + epsilon)
    return exact * scale * tl.load(weight + inner, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def _join_features(
    packed, embedding, features, token_norm, feature_norm, both, residual, token_epsilon,
    feature_epsilon, WIDTH: tl.constexpr, BLOCK: tl.constexpr, RESIDUAL: tl.constexpr,
    CHAINED: tl.constexpr,
):  # fmt: skip
    """One row; its token is the first field of `packed`."""
    if CHAINED:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    row = tl.program_id(0)
    inner = tl.arange(0, BLOCK)
    inside = inner < WIDTH
    token = tl.load(packed + row)
    known = tl.load(embedding + token * WIDTH + inner, mask=inside, other=0.0)
    feature = tl.load(features + row * WIDTH + inner, mask=inside, other=0.0)
    kind = both.dtype.element_ty
    to = both + 2 * row * WIDTH + inner
    tl.store(
        to, _normed(known, token_norm, inner, inside, token_epsilon, WIDTH).to(kind), mask=inside
    )
    normed = _normed(feature, feature_norm, inner, inside, feature_epsilon, WIDTH).to(kind)
    tl.store(to + WIDTH, normed, mask=inside)
    if RESIDUAL:
        tl.store(residual + row * WIDTH + inner, normed, mask=inside)
