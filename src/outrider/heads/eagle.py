"""EAGLE-1 and 2: one layer that continues the target's last states."""

from typing import Any

import torch
from torch import Tensor, nn

from outrider.heads.block import Attend, DecoderLayer
from outrider.heads.head import RecurrentHead


class Eagle(RecurrentHead):
    """The output layer is the target's, without a norm before it."""

    taps = ("final",)

    def __init__(self, config: Any, bias: bool, own_embedding: int | None) -> None:
        """`own_embedding`: how many tokens it has; None: the target's."""
        super().__init__(config)
        width = config.hidden_size
        self.fc = nn.Linear(2 * width, width, bias=bias)
        self.layers = nn.ModuleList(
            # The first one reads what `fc` has mixed as it is.
            DecoderLayer(config, i, config.model_type == "qwen3", input_norm=i > 0)
            for i in range(config.num_hidden_layers)
        )
        if own_embedding is not None:
            self.embed_tokens = nn.Embedding(own_embedding, width)

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
        x: Tensor = self.fc(torch.cat([embedded, features], -1))
        for layer in self.layers:
            x = layer(x, rotation, attend, wanted if layer is self.layers[-1] else None)
        return x

    def logits(self, states: Tensor) -> Tensor:
        return self.output(states)
