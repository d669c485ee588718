"""Attention of tree rows over token slots, in Triton: nothing is gathered, no mask is built.

The keys of a row are the whole context of its sequence and, among the rows of the same pass, its
ancestors. The context is read through the slot table; the ancestors are 64 bits per row. Rows of
one sequence share the loads of its context: they go through the matrix unit together, as a tile of
(rows x grouped heads). Long contexts are split, so that a single sequence fills the device, and the
rows of the pass itself are a part of their own, which need not wait for the context; a second,
small kernel joins the parts.
"""

from functools import cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from outrider.model.cuda.chain import chained
from outrider.model.cuda.inputs import RowInputs
from outrider.model.cuda.workspace import Workspace

KEYS = 32  # per block of the context
FEWEST_KEYS = 32  # per part: below that, joining costs more than it gains
MOST_PARTS = 128
MOST_PAIRS = 32  # (row, head) pairs of a tile: more of them leave no registers for the keys
PROGRAMS = 132  # parts are made until so many programs run: one for each multiprocessor
JOINED = 64  # parts that are joined at once,
MANY_JOINED = 256  # or all of them, where there are more: MOST_PARTS and the rows themselves
JOINED_SIZE = 32  # elements of a value per program that joins: many small loads under way
STAGES = 1  # the kernel reads ahead by itself
FEW_REGISTERS = 208  # with as many, two programs fit beside one of the projection and start early
MANY_TEXTS = 8  # more of them fill the device, with fewer warps for each


class Options(NamedTuple):
    """What a layer asks for beside the scale."""

    window: int | None = None
    softcap: float | None = None
    sinks: Tensor | None = None  # [heads]


