"""Attention over slots, registered under one name for every unforked Hugging Face module.

The step's metadata does not travel through the modules' keyword arguments (some families drop
them) but in a context that the runner opens around the call.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

from outrider.model.segment import Group

# Of torch's attention. Not cuDNN's: it prepares every new shape for milliseconds, and texts are of
# any length.
BACKENDS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]

NAME = "outrider"
CHUNK = 128  # keys per block of the shape-invariant attention


@dataclass(eq=False)
class LayerKV:
    """One layer's memory, held by its attention module."""

    keys: Tensor  # [slots, kv heads, head size]
    values: Tensor  # [slots, kv heads, value head size]


@dataclass(eq=False)
class LayerCall:
    """What an attention module asked for; recorded once, at load."""

    module: nn.Module
    heads: int
    kv_heads: int
    head_size: int
    value_head_size: int
    window: int | None
    softcap: float | None


Asked = tuple[int | None, float | None, Tensor | None]  # window, softcap, sinks [heads]
# (query [rows, heads, head size], memory, scale, asked) -> [rows, heads, value head size], once the
# new rows' KV are written
Kernel = Callable[[Tensor, LayerKV, float, Asked], Tensor]


@dataclass(eq=False)
class Pass:
    """What the attention of one forward pass needs to know."""

    write_slots: Tensor  # [rows]
    groups: list[Group]
    invariant: bool = False  # results must not depend on the shapes of other rows
    recorded: list[LayerCall] | None = field(default=None)  # a pass that only looks at shapes
    kernel: Kernel | None = None  # attends instead of the code here
    queries: int | None = None  # rows that attend, where others are only written; None: all do

    def attend(self, query: Tensor, memory: LayerKV, scale: float, asked: Asked) -> Tensor:
        """query [rows, heads, head size] -> [rows, heads, value head size]."""
        _, softcap, sinks = asked
        attend = _attend_invariant if self.invariant else _attend
        # Heads that share a KV head become further queries of it: no expanded copy of the keys.
        times = 1 if self.invariant else query.shape[1] // memory.keys.shape[1]
        plain = not self.invariant and asked == (None, None, None)
        plain = plain and knows_causal(query, memory.values.shape[2])
        each = query if self._in_order else query.index_select(0, self._taken)
        mixed, first = [], 0
        for group in self.groups:
            end = first + group.rows.numel()
            q = each[first:end]  # [parts * queries, heads, head size]
            if plain and group.visible is None:
                mixed.append(attend_whole(q, memory, group.slots[0], scale))
            else:
                q, mask = q.unflatten(0, group.rows.shape), self._mask(group, times, asked, q)
                result = attend(q, memory, group.slots, mask, scale, softcap, sinks)
                mixed.append(result.flatten(0, 1))
            first = end
        out = mixed[0] if len(mixed) == 1 else torch.cat(mixed)
        return out if self._in_order else out.index_select(0, self._back)

    def _mask(self, group: Group, times: int, asked: Asked, query: Tensor) -> Tensor:
        """[parts, times * queries, keys]: of truth values, or what is added to scores where torch's
        own kernel attends on a CPU."""
        window, softcap, sinks = asked
        if self.invariant or softcap is not None or sinks is not None or query.is_cuda:
            return group.mask(window, times)
        return group.added(window, times, query.dtype)

    @cached_property
    def _in_order(self) -> bool:
        """A single group's rows are those of the pass, in that order, and there are no others."""
        if len(self.groups) > 1 or self.groups[0].padded:
            return False
        return self.groups[0].rows.numel() == self._count

    @cached_property
    def _count(self) -> int:
        """Of rows that attend."""
        return len(self.write_slots) if self.queries is None else self.queries

    @cached_property
    def _taken(self) -> Tensor:
        """The rows of all groups, one after the other, with their padding: [padded rows]."""
        return torch.cat([group.rows.flatten() for group in self.groups])

    @cached_property
    def _back(self) -> Tensor:
        """Where among those each row that attends is: [rows]; those of nobody are the first."""
        device = self.write_slots.device
        back, first = torch.zeros(self._count, dtype=torch.int64, device=device), 0
        for group in self.groups:
            back[group.real_rows] = first + group.real
            first += group.rows.numel()
        return back


