"""Attention whose bits depend on nothing but the text before a row.

Each row attends on its own to the places of its path, from the first token of the text to itself.
The path is cut into parts by its length alone, and a part into blocks, always from place 0 on; so
neither the other rows of the pass show in the sums, nor which places of the path were written by
passes before and which are rows of this one. Rows of a text read its keys once each, mostly out of
the device's cache, where tree_attention.py reads them once for all: that is the price.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from outrider.model.cuda.chain import chained
from outrider.model.cuda.inputs import TREE_BITS, RowInputs
from outrider.model.cuda.tree_attention import (
    JOINED_SIZE,
    Options,
    fold,
    fold_sink,
    in_window,
    joined,
    leave_part,
    load_keys,
    load_values,
    part_keys,
)
from outrider.model.cuda.workspace import Workspace

# All of these decide bits: one number each, whatever the pass.
KEYS = 32  # per block
FEWEST_KEYS = 64  # per part
PARTS = 64  # of a path at most
WARPS = 4
# This one does not: programs that share a pass's parts, four for each multiprocessor.
PROGRAMS = 528


def workspace_for(rows: int, heads: int, value_size: int) -> tuple[int, int]:
    """Elements of `Workspace.parts` and `.weights` that a pass over so many rows needs."""
    weights = rows * heads * PARTS
    return weights * value_size, weights


def invariant_attention(
    query: Tensor,  # [rows, heads, head size]
    keys: Tensor,  # [slots, kv heads, head size]
    values: Tensor,  # [slots, kv heads, value head size]
    inputs: RowInputs,
    work: Workspace,
    scale: float,
    options: Options = Options(),  # noqa: B008
) -> Tensor:
    """[rows, heads, value head size]; zeros for padding rows."""
    rows, heads, size = query.shape
    kv_heads, value_size = values.shape[1], values.shape[2]
    group = heads // kv_heads
    programs = min(PARTS, triton.cdiv(PROGRAMS, rows * kv_heads))
    out = torch.empty(rows, heads, value_size, dtype=query.dtype, device=query.device)
    _attend_path[(rows, kv_heads, programs)](
        query, keys, values, inputs.packed, inputs.table, work.parts, work.weights,
        options.sinks if options.sinks is not None else query,
        scale, rows, heads, inputs.table.stride(0),
        query.stride(0), query.stride(1), keys.stride(0), keys.stride(1),
        values.stride(0), values.stride(1),
        WINDOW=options.window or 0, SOFTCAP=options.softcap or 0.0,
        SINKS=options.sinks is not None, GROUP=group, SIZE=size,
        PADDED_SIZE=max(16, triton.next_power_of_2(size)), VALUE_SIZE=value_size,
        PADDED_VALUE_SIZE=max(16, triton.next_power_of_2(value_size)),
        FEWEST_KEYS=FEWEST_KEYS, MOST_PARTS=PARTS, NODES=TREE_BITS,
        TILE=max(16, triton.next_power_of_2(group)), KEYS=KEYS, num_warps=WARPS,
        **chained(query.device),
    )  # fmt: skip
    _join_path[(rows, heads, triton.cdiv(value_size, JOINED_SIZE))](
        work.parts, work.weights, inputs.packed, out, rows, heads,
        WINDOW=options.window or 0, VALUE_SIZE=value_size, FEWEST_KEYS=FEWEST_KEYS,
        MOST_PARTS=PARTS, SIZE=JOINED_SIZE, num_warps=2, **chained(query.device),
    )  # fmt: skip
    return out


@triton.jit
def _parts_of(
    packed, row, rows, WINDOW: tl.constexpr, FEWEST_KEYS: tl.constexpr, MOST_PARTS: tl.constexpr
):
    """Of a row's path: the places of a part, the first part that is in the window, and behind the
    last. A padding row, which does not even see itself, has none."""
    position = tl.load(packed + rows + row).to(tl.int32)
    visible = tl.load(packed + 6 * rows + row)
    each = part_keys(position + 1, MOST_PARTS, FEWEST_KEYS)
    first = position * 0
    if WINDOW > 0:
        first = tl.maximum(position - WINDOW + 1, 0) // each
    return each, first, tl.where(visible != 0, tl.cdiv(position + 1, each), 0)


@triton.jit
def _slots_at(line, place, end, context, own_slot, own_place, KEYS: tl.constexpr):
    """[KEYS]: where the path's keys lie. Below `context` the table tells; from there on it is the
    one row of this pass that is on the path [nodes] and has that place."""
    slot = tl.load(line + place, mask=place < tl.minimum(context, end), other=0).to(tl.int64)
    if tl.max(place, 0) >= context:
        there = own_place[None, :] == place[:, None]  # [KEYS, nodes]
        slot += tl.sum(tl.where(there, own_slot[None, :], 0), 1)
    return slot


@triton.jit(do_not_specialize=["rows"])
def _attend_path(
    query, keys, values, packed, table, part_out, part_weight, sinks,
    scale, rows, heads, table_stride,
    query_row, query_head, key_slot, key_head, value_slot, value_head,
    WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, SINKS: tl.constexpr,
    GROUP: tl.constexpr, SIZE: tl.constexpr, PADDED_SIZE: tl.constexpr,
    VALUE_SIZE: tl.constexpr, PADDED_VALUE_SIZE: tl.constexpr,
    FEWEST_KEYS: tl.constexpr, MOST_PARTS: tl.constexpr, NODES: tl.constexpr,
    TILE: tl.constexpr, KEYS: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """Every so-manieth part of one row's path, for one key head."""
    row, kv_head = tl.program_id(0), tl.program_id(1)
    each, first, parts = _parts_of(packed, row, rows, WINDOW, FEWEST_KEYS, MOST_PARTS)
    first += tl.program_id(2)
    if first >= parts:
        if CHAINED:  # where all rows are padding, nobody else would wait: order would be lost
            tl.extra.cuda.gdc_wait()
        return
    # Fields of `packed`, in the order of inputs.py, each [rows] int64.
    position = tl.load(packed + rows + row).to(tl.int32)
    line = table + tl.load(packed + 3 * rows + row) * table_stride
    context = tl.load(packed + 4 * rows + row).to(tl.int32)
    segment = tl.load(packed + 5 * rows + row)
    node = tl.arange(0, NODES)
    on_path = ((tl.load(packed + 6 * rows + row) >> node.to(tl.int64)) & 1) != 0
    on_path = on_path & (node < tl.load(packed + 9 * rows + row))
    own_slot = tl.load(packed + 2 * rows + segment + node, mask=on_path, other=0)
    own_place = tl.load(packed + rows + segment + node, mask=on_path, other=-1).to(tl.int32)

    pair = tl.arange(0, TILE)
    head = kv_head * GROUP + pair
    real = pair < GROUP
    inner, value_inner = tl.arange(0, PADDED_SIZE), tl.arange(0, PADDED_VALUE_SIZE)
    keys += kv_head * key_head
    values += kv_head * value_head
    at_position = position + tl.zeros([TILE], tl.int64)
    if CHAINED:  # not even the path's keys are sure before: the last ones are just being written
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    q = tl.load(
        query + row * query_row + head[:, None] * query_head + inner[None, :],
        mask=real[:, None] & (inner[None, :] < SIZE),
        other=0.0,
    )
    for part in range(first, parts, tl.num_programs(2)):
        start, end = part * each, tl.minimum(position + 1, (part + 1) * each)
        if WINDOW > 0:  # blocks that the row does not see any more
            start = tl.maximum(start, (position - WINDOW + 1) // KEYS * KEYS)
        best = tl.full([TILE], float("-inf"), tl.float32)
        total = tl.zeros([TILE], tl.float32)
        mixed = tl.zeros([TILE, PADDED_VALUE_SIZE], tl.float32)
        next_slot = _slots_at(
            line, start + tl.arange(0, KEYS), end, context, own_slot, own_place, KEYS
        )
        for block in range(start, end, KEYS):
            place = block + tl.arange(0, KEYS)
            k = load_keys(keys, next_slot, place < end, inner, key_slot, SIZE)
            v = load_values(values, next_slot, place < end, value_inner, value_slot, VALUE_SIZE)
            next_slot = _slots_at(line, place + KEYS, end, context, own_slot, own_place, KEYS)
            seen = in_window(at_position, place, WINDOW) & (place < end)[None, :]
            best, total, mixed = fold(q, k, v, seen, scale, best, total, mixed, SOFTCAP)
        if SINKS:
            last = part == parts - 1
            best, total, mixed = fold_sink(sinks, head, real, last, best, total, mixed)
        at = (row * heads + head) * MOST_PARTS + part
        leave_part(part_out, part_weight, at, real, value_inner, best, total, mixed, VALUE_SIZE)


@triton.jit(do_not_specialize=["rows"])
def _join_path(
    part_out, part_weight, packed, out, rows, heads,
    WINDOW: tl.constexpr, VALUE_SIZE: tl.constexpr, FEWEST_KEYS: tl.constexpr,
    MOST_PARTS: tl.constexpr, SIZE: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """The parts of one row and head, for some elements of the value."""
    row, head = tl.program_id(0), tl.program_id(1)
    _, first, parts = _parts_of(packed, row, rows, WINDOW, FEWEST_KEYS, MOST_PARTS)
    inner = tl.program_id(2) * SIZE + tl.arange(0, SIZE)
    if CHAINED:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    there = inner < VALUE_SIZE
    here = (row * heads + head) * MOST_PARTS + first
    at = part_out + here * VALUE_SIZE + inner[None, :]
    mean = joined(at, part_weight + here, parts - first, there, VALUE_SIZE, MOST_PARTS)
    to = out + (row * heads + head) * VALUE_SIZE + inner
    tl.store(to, mean.to(out.dtype.element_ty), mask=there)