def parts_for(rows: int, group: int, kv_heads: int, single: bool) -> int:
    """Into how many parts a context is split at most: enough to fill the device even when all rows
    belong to as few sequences as can be."""
    tiles = -(-rows // rows_per_tile(rows, group, single))
    parts = 1
    while parts < MOST_PARTS and tiles * kv_heads * parts < PROGRAMS:
        parts *= 2
    return parts


@cache  # a launch asks for it, and next_power_of_2 takes microseconds
def rows_per_tile(rows: int, group: int, single: bool) -> int:
    """How many rows of one sequence a tile holds, at `group` query heads per key head."""
    return max(1, _tile(rows, group, single) // group)


def _tile(rows: int, group: int, single: bool) -> int:
    """(row, head) pairs of a tile: at least 16 for the matrix unit. `single`: no sequence has
    more than one row."""
    wanted = group if single else min(MOST_PAIRS, rows * group)
    return max(16, triton.next_power_of_2(max(wanted, group)))


def _warps(rows: int, tile: int, single: bool) -> int:
    if tile > 64:
        return 8
    return 2 if single and rows > MANY_TEXTS else 4


def _spread(rows: int, single: bool) -> bool:
    """Whether sums stay spread over a block: where a part may be long, because one text has all
    of the device. Where texts share it, that gains nothing and takes registers."""
    return rows == 1 or not single


def workspace_for(
    rows: int, single: bool, heads: int, kv_heads: int, value_size: int
) -> tuple[int, int]:
    """Elements of `Workspace.parts` and `.weights` that a pass over so many rows needs."""
    weights = rows * heads * (parts_for(rows, heads // kv_heads, kv_heads, single) + 1)
    return weights * value_size, weights


def tree_attention(
    query: Tensor,  # [rows, heads, head size]
    keys: Tensor,  # [slots, kv heads, head size]
    values: Tensor,  # [slots, kv heads, value head size]
    inputs: RowInputs,
    work: Workspace,
    scale: float,
    options: Options = Options(),  # noqa: B008
    out: Tensor | None = None,  # [rows, heads, value head size]
) -> Tensor:
    """[rows, heads, value head size]; padding rows are not written."""
    rows, heads, size = query.shape
    kv_heads, value_size = values.shape[1], values.shape[2]
    group = heads // kv_heads
    parts = parts_for(rows, group, kv_heads, inputs.single)
    assert parts < MANY_JOINED
    tile = _tile(rows, group, inputs.single)
    spread = _spread(rows, inputs.single)
    small = {"maxnreg": FEW_REGISTERS} if spread and tile == 16 else {}  # larger ones would spill
    if out is None:
        out = torch.empty(rows, heads, value_size, dtype=query.dtype, device=query.device)
    _attend[(rows, kv_heads, parts + 1)](
        query, keys, values, inputs.packed, inputs.table, work.parts, work.weights,
        options.sinks if options.sinks is not None else query,
        scale, rows, heads, parts, inputs.table.stride(0),
        query.stride(0), query.stride(1), keys.stride(0), keys.stride(1),
        values.stride(0), values.stride(1),
        WINDOW=options.window or 0, SOFTCAP=options.softcap or 0.0,
        SINKS=options.sinks is not None, GROUP=group, SIZE=size,
        PADDED_SIZE=max(16, triton.next_power_of_2(size)), VALUE_SIZE=value_size,
        PADDED_VALUE_SIZE=max(16, triton.next_power_of_2(value_size)),
        FEWEST_KEYS=FEWEST_KEYS, TILE=tile, KEYS=KEYS, SPREAD=spread,
        num_warps=_warps(rows, tile, inputs.single), num_stages=STAGES, **small,
        **chained(query.device),
    )  # fmt: skip
    _join[(rows, heads, triton.cdiv(value_size, JOINED_SIZE))](
        work.parts, work.weights, inputs.packed, out, rows, heads, parts,
        VALUE_SIZE=value_size, FEWEST_KEYS=FEWEST_KEYS, JOINED=JOINED,
        MANY_JOINED=MANY_JOINED, SIZE=JOINED_SIZE, num_warps=2, **chained(query.device),
    )  # fmt: skip
    return out


@triton.jit
def part_keys(context, most_parts, FEWEST_KEYS: tl.constexpr):
    """Keys of the context that each part takes; the last may have fewer."""
    each = tl.cdiv(tl.cdiv(context, most_parts), FEWEST_KEYS) * FEWEST_KEYS
    return tl.maximum(each, FEWEST_KEYS)


@triton.jit
def _load_slots(line, place, end):
    """[keys]; beyond the end, the scrap slot."""
    return tl.load(line + place, mask=place < end, other=0).to(tl.int64)


@triton.jit
def load_keys(keys, slot, inside, inner, key_slot, SIZE: tl.constexpr):
    """[head size, keys]."""
    return tl.load(
        keys + slot[None, :] * key_slot + inner[:, None],
        mask=inside[None, :] & (inner[:, None] < SIZE),
        other=0.0,
    )


@triton.jit
def load_values(values, slot, inside, inner, value_slot, SIZE: tl.constexpr):
    """[keys, value head size]."""
    return tl.load(
        values + slot[:, None] * value_slot + inner[None, :],
        mask=inside[:, None] & (inner[None, :] < SIZE),
        other=0.0,
    )


@triton.jit
def in_window(position, place, WINDOW: tl.constexpr):
    """[rows, keys]: which keys at `place` the rows at `position` may look back to."""
    if WINDOW > 0:
        return position[:, None] - place[None, :].to(tl.int64) < WINDOW
    return tl.full([position.shape[0], place.shape[0]], 1, tl.int1)


@triton.jit
def _scores(q, k, seen, scale, SOFTCAP: tl.constexpr):
    """[rows, keys]."""
    scores = tl.dot(q, k, input_precision="ieee") * scale
    if SOFTCAP > 0:
        scores = SOFTCAP * _tanh(scores / SOFTCAP)
    return tl.where(seen, scores, float("-inf"))


@triton.jit
def fold(
    q, k, v, seen, scale, best, total, mixed, SOFTCAP: tl.constexpr, SPREAD: tl.constexpr = False
):  # fmt: skip
    """One more block of keys: the highest score so far, the sum of weights below it, and the sum
    of weighted values. SPREAD: a sum for each place in a block, total [rows, keys]; that leaves
    one exchange between the warps out of the loop."""
    scores = _scores(q, k, seen, scale, SOFTCAP)
    top = tl.maximum(best, tl.max(scores, 1))
    safe = tl.where(top == float("-inf"), 0.0, top)  # nothing seen yet
    weights = tl.exp(scores - safe[:, None])
    shrink = tl.exp(best - safe)
    if SPREAD:
        total = total * shrink[:, None] + weights
    else:
        total = total * shrink + tl.sum(weights, 1)
    mixed = mixed * shrink[:, None]
    mixed += tl.dot(weights.to(v.dtype), v, input_precision="ieee")
    return top, total, mixed


@triton.jit
def _fold_relative(q, k, v, seen, scale, base, total, mixed, SOFTCAP: tl.constexpr):
    """The same with weights below a score that stays as it is, so that no block waits for the one
    before it. Whether they have grown too large, `total` [rows, keys] tells."""
    weights = tl.exp(_scores(q, k, seen, scale, SOFTCAP) - base[:, None])
    mixed += tl.dot(weights.to(v.dtype), v, input_precision="ieee")
    return total + weights, mixed


@triton.jit
def fold_sink(sinks, head, real, last, best, total, mixed):
    """In the last part, one more score per head, with no value behind it."""
    sink = tl.load(sinks + head, mask=real, other=0.0).to(tl.float32)
    sink = tl.where(last, sink, float("-inf"))
    top = tl.maximum(best, sink)
    safe = tl.where(top == float("-inf"), 0.0, top)  # nothing seen yet
    shrink = tl.exp(best - safe)
    total = total * shrink + tl.exp(sink - safe)
    return top, total, mixed * shrink[:, None]


@triton.jit
def leave_part(
    part_out, part_weight, at, real, inner, best, total, mixed, VALUE_SIZE: tl.constexpr
):
    """At `at` [pairs], for those that join the parts: their mean and its weight, a logarithm."""
    seen_any = total > 0
    weight = best + tl.log(tl.where(seen_any, total, 1.0))  # -inf where nothing was seen
    tl.store(part_weight + at, weight, mask=real)
    tl.store(
        part_out + at[:, None] * VALUE_SIZE + inner[None, :],
        mixed / tl.where(seen_any, total, 1.0)[:, None],
        mask=real[:, None] & (inner[None, :] < VALUE_SIZE),
    )


# Whatever differs from one size of a pass to the next is a plain number: compiled once for all.
@triton.jit(do_not_specialize=["rows", "most_parts"])
def _attend(
    query, keys, values, packed, table, part_out, part_weight, sinks,
    scale, rows, heads, most_parts, table_stride,
    query_row, query_head, key_slot, key_head, value_slot, value_head,
    WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, SINKS: tl.constexpr,
    GROUP: tl.constexpr, SIZE: tl.constexpr, PADDED_SIZE: tl.constexpr,
    VALUE_SIZE: tl.constexpr, PADDED_VALUE_SIZE: tl.constexpr,
    FEWEST_KEYS: tl.constexpr, TILE: tl.constexpr, KEYS: tl.constexpr, SPREAD: tl.constexpr,
    CHAINED: tl.constexpr,
):  # fmt: skip
    """One part of the context of one tile, for one key head; or its rows themselves."""
    tile, kv_head, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    # Fields of `packed`, in the order of inputs.py, each [rows] int64.
    tile_rows = tl.load(packed + 8 * rows + tile)
    first = tl.load(packed + 7 * rows + tile)
    context = tl.load(packed + 4 * rows + first).to(tl.int32)
    each = part_keys(context, most_parts, FEWEST_KEYS)
    parts = tl.cdiv(context, each)  # those of the context; the rows themselves come after them
    if (tile_rows == 0) | (part > parts):
        return
    pair = tl.arange(0, TILE)
    row = first + pair // GROUP  # [TILE]
    head = kv_head * GROUP + pair % GROUP
    real = pair < tile_rows * GROUP
    position = tl.load(packed + rows + row, mask=real, other=0)
    line = table + tl.load(packed + 3 * rows + first) * table_stride
    start, end = part * each, tl.minimum(context, (part + 1) * each)
    if WINDOW > 0:  # keys that no row of the tile sees any more
        oldest = tl.min(tl.where(real, position, 1 << 30), 0).to(tl.int32) - WINDOW + 1
        start = tl.maximum(start, oldest // KEYS * KEYS)
    inner, value_inner = tl.arange(0, PADDED_SIZE), tl.arange(0, PADDED_VALUE_SIZE)
    segment = tl.load(packed + 5 * rows + first)
    node = tl.arange(0, 64)
    own = node < tl.where(part == parts, tl.load(packed + 9 * rows + first), 0)
    own_slot = tl.load(packed + 2 * rows + segment + node, mask=own, other=0)
    # The context was written by passes before this one, so its first block need not wait.
    keys += kv_head * key_head
    values += kv_head * value_head
    place = start + tl.arange(0, KEYS)
    slot = _load_slots(line, place, end)
    next_slot = _load_slots(line, place + KEYS, end)
    k = load_keys(keys, slot, place < end, inner, key_slot, SIZE)
    v = load_values(values, slot, place < end, value_inner, value_slot, VALUE_SIZE)
    if CHAINED:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    q = tl.load(
        query + row[:, None] * query_row + head[:, None] * query_head + inner[None, :],
        mask=real[:, None] & (inner[None, :] < SIZE),
        other=0.0,
    )
    best = tl.full([TILE], float("-inf"), tl.float32)
    total = tl.zeros([TILE, KEYS] if SPREAD else [TILE], tl.float32)
    mixed = tl.zeros([TILE, PADDED_VALUE_SIZE], tl.float32)
    if start < end:
        seen = in_window(position, place, WINDOW) & (place < end)[None, :]
        best, total, mixed = fold(q, k, v, seen, scale, best, total, mixed, SOFTCAP, SPREAD)
    RELATIVE: tl.constexpr = SPREAD and WINDOW == 0  # then a row has seen a key of the first block
    for _ in range(start + KEYS, end, KEYS):
        place += KEYS
        k = load_keys(keys, next_slot, place < end, inner, key_slot, SIZE)
        v = load_values(values, next_slot, place < end, value_inner, value_slot, VALUE_SIZE)
        next_slot = _load_slots(line, place + KEYS, end)  # on their way while this block is folded
        seen = in_window(position, place, WINDOW) & (place < end)[None, :]
        if RELATIVE:
            total, mixed = _fold_relative(q, k, v, seen, scale, best, total, mixed, SOFTCAP)
        else:
            best, total, mixed = fold(q, k, v, seen, scale, best, total, mixed, SOFTCAP, SPREAD)
    if SPREAD:
        total = tl.sum(total, 1)
    if RELATIVE:
        MOST: tl.constexpr = 3e4 if values.dtype.element_ty == tl.float16 else 1e26
        if tl.max(total, 0) > MOST:  # hardly ever: once more, each block below the best so far
            best = tl.full([TILE], float("-inf"), tl.float32)
            total = tl.zeros([TILE], tl.float32)
            mixed = tl.zeros([TILE, PADDED_VALUE_SIZE], tl.float32)
            for first_place in range(start, end, KEYS):
                place = first_place + tl.arange(0, KEYS)
                slot = _load_slots(line, place, end)
                k = load_keys(keys, slot, place < end, inner, key_slot, SIZE)
                v = load_values(values, slot, place < end, value_inner, value_slot, VALUE_SIZE)
                seen = (place < end)[None, :]
                best, total, mixed = fold(q, k, v, seen, scale, best, total, mixed, SOFTCAP)
    if part == parts:
        ancestors = tl.load(packed + 6 * rows + row, mask=real, other=0)
        own_k = load_keys(keys, own_slot, own, inner, key_slot, SIZE)
        own_v = load_values(values, own_slot, own, value_inner, value_slot, VALUE_SIZE)
        where = tl.load(packed + rows + segment + node, mask=own, other=0)
        own_seen = ((ancestors[:, None] >> node[None, :].to(tl.int64)) & 1) != 0
        own_seen = own_seen & own[None, :] & in_window(position, where, WINDOW)
        best, total, mixed = fold(q, own_k, own_v, own_seen, scale, best, total, mixed, SOFTCAP)

    if SINKS:
        best, total, mixed = fold_sink(sinks, head, real, part == parts, best, total, mixed)
    at = (row * heads + head) * (most_parts + 1) + part
    leave_part(part_out, part_weight, at, real, value_inner, best, total, mixed, VALUE_SIZE)


@triton.jit
def _tanh(x):
    """tl has none that the interpreter knows."""
    return 2.0 * tl.sigmoid(2.0 * x) - 1.0


@triton.jit
def joined(at, weights, used, there, VALUE_SIZE: tl.constexpr, PARTS: tl.constexpr):
    """The mean of `used` parts with these weights; at [1, size]: the first one's values."""
    part = tl.arange(0, PARTS)
    weight = tl.load(weights + part, mask=part < used, other=float("-inf"))
    value = tl.load(
        at + part[:, None] * VALUE_SIZE, mask=(part < used)[:, None] & there[None, :], other=0.0
    )
    top = tl.max(weight, 0)
    share = tl.exp(weight - tl.where(top == float("-inf"), 0.0, top))  # where nothing was seen: 0
    return tl.sum(value * share[:, None], 0) / tl.maximum(tl.sum(share, 0), 1e-30)


@triton.jit(do_not_specialize=["rows", "most_parts"])
def _join(
    part_out, part_weight, packed, out, rows, heads, most_parts,
    VALUE_SIZE: tl.constexpr, FEWEST_KEYS: tl.constexpr, JOINED: tl.constexpr,
    MANY_JOINED: tl.constexpr, SIZE: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """The parts of one row and head, for some elements of the value."""
    row, head = tl.program_id(0), tl.program_id(1)
    context = tl.load(packed + 4 * rows + row).to(tl.int32)
    visible = tl.load(packed + 6 * rows + row)  # a padding row does not even see itself
    used = tl.cdiv(context, part_keys(context, most_parts, FEWEST_KEYS)) + 1
    used = tl.where(visible != 0, used, 0)
    inner = tl.program_id(2) * SIZE + tl.arange(0, SIZE)
    here = (row * heads + head) * (most_parts + 1)
    if CHAINED:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    inner_there = inner < VALUE_SIZE
    at = part_out + here * VALUE_SIZE + inner[None, :]
    if used <= JOINED:
        mean = joined(at, part_weight + here, used, inner_there, VALUE_SIZE, JOINED)
    else:
        mean = joined(at, part_weight + here, used, inner_there, VALUE_SIZE, MANY_JOINED)
    to = out + (row * heads + head) * VALUE_SIZE + inner
    tl.store(to, mean.to(out.dtype.element_ty), mask=inner < VALUE_SIZE)
