"""What the networks of all trained drafters have in common."""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from outrider.heads.block import Attend, Rotary
from outrider.model.features import Tap

BORROWED = ("embed_tokens", "lm_head")


class Target(NamedTuple):
    """What a head must know of the model that it drafts for."""

    hidden: int
    layers: int
    vocabulary: int
    model: Any  # the Hugging Face module: some heads use its embeddings or its output layer

    @classmethod
    def of(cls, model: Any) -> "Target":
        config = model.config.get_text_config()
        vocabulary = model.get_output_embeddings().weight.shape[0]
        return cls(config.hidden_size, config.num_hidden_layers, vocabulary, model)


class Head(nn.Module):
    """`taps` are the target's states that it reads. Of `embed_tokens` and `lm_head`, what a
    checkpoint does not hold is the target's own. `d2t`, where there is one, says which of the
    target's tokens the head's are: token i is the target's i + d2t[i]."""

    taps: tuple[Tap, ...]
    embed_tokens: nn.Embedding | None
    lm_head: nn.Linear | None
    d2t: Tensor | None  # [draft vocabulary] int64

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config  # of its layers, with Llama's names; None: it has none
        self.embed_tokens = self.lm_head = None
        self.register_buffer("d2t", None)
        if config is not None:
            self.rotary = Rotary(config)

    def borrow(self, target: Target) -> None:
        """Take from the target what is not the head's own; the weights are shared, not copied."""
        if self.embed_tokens is None:
            weight = target.model.get_input_embeddings().weight
            self.embed_tokens = nn.Embedding.from_pretrained(weight.data, freeze=True)
        if self.lm_head is None:
            weight = target.model.get_output_embeddings().weight
            self.lm_head = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
            self.lm_head.weight = weight

    def embed(self, tokens: Tensor) -> Tensor:
        """[..., rows] -> [..., rows, hidden size]."""
        assert self.embed_tokens is not None
        embedded: Tensor = self.embed_tokens(tokens)
        return embedded.to(self.dtype)

    def output(self, states: Tensor) -> Tensor:
        """[..., hidden size] -> [..., draft vocabulary]."""
        assert self.lm_head is not None
        logits: Tensor = self.lm_head(states.to(self.lm_head.weight.dtype))
        return logits

    @property
    def dtype(self) -> torch.dtype:
        """Of its own parameters; what it borrows may be of another."""
        own = (p for name, p in self.named_parameters() if not name.startswith(BORROWED))
        return next(own).dtype

    def project(self, states: Tensor) -> Tensor:
        """What is kept of the target's states: [..., rows, taps * hidden] -> [..., rows, width]."""
        return states

    def ids(self, vocabulary: int) -> Tensor:
        """[draft vocabulary]: the target's token for each of the head's."""
        assert self.lm_head is not None
        count = vocabulary if self.d2t is None else len(self.d2t)
        own = torch.arange(count, device=self.lm_head.weight.device)
        return own if self.d2t is None else own + self.d2t


class RecurrentHead(Head):
    """Writes one token after the other: its state after a token stands for the target's state
    there, which is known only up to the text's last token but one."""

    layers: nn.ModuleList

    def forward(
        self,
        features: Tensor,
        tokens: Tensor,
        positions: Tensor,
        attend: Attend,
        wanted: Tensor | None = None,
    ) -> Tensor:
        """States [..., rows, hidden size] after `tokens` [..., rows], each read together with the
        feature [..., rows, hidden size] of the token before it. Of the rows that are not `wanted`
        [n] the last layer leaves keys and values alone."""
        raise NotImplementedError

    def logits(self, states: Tensor) -> Tensor:
        """[..., rows, hidden size] -> [..., rows, draft vocabulary]."""
        raise NotImplementedError