# Per thread: engines in several threads must not see each other's pass.
_current: ContextVar[Pass | None] = ContextVar("pass", default=None)


def current_pass() -> Pass | None:
    return _current.get()


@contextmanager
def attending(step: Pass) -> Iterator[None]:
    if _current.get() is not None:
        raise RuntimeError("a forward pass is already under way; passes do not nest")
    token = _current.set(step)
    try:
        yield
    finally:
        _current.reset(token)


def outrider_attention(
    module: nn.Module,
    query: Tensor,  # [1, heads, rows, head size]
    key: Tensor,  # [1, kv heads, rows, head size]
    value: Tensor,  # [1, kv heads, rows, value head size]
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,  # [heads] attention sinks
    **_: Any,
) -> tuple[Tensor, None]:
    """Write the new rows' KV, attend, and return [1, rows, heads, value head size]."""
    step = _current.get()
    if step is None:
        raise RuntimeError("this model is bound to Outrider's runner and cannot be called directly")
    rows, heads = query.shape[2], query.shape[1]
    if step.recorded is not None:
        step.recorded.append(
            LayerCall(
                module, heads, key.shape[1], key.shape[3], value.shape[3], sliding_window, softcap
            )
        )
        return query.new_zeros(1, rows, heads, value.shape[3]), None
    memory: LayerKV = module.outrider_kv  # type: ignore[assignment]
    memory.keys.index_copy_(0, step.write_slots, key[0].transpose(0, 1))
    memory.values.index_copy_(0, step.write_slots, value[0].transpose(0, 1))
    scale = query.shape[3] ** -0.5 if scaling is None else scaling
    attend = step.kernel or step.attend
    asked = (sliding_window, softcap, s_aux)
    return attend(query[0].transpose(0, 1), memory, scale, asked).unsqueeze(0), None


