"""Attention of many rows that each continue a text, in Triton: prompts, whole or in part, and texts
being written, all in one launch. Nothing is padded, and no mask is built: a row sees the places of
its text up to its own. The heads that share their keys are further rows of a tile.
"""

from typing import NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from outrider.model.cuda.tree_attention import (
    Options,
    fold,
    fold_sink,
    in_window,
    load_keys,
    load_values,
)
from outrider.model.segment import Segment

PAIRS = 64  # (row, head) pairs of a tile
MOST_KEYS = 64  # per block
BLOCK = 16384  # bytes of a block of keys at most: two blocks of keys and values fit everywhere
WARPS = 4
STAGES = 2


class Texts(NamedTuple):
    """Where the rows of a pass are in their texts."""

    tiles: Tensor  # [tiles, 4] int64: first row, rows, where its text's slots begin, first place
    slots: Tensor  # [places of all texts] int64


def pairs_of(group: int) -> int:
    """(row, head) pairs of a tile, at `group` query heads per key head."""
    return max(PAIRS, triton.next_power_of_2(group))


def keys_of(size: int, element: int) -> int:
    """Keys per block, of heads of so many elements, padded, of so many bytes each."""
    return max(16, min(MOST_KEYS, BLOCK // (size * element)))


def tiles_of(segments: list[Segment], group: int) -> np.ndarray:
    """[tiles, 4] int64, as `Texts` has them, of chains."""
    most = pairs_of(group) // group
    tiles = []
    first = begin = 0
    for segment in segments:
        before, rows = len(segment.context), len(segment)
        for done in range(0, rows, most):
            tiles.append((first + done, min(most, rows - done), begin, before + done))
        first += rows
        begin += before + rows
    return np.array(tiles, dtype=np.int64)


def text_attention(
    query: Tensor,  # [rows, heads, head size]
    keys: Tensor,  # [slots, kv heads, head size]
    values: Tensor,  # [slots, kv heads, value head size]
    texts: Texts,
    scale: float,
    options: Options = Options(),  # noqa: B008
) -> Tensor:
    """[rows, heads, value head size]; the rows' own keys and values are in their slots."""
    rows, heads, size = query.shape
    kv_heads, value_size = values.shape[1], values.shape[2]
    group = heads // kv_heads
    out = torch.empty(rows, heads, value_size, dtype=query.dtype, device=query.device)
    padded_size = max(16, triton.next_power_of_2(size))
    _attend_texts[(len(texts.tiles), kv_heads)](
        query, keys, values, texts.tiles, texts.slots, out,
        options.sinks if options.sinks is not None else query,
        scale, heads, query.stride(0), query.stride(1), keys.stride(0), keys.stride(1),
        values.stride(0), values.stride(1),
        WINDOW=options.window or 0, SOFTCAP=options.softcap or 0.0,
        SINKS=options.sinks is not None, GROUP=group, SIZE=size,
        PADDED_SIZE=padded_size, VALUE_SIZE=value_size,
        PADDED_VALUE_SIZE=max(16, triton.next_power_of_2(value_size)),
        TILE=pairs_of(group), KEYS=keys_of(padded_size, query.element_size()),
        num_warps=WARPS, num_stages=STAGES,
    )  # fmt: skip
    return out


@triton.jit
def _attend_texts(
    query, keys, values, tiles, slots, out, sinks,
    scale, heads, query_row, query_head, key_slot, key_head, value_slot, value_head,
    WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, SINKS: tl.constexpr,
    GROUP: tl.constexpr, SIZE: tl.constexpr, PADDED_SIZE: tl.constexpr,
    VALUE_SIZE: tl.constexpr, PADDED_VALUE_SIZE: tl.constexpr,
    TILE: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Some rows of one text, for one key head."""
    tile, kv_head = tl.program_id(0), tl.program_id(1)
    first = tl.load(tiles + 4 * tile)
    count = tl.load(tiles + 4 * tile + 1)
    slots += tl.load(tiles + 4 * tile + 2)
    begin = tl.load(tiles + 4 * tile + 3).to(tl.int32)
    pair = tl.arange(0, TILE)
    row = first + pair // GROUP  # [TILE]
    head = kv_head * GROUP + pair % GROUP
    real = pair < count * GROUP
    position = begin + pair // GROUP
    inner, value_inner = tl.arange(0, PADDED_SIZE), tl.arange(0, PADDED_VALUE_SIZE)
    q = tl.load(
        query + row[:, None] * query_row + head[:, None] * query_head + inner[None, :],
        mask=real[:, None] & (inner[None, :] < SIZE),
        other=0.0,
    )
    keys += kv_head * key_head
    values += kv_head * value_head
    best = tl.full([TILE], float("-inf"), tl.float32)
    total = tl.zeros([TILE], tl.float32)
    mixed = tl.zeros([TILE, PADDED_VALUE_SIZE], tl.float32)
    start, end = 0, begin + count.to(tl.int32)
    if WINDOW > 0:  # keys that no row of the tile sees any more
        start = tl.maximum(0, begin - WINDOW + 1) // KEYS * KEYS
    for block in range(start, end, KEYS):
        place = block + tl.arange(0, KEYS)
        inside = place < end
        slot = tl.load(slots + place, mask=inside, other=0)
        k = load_keys(keys, slot, inside, inner, key_slot, SIZE)
        v = load_values(values, slot, inside, value_inner, value_slot, VALUE_SIZE)
        seen = (place[None, :] <= position[:, None]) & in_window(position, place, WINDOW)
        best, total, mixed = fold(q, k, v, seen, scale, best, total, mixed, SOFTCAP)
    if SINKS:
        best, total, mixed = fold_sink(sinks, head, real, True, best, total, mixed)
    mixed /= tl.where(real, total, 1.0)[:, None]
    tl.store(
        out + (row * heads + head)[:, None] * VALUE_SIZE + value_inner[None, :],
        mixed.to(out.dtype.element_ty),
        mask=real[:, None] & (value_inner[None, :] < VALUE_SIZE),
    )
