"""Decoder layers of known families as a handful of kernels each.

The weights are the module's own: its parameters become views of the fused tensors, so nothing is
stored twice and the unfused module stays in working order, as reference and for passes
that skip layers.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import sdpa_kernel
from torch.nn.functional import rms_norm

from outrider.model.attention import (
    BACKENDS,
    Asked,
    Kernel,
    LayerCall,
    LayerKV,
    attend_whole,
    knows_causal,
)
from outrider.model.cuda.inputs import SLOT, RowInputs
from outrider.model.cuda.invariant_attention import invariant_attention
from outrider.model.cuda.linear import MOST_ROWS, Norm, Stream, from_stream, into_stream
from outrider.model.cuda.linear import workspace_for as product_parts
from outrider.model.cuda.projection import can_project, project
from outrider.model.cuda.row_kernels import embed, rotate_and_store
from outrider.model.cuda.tree_attention import Options, tree_attention
from outrider.model.cuda.workspace import Workspace
from outrider.model.families import FUSED
from outrider.model.features import Taps
from outrider.model.loading import LoadedModel
from outrider.model.quantized import is_plain

DTYPES = (torch.bfloat16, torch.float32)  # in float16 a norm's weight could overflow a product


@dataclass(eq=False)
class Layer:
    """The weights of one: a target's, or those of a head with such layers."""

    qkv: Tensor  # [(heads + 2 kv heads) * size, width, or twice that in EAGLE-3's first layer]
    qkv_bias: Tensor | None
    out: Tensor  # [width, heads * size]
    out_bias: Tensor | None
    gate_up: Tensor  # [2 * inner, width]
    down: Tensor  # [width, inner]
    before_attention: Norm
    before_mlp: Norm
    head_norms: tuple[Tensor, Tensor, float] | None


class FusedModel:
    """Runs the rows of a pass; its KV are the buffers of the module."""

    def __init__(
        self,
        loaded: LoadedModel,
        calls: list[LayerCall],
        positions: int,
        taps: Taps,
        invariant: bool = False,
    ) -> None:
        self._taps = taps
        self.invariant = invariant  # a row's bits do not depend on the other rows of its pass
        model: Any = loaded.model
        self.embedding: Tensor = model.model.embed_tokens.weight
        self.head: Tensor = model.lm_head.weight
        self.last_norm = fused_norm(model.model.norm)
        self.layers = [fused_layer(layer) for layer in model.model.layers]
        self._calls = calls
        self._next_norms = [*(layer.before_attention for layer in self.layers[1:]), self.last_norm]
        self.cos, self.sin = _rotation(model, positions, loaded)
        self.head_size = self.cos.shape[1]

    @property
    def most_parts(self) -> int:
        """Elements of `Workspace.parts` that the products need."""
        widest = max(w.shape[0] for layer in self.layers for w in (layer.qkv, layer.out))
        return product_parts(widest)

    def __call__(self, inputs: RowInputs, previous: Tensor, work: Workspace) -> Tensor:
        """[rows, vocabulary]; `previous` [most rows] int64: the choices of the pass before."""

        def attend(query: Tensor, memory: LayerKV, scale: float, asked: Asked) -> Tensor:
            kernel = invariant_attention if self.invariant else tree_attention
            keys, values, options = memory.keys, memory.values, Options(*asked)
            return kernel(query, keys, values, inputs, work, scale, options)

        stream = self._run(inputs, previous, work, attend)
        return from_stream(stream, self.last_norm, work, self.head)

    @sdpa_kernel(BACKENDS)
    def long_pass(
        self, inputs: RowInputs, attend: Kernel, wanted: Tensor, work: Workspace
    ) -> Tensor:
        """[wanted rows, vocabulary] of a pass over many rows, kernel by kernel. wanted [n]
        int64."""
        nothing = wanted[:0]
        stream = self._run(inputs, nothing, work, attend)
        if not len(wanted):  # a part of a prompt that goes on
            return stream.hidden.new_empty(0, self.head.shape[0])
        last = Stream.starting(stream.hidden[wanted], self.last_norm)
        return from_stream(last, self.last_norm, work, self.head)

    @property
    def plainly_causal(self) -> bool:
        """Whether `read_text` can do what the layers ask for."""
        asked = {(call.window, call.softcap) for call in self._calls}
        size = self._calls[0].head_size
        query = self.embedding.new_empty(0, 1, size)
        return asked == {(None, None)} and knows_causal(query, self._calls[0].value_head_size)

    @sdpa_kernel(BACKENDS)
    def read_text(self, inputs: RowInputs, keys: Tensor, last: Tensor, work: Workspace) -> Tensor:
        """[1, vocabulary] after row `last` [1] of a text from its start; keys [rows]: the slots of
        its places, those of the rows among them."""

        def attend(query: Tensor, memory: LayerKV, scale: float, asked: Asked) -> Tensor:
            return attend_whole(query, memory, keys, scale)

        stream = self._run(inputs, last[:0], work, attend)
        end = Stream.starting(stream.hidden.index_select(0, last), self.last_norm)
        return from_stream(end, self.last_norm, work, self.head)

    def _run(self, inputs: RowInputs, previous: Tensor, work: Workspace, attend: Kernel) -> Stream:
        stream = Stream.like(self.embedding, inputs.rows, MOST_ROWS if self.invariant else 0)
        embed(inputs, self.embedding, previous, stream, self.layers[0].before_attention)
        each = zip(self.layers, self._calls, self._next_norms, strict=True)
        slots = inputs.field(SLOT)
        for index, (layer, call, next_norm) in enumerate(each):
            self._taps.see(index, stream.hidden, slots)
            attention: Any = call.module
            memory: LayerKV = attention.outrider_kv
            query = self._project(layer, stream, memory, inputs, work)
            mixed = attend(query, memory, attention.scaling, (call.window, call.softcap, None))
            into_stream(mixed.flatten(1), layer.out, layer.out_bias, stream, layer.before_mlp, work)
            inner = from_stream(stream, layer.before_mlp, work, layer.gate_up, gated=True)
            into_stream(inner, layer.down, None, stream, next_norm, work)
        if "final" in self._taps.wanted:
            norm = self.last_norm
            self._taps.see("final", rms_norm(stream.hidden, norm.weight.shape, *norm), slots)
        return stream

    def _project(
        self, layer: Layer, stream: Stream, memory: LayerKV, inputs: RowInputs, work: Workspace
    ) -> Tensor:
        """Queries [rows, heads, size]; keys and values go to their slots."""
        norm, slots = layer.before_attention, (memory.keys, memory.values, inputs)
        whole = layer.head_norms is None
        if whole and can_project(layer.qkv, self.head_size, stream.shaped_for):
            return project(
                stream, norm, work, layer.qkv, layer.qkv_bias, self.cos, self.sin, *slots
            )
        qkv = from_stream(stream, norm, work, layer.qkv, layer.qkv_bias)
        return rotate_and_store(qkv, self.cos, self.sin, *slots, layer.head_norms)


