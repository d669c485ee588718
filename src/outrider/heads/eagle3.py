"""EAGLE-3: one layer that reads states from three depths of the target."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from outrider.heads.block import Attend, Attention, DecoderLayer, Mlp, Rotation, norm_of, taken
from outrider.heads.head import RecurrentHead


@dataclass(frozen=True)
class Eagle3Options:
    """What distinguishes the variants that are in use."""

    taps: tuple[int, ...]  # layers of the target whose inputs are read
    target_hidden: int
    draft_vocabulary: int
    target_vocabulary: int
    norm_before_residual: bool = False  # the residual stream starts with the normed feature
    norm_before_fc: bool = False  # one norm over all states
    fc_norm: bool = False  # one norm for each
    norm_output: bool = False  # the state that goes on is the normed one
    own_embedding: bool = True

    @property
    def reduced(self) -> bool:
        return self.draft_vocabulary != self.target_vocabulary


class FirstLayer(nn.Module):
    """Attends with the token's embedding and the feature side by side."""

    def __init__(self, config: Any, head_norms: bool, norm_before_residual: bool) -> None:
        super().__init__()
        self.norm_before_residual = norm_before_residual
        self.input_layernorm = norm_of(config)  # of the embedding
        self.hidden_norm = norm_of(config)  # of the feature
        self.self_attn = Attention(config, 0, 2 * config.hidden_size, head_norms)
        self.post_attention_layernorm = norm_of(config)
        self.mlp = Mlp(config)

    def forward(
        self,
        embedded: Tensor,
        features: Tensor,
        rotation: Rotation,
        attend: Attend,
        wanted: Tensor | None = None,
    ) -> Tensor:
        """embedded and features [..., rows, hidden size] -> the same, or of the `wanted` rows
        alone."""
        normed = self.hidden_norm(features)
        both = torch.cat([self.input_layernorm(embedded), normed], -1)
        residual = normed if self.norm_before_residual else features
        x = taken(residual, wanted) + self.self_attn(both, rotation, attend, wanted)
        mixed: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return mixed


class Eagle3(RecurrentHead):
    def __init__(self, config: Any, options: Eagle3Options) -> None:
        super().__init__(config)
        self.options = options
        self.taps = options.taps
        width, count = config.hidden_size, len(options.taps)
        head_norms = config.model_type == "qwen3"
        states = options.target_hidden
        self.fc = nn.Linear(count * states, width, bias=False)
        if options.norm_before_fc:
            self.input_norm = norm_of(config, count * states)
        if options.fc_norm:
            self.fc_norm = nn.ModuleList(norm_of(config, states) for _ in range(count))
        first = FirstLayer(config, head_norms, options.norm_before_residual)
        more = [DecoderLayer(config, i, head_norms) for i in range(1, config.num_hidden_layers)]
        self.layers = nn.ModuleList([first, *more])
        self.norm = norm_of(config)
        self.lm_head = nn.Linear(width, options.draft_vocabulary, bias=False)
        if options.own_embedding:
            self.embed_tokens = nn.Embedding(options.target_vocabulary, width)
        if options.reduced:
            offsets = torch.zeros(options.draft_vocabulary, dtype=torch.int64)
            self.register_buffer("d2t", offsets)

    def project(self, states: Tensor) -> Tensor:
        if self.options.norm_before_fc:
            states = self.input_norm(states)
        if self.options.fc_norm:
            parts = states.chunk(len(self.taps), -1)
            normed = [norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)]
            states = torch.cat(normed, -1)
        projected: Tensor = self.fc(states)
        return projected

    def forward(
        self,
        features: Tensor,
        tokens: Tensor,
        positions: Tensor,
        attend: Attend,
        wanted: Tensor | None = None,
    ) -> Tensor:
        embedded = self.embed(tokens)
        rotation = self.rotary(embedded, positions)
        first, *more = self.layers
        x: Tensor = first(embedded, features, rotation, attend, None if more else wanted)
        for layer in more:
            x = layer(x, rotation, attend, wanted if layer is more[-1] else None)
        return self.norm(x) if self.options.norm_output else x

    def logits(self, states: Tensor) -> Tensor:
        return self.output(states if self.options.norm_output else self.norm(states))
