"""Queries, keys and values of few rows in one kernel: norm, product, rotation, and the way to their
slots.

The rotation mixes element i of a head with i + size / 2, so each program takes some elements of one
half and the same ones of the other.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from outrider.model.cuda.chain import chained
from outrider.model.cuda.inputs import RowInputs
from outrider.model.cuda.linear import (
    MOST_ROWS,
    Norm,
    Stream,
    arrives_last,
    constants,
    product_of,
    shape_for,
    sum_of_shares,
)
from outrider.model.cuda.workspace import Workspace


def can_project(weight: Tensor, head_size: int, rows: int) -> bool:
    """weight [(heads + 2 * kv heads) * size, width]. Whether the programs' lines are those of one
    head, as many of each half. Else the rotation is a kernel of its own."""
    return rows <= MOST_ROWS and head_size % shape_for(weight, rows).lines == 0


def project(
    stream: Stream,
    norm: Norm,
    work: Workspace,
    weight: Tensor,  # [(heads + 2 * kv heads) * size, width]
    bias: Tensor | None,  # [(heads + 2 * kv heads) * size]
    cos: Tensor,  # [positions, size]
    sin: Tensor,  # [positions, size]
    keys: Tensor,  # [slots, kv heads, size]
    values: Tensor,  # [slots, kv heads, size]
    inputs: RowInputs,
) -> Tensor:
    """Rotated queries [rows, heads, size]; rotated keys and the values go to their slots."""
    rows, inner = stream.hidden.shape
    kv_heads, size = keys.shape[1], keys.shape[2]
    heads = weight.shape[0] // size - 2 * kv_heads
    query = torch.empty(rows, heads, size, dtype=weight.dtype, device=weight.device)
    shape = shape_for(weight, stream.shaped_for)
    _project[(weight.shape[0] // shape.lines, shape.splits)](
        stream.scaled, weight, bias if bias is not None else weight, stream.squares, cos, sin,
        query, keys, values, inputs.packed, work.parts, work.arrived,
        rows, norm.epsilon, keys.stride(0), values.stride(0),
        INNER=inner, BIAS=bias is not None, HEADS=heads, KV_HEADS=kv_heads, HEAD_SIZE=size,
        PARTS=stream.squares.shape[1], **constants(shape, shape.lines, stream.shaped_for),
        **chained(weight.device),
    )  # fmt: skip
    return query


@triton.jit(do_not_specialize=["rows"])
def _project(
    x, weight, bias, squares, cos, sin, query, keys, values, packed, parts, arrived,
    rows, epsilon, key_slot, value_slot,
    INNER: tl.constexpr, ROWS: tl.constexpr, LINES: tl.constexpr, BLOCK: tl.constexpr,
    SPLITS: tl.constexpr, BIAS: tl.constexpr, HEADS: tl.constexpr, KV_HEADS: tl.constexpr,
    HEAD_SIZE: tl.constexpr, PARTS: tl.constexpr, WIDE: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    tile, split = tl.program_id(0), tl.program_id(1)
    row = tl.arange(0, ROWS)
    there = (row < rows)[:, None]
    PAIRS: tl.constexpr = LINES // 2
    EACH: tl.constexpr = HEAD_SIZE // LINES  # programs per head
    head = tile // EACH
    pair = tile % EACH * PAIRS + tl.arange(0, PAIRS)[None, :]  # of the first half
    place = tl.arange(0, LINES)
    line = head * HEAD_SIZE + tile % EACH * PAIRS + place % PAIRS
    line += tl.where(place < PAIRS, 0, HEAD_SIZE // 2)
    # What the host has sent, and the angles: none of it waits for the kernel before.
    position = tl.load(packed + rows + row, mask=row < rows, other=0)[:, None]
    slot = tl.load(packed + 2 * rows + row, mask=row < rows, other=0)[:, None]
    # A padding row sees nothing, not even itself, and the scrap slot must stay finite.
    real = tl.load(packed + 6 * rows + row, mask=row < rows, other=0)[:, None] != 0
    mask = (row < rows)[:, None] & real & (pair < HEAD_SIZE)
    angle = position * HEAD_SIZE + pair
    cos_low = tl.load(cos + angle, mask=mask, other=0.0).to(tl.float32)
    cos_high = tl.load(cos + angle + HEAD_SIZE // 2, mask=mask, other=0.0).to(tl.float32)
    sin_low = tl.load(sin + angle, mask=mask, other=0.0).to(tl.float32)
    sin_high = tl.load(sin + angle + HEAD_SIZE // 2, mask=mask, other=0.0).to(tl.float32)
    product, scale = product_of(
        x, weight + line[:, None].to(tl.int64) * INNER, squares, row, there,
        (line < (HEADS + 2 * KV_HEADS) * HEAD_SIZE)[:, None], split, epsilon,
        INNER, BLOCK, SPLITS, True, PARTS, WIDE, CHAINED,
    )  # fmt: skip
    if SPLITS > 1:
        SIZE: tl.constexpr = ROWS * LINES
        to = parts + tile * SPLITS * SIZE + row[:, None] * LINES + place[None, :]
        if not arrives_last(product, to, arrived + tile, split, SIZE, SPLITS):
            return
        product = sum_of_shares(to, SIZE, SPLITS)
    product = product * scale[:, None]
    if BIAS:
        product += tl.load(bias + line).to(tl.float32)[None, :]
    kind = query.dtype.element_ty
    product = product.to(kind).to(tl.float32)  # rounded where the modules round
    low, high = tl.split(tl.permute(tl.reshape(product, [ROWS, 2, PAIRS]), [0, 2, 1]))
    if head >= HEADS + KV_HEADS:
        at = values + slot * value_slot + (head - HEADS - KV_HEADS) * HEAD_SIZE + pair
    else:
        turned = low * cos_low - high * sin_low
        high = high * cos_high + low * sin_high
        low = turned
        if head < HEADS:
            at = query + (row[:, None] * HEADS + head).to(tl.int64) * HEAD_SIZE + pair
        else:
            at = keys + slot * key_slot + (head - HEADS) * HEAD_SIZE + pair
    tl.store(at, low.to(kind), mask=mask)
    tl.store(at + HEAD_SIZE // 2, high.to(kind), mask=mask)