def unfused_because(loaded: LoadedModel) -> str | None:
    """Why the layers cannot be fused, in words; None where they can: the family is known and its
    weights are plain tensors of a kind the kernels take."""
    model: Any = loaded.model
    config = model.config
    if config.model_type not in FUSED:
        return f"no kernels for {config.model_type}"
    if loaded.quantization is not None:
        return f"its weights are quantised ({loaded.quantization})"
    if loaded.dtype not in DTYPES:
        return f"no kernels for {loaded.dtype}"
    linears = [m for m in model.modules() if isinstance(m, nn.Linear)]
    if not all(
        type(m) is nn.Linear
        and is_plain(m)
        and m.weight.dtype == loaded.dtype
        and m.weight.is_contiguous()
        for m in linears
    ):
        return "its weights are not plain tensors of one kind"
    if getattr(config, "hidden_act", None) != "silu":
        return f"no kernels for its activation ({getattr(config, 'hidden_act', None)})"
    if getattr(config, "mlp_bias", False) or model.lm_head.bias is not None:
        return "its products have biases that the kernels do not know"
    return None


def fused_norm(module: Any) -> Norm:
    return Norm(module.weight.data, module.variance_epsilon)


def fused_layer(layer: Any) -> Layer:
    """Of a layer with Llama's names."""
    attention, mlp = layer.self_attn, layer.mlp
    projections = [attention.q_proj, attention.k_proj, attention.v_proj]
    biased = attention.q_proj.bias is not None
    head_norms = None
    if hasattr(getattr(attention, "q_norm", None), "weight"):
        queries, keys = attention.q_norm, attention.k_norm
        head_norms = (queries.weight.data, keys.weight.data, queries.variance_epsilon)
    return Layer(
        qkv=fuse([p.weight for p in projections]),
        qkv_bias=fuse([p.bias for p in projections]) if biased else None,
        out=attention.o_proj.weight.data,
        out_bias=None if attention.o_proj.bias is None else attention.o_proj.bias.data,
        gate_up=fuse([mlp.gate_proj.weight, mlp.up_proj.weight]),
        down=mlp.down_proj.weight.data,
        before_attention=fused_norm(layer.input_layernorm),
        before_mlp=fused_norm(layer.post_attention_layernorm),
        head_norms=head_norms,
    )


def fuse(parameters: list[nn.Parameter]) -> Tensor:
    """One tensor out of several [n, ...]; they become views of it."""
    whole = torch.cat([p.data for p in parameters])
    first = 0
    for parameter in parameters:
        size = parameter.shape[0]
        parameter.data = whole[first : first + size]
        first += size
    return whole


def _rotation(model: Any, positions: int, loaded: LoadedModel) -> tuple[Tensor, Tensor]:
    """cos and sin of every position, [positions, size] each, as the module itself makes them."""
    like = torch.empty(1, 1, dtype=loaded.dtype, device=loaded.device)
    every = torch.arange(positions, device=loaded.device)[None]
    cos, sin = model.model.rotary_emb(like, every)
    return cos[0].contiguous(), sin[0].contiguous()
