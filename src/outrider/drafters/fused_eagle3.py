"""EAGLE-3's passes over few rows as a dozen kernels, by those of the target's fused layers.

The weights are the head's own: its parameters become views of the fused tensors.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import sdpa_kernel

from outrider.heads.eagle3 import Eagle3
from outrider.model.attention import BACKENDS, LayerKV, attend_whole
from outrider.model.cuda.feature_rows import join_features
from outrider.model.cuda.fused import DTYPES, fused_layer, fused_norm
from outrider.model.cuda.inputs import RowInputs
from outrider.model.cuda.linear import (
    Stream,
    from_stream,
    into_stream,
    product,
    square_parts,
)
from outrider.model.cuda.row_kernels import rotate_and_store
from outrider.model.cuda.tree_attention import tree_attention
from outrider.model.cuda.workspace import Workspace


class FusedEagle3:
    def __init__(self, head: Eagle3, memories: list[LayerKV], positions: int) -> None:
        assert head.embed_tokens is not None and head.lm_head is not None
        self._embedding, self._output = head.embed_tokens.weight.data, head.lm_head.weight.data
        first: Any = head.layers[0]
        self._feature_norm = fused_norm(first.hidden_norm)
        self._residual_is_normed = head.options.norm_before_residual
        self._layers = [fused_layer(layer) for layer in head.layers]
        self._memories = memories
        self._scale = first.self_attn.size**-0.5
        self._last_norm = fused_norm(head.norm)
        every = torch.arange(positions, device=self._embedding.device)
        cos, sin = head.rotary(self._output[:1], every)  # [positions, size] each
        self._cos, self._sin = cos.contiguous(), sin.contiguous()

    def run(self, features: Tensor, inputs: RowInputs, work: Workspace) -> Stream:
        """features [rows, width] become the head's states, in the stream that is returned."""

        def attend(query: Tensor, memory: LayerKV) -> Tensor:
            return tree_attention(query, memory.keys, memory.values, inputs, work, self._scale)

        return self._run(features, inputs, work, attend)

    @sdpa_kernel(BACKENDS)
    def read_text(self, features: Tensor, inputs: RowInputs, keys: Tensor, work: Workspace) -> None:
        """The same of a text from its start, for what it leaves in the slots; keys [rows]: those of
        all its places."""

        def attend(query: Tensor, memory: LayerKV) -> Tensor:
            return attend_whole(query, memory, keys, self._scale)

        self._run(features, inputs, work, attend)

    def _run(
        self,
        features: Tensor,
        inputs: RowInputs,
        work: Workspace,
        attend: Callable[[Tensor, LayerKV], Tensor],
    ) -> Stream:
        residual = features if self._residual_is_normed else None
        norms = (self._layers[0].before_attention, self._feature_norm)
        both = join_features(inputs, self._embedding, features, *norms, residual)
        stream = _stream_of(features)
        after = [layer.before_attention for layer in self._layers[1:]] + [self._last_norm]
        each = zip(self._layers, self._memories, after, strict=True)
        for index, (layer, memory, next_norm) in enumerate(each):
            if index == 0:
                qkv = product(both, layer.qkv, layer.qkv_bias, work)
            else:
                norm = layer.before_attention
                qkv = from_stream(stream, norm, work, layer.qkv, layer.qkv_bias)
            slots = (memory.keys, memory.values)
            rotation = (self._cos, self._sin)
            query = rotate_and_store(qkv, *rotation, *slots, inputs, layer.head_norms)
            mixed = attend(query, memory)
            into_stream(mixed.flatten(1), layer.out, layer.out_bias, stream, layer.before_mlp, work)
            inner = from_stream(stream, layer.before_mlp, work, layer.gate_up, gated=True)
            into_stream(inner, layer.down, None, stream, next_norm, work)
        return stream

    def starting(self, states: Tensor) -> Stream:
        """For `logits`, from states [rows, width] alone."""
        return Stream.starting(states, self._last_norm)

    def logits(self, stream: Stream, work: Workspace) -> Tensor:
        """[rows, draft vocabulary]."""
        return from_stream(stream, self._last_norm, work, self._output)


def unfused_because(head: Any, dtype: torch.dtype) -> str | None:
    """Why a head's layers cannot be fused, in words; None where they can."""
    if not isinstance(head, Eagle3):
        return "no kernels for its kind"
    if head.options.norm_output:
        return "its states are normed once more"
    if dtype not in DTYPES:
        return f"no kernels for {dtype}"
    assert head.embed_tokens is not None and head.lm_head is not None
    weights = [m.weight for m in head.modules() if isinstance(m, (nn.Linear, nn.Embedding))]
    if not all(weight.dtype == dtype and weight.is_contiguous() for weight in weights):
        return "its weights are not of one kind"
    if head.config.hidden_act != "silu" or getattr(head.config, "mlp_bias", False):
        return "its MLP is of another kind"
    return None


def _stream_of(hidden: Tensor) -> Stream:
    """Around hidden [rows, width], which the layers add to; the rest is theirs to fill."""
    rows, width = hidden.shape
    squares = torch.empty(rows, square_parts(width, rows), device=hidden.device)
    return Stream(hidden, torch.empty_like(hidden), squares)
