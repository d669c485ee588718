"""The small kernels around a layer's products: tokens to embeddings, rotation and KV writing."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from outrider.model.cuda.chain import chained
from outrider.model.cuda.inputs import FIELDS, SPARE_UPDATES, RowInputs
from outrider.model.cuda.linear import Norm, Stream


def embed(
    inputs: RowInputs, weight: Tensor, previous: Tensor, stream: Stream, next_norm: Norm
) -> None:
    """Write the slot table's changes, and the embeddings of the tokens into the stream.

    weight [vocabulary, width], previous [most rows] int64. A token below zero stands for the
    choice that the previous pass made at row -1 - token, which the host has not seen yet.
    """
    width, parts = weight.shape[1], stream.squares.shape[1]
    _embed[(inputs.rows,)](
        inputs.packed, inputs.table, weight, previous, next_norm.weight,
        stream.hidden, stream.scaled, stream.squares, inputs.rows,
        WIDTH=width, BLOCK=triton.next_power_of_2(width), PARTS=parts, FIELDS=FIELDS,
        SPARE_UPDATES=SPARE_UPDATES, num_warps=4, **chained(weight.device),
    )  # fmt: skip


@triton.jit(do_not_specialize=["rows"])
def _embed(
    packed, table, weight, previous, norm, hidden, scaled, squares, rows,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr, FIELDS: tl.constexpr,
    SPARE_UPDATES: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    if CHAINED:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    row = tl.program_id(0)
    token = tl.load(packed + row)
    if token < 0:
        token = tl.load(previous - 1 - token)
    inner = tl.arange(0, BLOCK)
    inside = inner < WIDTH
    values = tl.load(weight + token * WIDTH + inner, mask=inside, other=0.0)
    tl.store(hidden + row * WIDTH + inner, values, mask=inside)
    exact = values.to(tl.float32)
    times = exact * tl.load(norm + inner, mask=inside, other=0.0).to(tl.float32)
    tl.store(scaled + row * WIDTH + inner, times.to(values.dtype), mask=inside)
    part = tl.arange(0, triton.next_power_of_2(PARTS))
    sums = tl.where(part == 0, tl.sum(exact * exact, 0), 0.0)
    tl.store(squares + row * PARTS + part, sums, mask=part < PARTS)
    updates = rows + SPARE_UPDATES
    for update in range(row, updates, rows):
        place = tl.load(packed + FIELDS * rows + update)
        slot = tl.load(packed + FIELDS * rows + updates + update)
        tl.store(table + place, slot.to(tl.int32))


def rotate_and_store(
    qkv: Tensor,  # [rows, (heads + 2 * kv heads) * size]
    cos: Tensor,  # [positions, size]
    sin: Tensor,  # [positions, size]
    keys: Tensor,  # [slots, kv heads, size]
    values: Tensor,  # [slots, kv heads, size]
    inputs: RowInputs,
    head_norms: tuple[Tensor, Tensor, float] | None = None,  # of queries, of keys: [size]; epsilon
) -> Tensor:
    """Rotated queries [rows, heads, size]; rotated keys and the values go to their slots."""
    rows, kv_heads, size = inputs.rows, keys.shape[1], keys.shape[2]
    heads = qkv.shape[1] // size - 2 * kv_heads
    query = torch.empty(rows, heads, size, dtype=qkv.dtype, device=qkv.device)
    query_norm, key_norm, epsilon = head_norms or (qkv, qkv, 0.0)
    _rotate[(rows, heads + 2 * kv_heads)](
        qkv, cos, sin, query, keys, values, inputs.packed, query_norm, key_norm,
        rows, epsilon, keys.stride(0), values.stride(0),
        HEADS=heads, KV_HEADS=kv_heads, SIZE=size, HALF=triton.next_power_of_2(size // 2),
        NORM=head_norms is not None, num_warps=1, **chained(qkv.device),
    )  # fmt: skip
    return query


@triton.jit(do_not_specialize=["rows"])
def _rotate(
    qkv, cos, sin, query, keys, values, packed, query_norm, key_norm,
    rows, epsilon, key_slot, value_slot,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, SIZE: tl.constexpr, HALF: tl.constexpr,
    NORM: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """One head of one row, as two halves: the rotation mixes element i with i + SIZE / 2."""
    if CHAINED:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    row, head = tl.program_id(0), tl.program_id(1)
    half = tl.arange(0, HALF)
    # Padding rows hold nothing sensible, and the scrap slot must stay finite: others read it.
    real = tl.load(packed + 6 * rows + row) != 0
    inside = half < tl.where(real, SIZE // 2, 0)
    source = qkv + (row * (HEADS + 2 * KV_HEADS) + head) * SIZE + half
    low = tl.load(source, mask=inside, other=0.0)
    high = tl.load(source + SIZE // 2, mask=inside, other=0.0)
    slot = tl.load(packed + 2 * rows + row)
    if head >= HEADS + KV_HEADS:
        to = values + slot * value_slot + (head - HEADS - KV_HEADS) * SIZE + half
        tl.store(to, low, mask=inside)
        tl.store(to + SIZE // 2, high, mask=inside)
    else:
        kind = qkv.dtype.element_ty
        a, b = low.to(tl.float32), high.to(tl.float32)
        if NORM:
            squares = tl.sum(a * a, 0) + tl.sum(b * b, 0)
            scale = 1.0 / tl.sqrt(squares / SIZE + epsilon)
            if head < HEADS:
                norm = query_norm + half
            else:
                norm = key_norm + half
            # Rounded as the module rounds it, before and after the weight.
            a = (a * scale).to(kind).to(tl.float32) * tl.load(norm, mask=inside, other=0.0)
            b = (b * scale).to(kind).to(tl.float32) * tl.load(
                norm + SIZE // 2, mask=inside, other=0.0
            )
            a, b = a.to(kind).to(tl.float32), b.to(kind).to(tl.float32)
        position = tl.load(packed + rows + row)
        angle = position * SIZE + half
        cos_low = tl.load(cos + angle, mask=inside, other=0.0).to(tl.float32)
        cos_high = tl.load(cos + angle + SIZE // 2, mask=inside, other=0.0).to(tl.float32)
        sin_low = tl.load(sin + angle, mask=inside, other=0.0).to(tl.float32)
        sin_high = tl.load(sin + angle + SIZE // 2, mask=inside, other=0.0).to(tl.float32)
        turned_low = (a * cos_low - b * sin_low).to(kind)
        turned_high = (b * cos_high + a * sin_high).to(kind)
        if head < HEADS:
            to = query + (row * HEADS + head) * SIZE + half
        else:
            to = keys + slot * key_slot + (head - HEADS) * SIZE + half
        tl.store(to, turned_low, mask=inside)
        tl.store(to + SIZE // 2, turned_high, mask=inside)