def _fold_heads(q: Tensor, kv_heads: int) -> Tensor:
    """[s, queries, heads, d] -> [s, kv heads, group * queries, d]."""
    s, queries, heads, d = q.shape
    folded = q.view(s, queries, kv_heads, heads // kv_heads, d).permute(0, 2, 3, 1, 4)
    return folded.reshape(s, kv_heads, -1, d)


def _unfold_heads(out: Tensor, queries: int) -> Tensor:
    """[s, kv heads, group * queries, d] -> [s, queries, heads, d]."""
    s, kv_heads, _, d = out.shape
    return out.view(s, kv_heads, -1, queries, d).permute(0, 3, 1, 2, 4).reshape(s, queries, -1, d)


def _attend(
    q: Tensor,  # [s, queries, heads, head size]
    memory: LayerKV,
    slots: Tensor,  # [s, keys]
    mask: Tensor,  # [s, group * queries, keys], of truth values or to be added
    scale: float,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """[s, queries, heads, value head size]."""
    kv_heads, queries = memory.keys.shape[1], q.shape[1]
    k = _gather(memory.keys, slots)  # [s, kv heads, keys, head size]
    v = _gather(memory.values, slots)
    folded = _fold_heads(q, kv_heads)
    mask = mask[:, None]  # for all KV heads
    if softcap is None and sinks is None:
        out = scaled_dot_product_attention(folded, k, v, attn_mask=mask, scale=scale)
        return _unfold_heads(out, queries)
    scores = (folded @ k.transpose(2, 3)).float() * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores.masked_fill(~mask, -math.inf)
    top = scores.amax(-1, keepdim=True)
    if sinks is not None:  # a sink is one more score per head, with no value behind it
        sink = _sink_column(sinks, kv_heads, queries)
        top = torch.maximum(top, sink)
    weights = torch.exp(scores - top)
    total = weights.sum(-1, keepdim=True)
    if sinks is not None:
        total = total + torch.exp(sink - top)
    return _unfold_heads((weights / total).to(v.dtype) @ v, queries)


def knows_causal(query: Tensor, value_size: int) -> bool:
    """Whether torch has a quick kernel for texts without a mask, with fewer KV heads than heads: on
    a GPU that is flash attention alone. query [rows, heads, head size]."""
    if query.device.type == "cpu":
        return True
    size = query.shape[2]
    return (
        query.dtype in (torch.float16, torch.bfloat16)
        and value_size == size <= 256
        and torch.cuda.get_device_capability(query.device) >= (8, 0)
    )


def attend_whole(query: Tensor, memory: LayerKV, slots: Tensor, scale: float) -> Tensor:
    """A text from its start: query [rows, heads, head size], slots [rows] -> [rows, heads, value
    head size]."""
    keys, values = memory.keys.index_select(0, slots), memory.values.index_select(0, slots)
    q, k, v = (each.transpose(0, 1)[None] for each in (query, keys, values))
    mixed = scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=True)
    return mixed[0].transpose(0, 1)


def _gather(buffer: Tensor, slots: Tensor) -> Tensor:
    """[slots, kv heads, d] at [s, keys] -> [s, kv heads, keys, d]."""
    rows = buffer.index_select(0, slots.flatten())  # whole rows: much faster than indexing
    return rows.view(*slots.shape, *buffer.shape[1:]).transpose(1, 2)


def _sink_column(sinks: Tensor, kv_heads: int, queries: int) -> Tensor:
    """[heads] -> [1, kv heads, group * queries, 1], in the order of the folded heads."""
    return sinks.float().view(1, kv_heads, -1, 1).repeat_interleave(queries, dim=2)


def _attend_invariant(
    q: Tensor,  # [rows, 1, heads, head size]: every row is a sequence of its own
    memory: LayerKV,
    slots: Tensor,  # [rows, keys], keys a multiple of CHUNK
    mask: Tensor,  # [rows, 1, keys]
    scale: float,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """Attention by blocks of fixed shape, in fixed order: no result depends on other rows.

    Masked keys add exact zeros, so neither the padding nor the longest row of the pass shows.
    """
    kv_heads = memory.keys.shape[1]
    folded = _fold_heads(q, kv_heads).float()  # [rows, kv heads, group, head size]
    blocks = [slice(start, start + CHUNK) for start in range(0, slots.shape[1], CHUNK)]
    scores = []
    top = torch.full((*folded.shape[:3], 1), -math.inf, device=q.device)
    if sinks is not None:
        sink = _sink_column(sinks, kv_heads, 1).expand_as(top)
        top = sink
    for block in blocks:
        k = _gather(memory.keys, slots[:, block]).float()  # [rows, kv heads, CHUNK, d]
        block_scores = (folded @ k.transpose(2, 3)) * scale
        if softcap is not None:
            block_scores = softcap * torch.tanh(block_scores / softcap)
        block_scores = block_scores.masked_fill(~mask[:, None, :, block], -math.inf)
        top = torch.maximum(top, block_scores.amax(-1, keepdim=True))
        scores.append(block_scores)
    total = torch.zeros_like(top) if sinks is None else torch.exp(sink - top)
    out = torch.zeros(*folded.shape[:3], memory.values.shape[2], device=q.device)
    for block, block_scores in zip(blocks, scores, strict=True):
        weights = torch.exp(block_scores - top)
        v = _gather(memory.values, slots[:, block]).float()
        total = total + weights.sum(-1, keepdim=True)
        out = out + weights @ v
    return _unfold_heads((out / total).to(q.dtype), 1)


def _no_mask(*_: Any, **__: Any) -> None:
    """The visible keys are in the pass's groups; the modules need no mask."""


AttentionInterface.register(NAME, outrider_attention)
AttentionMaskInterface.register(NAME, _no_mask)
