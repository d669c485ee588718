"""Texts side by side, and the target's view of them."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from outrider.model.features import Tap
from outrider.train.texts import Text


@dataclass(eq=False)
class Batch:
    tokens: Tensor  # [texts, length]; padding is 0
    learned: Tensor  # [texts, length] bool: tokens that the target wrote
    states: Tensor  # [texts, length, taps * hidden size]: before the token after each
    logits: Tensor  # [texts, length, vocabulary]: the target's, for the token after each


@torch.no_grad()
def see(model: Any, texts: list[Text], taps: tuple[Tap, ...], device: torch.device) -> Batch:
    """One pass of the target; nothing of it is stored beyond the step."""
    length = max(len(text.tokens) for text in texts)
    tokens = torch.zeros(len(texts), length, dtype=torch.int64)
    learned = torch.zeros(len(texts), length, dtype=torch.bool)
    for i, text in enumerate(texts):
        tokens[i, : len(text.tokens)] = torch.tensor(text.tokens)
        learned[i, text.prompt : len(text.tokens)] = True
    tokens, learned = tokens.to(device), learned.to(device)
    # Padding stands behind the texts, so a causal model needs no mask for it.
    output = model(tokens, output_hidden_states=True, use_cache=False)
    found = output.hidden_states
    states = torch.cat([found[-1 if tap == "final" else tap] for tap in taps], -1)
    return Batch(tokens, learned, states, output.logits)


class Vocabulary:
    """The tokens that a drafter knows: those that its target writes most often."""

    def __init__(self, ids: Tensor, size: int) -> None:
        self.ids = ids  # [draft vocabulary] int64, ascending
        self.place = torch.full((size,), -1, dtype=torch.int64, device=ids.device)
        self.place[ids] = torch.arange(len(ids), device=ids.device)

    @classmethod
    def of(cls, texts: list[Text], most: int, size: int, always: set[int]) -> "Vocabulary":
        written = [token for text in texts for token in text.tokens[text.prompt :]]
        counts = torch.bincount(torch.tensor(written), minlength=size).float()
        counts[list(always)] = torch.inf
        best = counts.topk(min(most, size)).indices
        return cls(best.sort().values, size)

    def to(self, device: torch.device) -> "Vocabulary":
        return Vocabulary(self.ids.to(device), len(self.place))

    @property
    def d2t(self) -> Tensor:
        """[draft vocabulary]: offsets, as checkpoints store them."""
        return self.ids - torch.arange(len(self.ids), device=self.ids.device)

    def of_target(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """The target's probabilities of these tokens [..., draft vocabulary], and of all others
        together [...]."""
        p = logits.float().softmax(-1)[..., self.ids]
        return p, (1 - p.sum(-1)).clamp(min=0)
