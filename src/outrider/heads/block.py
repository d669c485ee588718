"""The transformer parts that trained drafters share. Parameters are named as in Llama's layers.

A layer does not know how attention is done: whoever runs it gives a function. A trainer attends
over whole texts, a drafter over what lies in the target's KV slots.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import rms_norm
from transformers.activations import ACT2FN
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

# (layer, query [..., rows, heads, size], key and value [..., rows, kv heads, size]) ->
# [..., rows, heads, size]
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
Rotation = tuple[Tensor, Tensor]  # cos and sin, [..., rows, size] each


def taken(x: Tensor, wanted: Tensor | None) -> Tensor:
    """Of x [..., rows, size] the `wanted` rows [n]; None: all of them."""
    return x if wanted is None else x.index_select(-2, wanted)


class RmsNorm(nn.Module):
    """One kernel on a GPU, where Llama's own module takes six: a draft is a row of small ones."""

    def __init__(self, width: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.variance_epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        """[..., width] -> the same."""
        weight = self.weight.to(x.dtype)  # which a trainer keeps in more precision
        return rms_norm(x, weight.shape, weight, self.variance_epsilon)


def norm_of(config: Any, width: int | None = None) -> RmsNorm:
    return RmsNorm(width or config.hidden_size, config.rms_norm_eps)


class Rotary(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self._rotary = LlamaRotaryEmbedding(config)

    @property
    def fixed(self) -> bool:
        """Whether a position's angles do not depend on how long the text is."""
        return not any(name in self._rotary.rope_type for name in ("dynamic", "longrope"))

    def forward(self, like: Tensor, positions: Tensor) -> Rotation:
        """positions [..., rows]; `like` gives device and dtype."""
        cos, sin = self._rotary(like, positions.reshape(1, -1))
        shape = (*positions.shape, cos.shape[-1])
        return cos.view(shape), sin.view(shape)


def rotate(x: Tensor, rotation: Rotation) -> Tensor:
    """x [..., rows, heads, size]."""
    cos, sin = (part.unsqueeze(-2) for part in rotation)
    low, high = x.chunk(2, -1)
    return x * cos + torch.cat([-high, low], -1) * sin


class Attention(nn.Module):
    """`inputs`: the width that queries, keys and values are made from."""

    def __init__(self, config: Any, index: int, inputs: int, head_norms: bool) -> None:
        super().__init__()
        self.index = index
        self.size = size = int(config.head_dim)
        heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
        bias = bool(getattr(config, "attention_bias", False))
        self.q_proj = nn.Linear(inputs, heads * size, bias=bias)
        self.k_proj = nn.Linear(inputs, kv_heads * size, bias=bias)
        self.v_proj = nn.Linear(inputs, kv_heads * size, bias=bias)
        self.o_proj = nn.Linear(heads * size, config.hidden_size, bias=bias)
        self.q_norm = norm_of(config, size) if head_norms else nn.Identity()
        self.k_norm = norm_of(config, size) if head_norms else nn.Identity()

    def query(self, x: Tensor, rotation: Rotation) -> Tensor:
        """x [..., rows, inputs] -> [..., rows, heads, size]."""
        return rotate(self.q_norm(self.q_proj(x).unflatten(-1, (-1, self.size))), rotation)

    def keys_and_values(self, x: Tensor, rotation: Rotation) -> tuple[Tensor, Tensor]:
        """x [..., rows, inputs] -> [..., rows, kv heads, size] each."""
        keys = self.k_norm(self.k_proj(x).unflatten(-1, (-1, self.size)))
        return rotate(keys, rotation), self.v_proj(x).unflatten(-1, (-1, self.size))

    def forward(
        self, x: Tensor, rotation: Rotation, attend: Attend, wanted: Tensor | None = None
    ) -> Tensor:
        """x [..., rows, inputs] -> [..., rows, hidden size], or of the `wanted` rows alone."""
        keys, values = self.keys_and_values(x, rotation)
        angles = (taken(rotation[0], wanted), taken(rotation[1], wanted))
        mixed = attend(self.index, self.query(taken(x, wanted), angles), keys, values)
        out: Tensor = self.o_proj(mixed.flatten(-2))
        return out


class Mlp(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        outer, inner = config.hidden_size, config.intermediate_size
        bias = bool(getattr(config, "mlp_bias", False))
        self.gate_proj = nn.Linear(outer, inner, bias=bias)
        self.up_proj = nn.Linear(outer, inner, bias=bias)
        self.down_proj = nn.Linear(inner, outer, bias=bias)
        self.activation = ACT2FN[config.hidden_act]

    def forward(self, x: Tensor) -> Tensor:
        """[..., hidden size] -> the same."""
        out: Tensor = self.down_proj(self.activation(self.gate_proj(x)) * self.up_proj(x))
        return out


class DecoderLayer(nn.Module):
    """`input_norm` False: the attention reads the stream as it is."""

    def __init__(
        self, config: Any, index: int, head_norms: bool = False, input_norm: bool = True
    ) -> None:
        super().__init__()
        self.self_attn = Attention(config, index, config.hidden_size, head_norms)
        self.mlp = Mlp(config)
        self.input_layernorm = norm_of(config) if input_norm else nn.Identity()
        self.post_attention_layernorm = norm_of(config)

    def forward(
        self, x: Tensor, rotation: Rotation, attend: Attend, wanted: Tensor | None = None
    ) -> Tensor:
        """x [..., rows, hidden size] -> the same, or of the `wanted` rows alone."""
        mixed = self.self_attn(self.input_layernorm(x), rotation, attend, wanted)
        x = taken(x, wanted) + mixed
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out
