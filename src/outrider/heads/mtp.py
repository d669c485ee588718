"""MTP: one more layer of the target's own kind, trained with it to write a token further."""

from typing import Any

import torch
from torch import Tensor, nn

from outrider.core.errors import ModelError
from outrider.heads.head import Head, Target


class Mtp(Head):
    """Its layer attends as the target's layers do: whoever runs it says how, by `attending`.
    Embeddings and output layer are the target's."""

    taps = ("final",)

    def __init__(self, target: Target, embedding_first: bool, blind_start: bool) -> None:
        """`embedding_first`: which of its two inputs comes first. `blind_start`: the token at
        position 0 is not shown to it."""
        super().__init__(None)
        decoder = target.model.get_decoder()
        if not all(hasattr(decoder, part) for part in ("layers", "norm", "rotary_emb")):
            kind = type(target.model).__name__
            raise ModelError(f"{kind} is not built as models with MTP heads are")
        self.embedding_first, self.blind_start = embedding_first, blind_start
        width, config = target.hidden, decoder.config
        # The index tells the layer its kind where kinds differ: that of the last one.
        self.block = type(decoder.layers[-1])(config, target.layers - 1)
        self.input_proj = nn.Linear(2 * width, width, bias=False)
        self.token_layernorm = _like(decoder.norm, width)
        self.hidden_layernorm = _like(decoder.norm, width)
        self.final_layernorm = _like(decoder.norm, width)
        self._rotary: list[nn.Module] = [decoder.rotary_emb]  # in a list: not a part of this one

    def forward(self, features: Tensor, tokens: Tensor, positions: Tensor) -> Tensor:
        """States [rows, hidden size] after `tokens` [rows], each read together with the feature
        [rows, hidden size] of the token before it."""
        embedded = self.embed(tokens)
        if self.blind_start:
            embedded = embedded.masked_fill((positions == 0)[:, None], 0)
        both = [self.token_layernorm(embedded), self.hidden_layernorm(features)]
        x = self.input_proj(torch.cat(both if self.embedding_first else both[::-1], -1))[None]
        places = positions[None]
        out: Any = self.block(
            x,
            position_embeddings=self._rotary[0](x, places),
            position_ids=places,
            attention_mask=None,
            use_cache=False,
        )
        out = out[0] if isinstance(out, tuple) else out  # [1, rows, hidden size]
        states: Tensor = self.final_layernorm(out[0])
        return states

    def logits(self, states: Tensor) -> Tensor:
        """[..., rows, hidden size] -> [..., rows, vocabulary]."""
        return self.output(states)


def _like(norm: Any, width: int) -> nn.Module:
    made: nn.Module = type(norm)(width, eps=getattr(norm, "variance_epsilon", None) or norm.eps)
    return made
