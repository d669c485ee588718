"""Texts side by side, and the target's view of them."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from outrider.model.features import Tap
from outrider.train.texts import Text

RANKS = 64  # of the target's likeliest tokens: together nearly all of its probability
ROWS_AT_ONCE = 2048  # whose probabilities over the whole vocabulary exist at a time


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


class Truth(NamedTuple):
    """What the target says after tokens: as much of it as is worth learning, which is little enough
    to be kept for all texts. Tokens are counted in the drafter's own vocabulary."""

    best: Tensor  # [...] int64: the target's likeliest token, -1 where the drafter does not know it
    tokens: Tensor  # [..., ranks] int64: the likeliest that the drafter knows, best first
    chances: Tensor  # [..., ranks] float: the target's probabilities of those

    @classmethod
    def of(cls, logits: Tensor, words: Vocabulary) -> "Truth":
        """From the target's logits [..., vocabulary]."""
        flat = logits.flatten(0, -2)
        parts = [_truth(rows, words) for rows in flat.split(ROWS_AT_ONCE)]
        shape = logits.shape[:-1]
        best, tokens, chances = (torch.cat(each) for each in zip(*parts, strict=True))
        return cls(best.view(shape), tokens.view(*shape, -1), chances.view(*shape, -1))

    def at(self, *index: Any) -> "Truth":
        return Truth(*(tensor[index] for tensor in self))


def _truth(logits: Tensor, words: Vocabulary) -> tuple[Tensor, Tensor, Tensor]:
    """logits [rows, vocabulary] -> [rows], [rows, ranks], [rows, ranks]."""
    total = logits.float().logsumexp(-1, keepdim=True)
    known = logits[:, words.ids]
    values, tokens = known.topk(min(RANKS, known.shape[1]), -1)
    return words.place[logits.argmax(-1)], tokens, (values.float() - total).exp()


@dataclass(eq=False)
class Batch:
    tokens: Tensor  # [texts, length]; padding is 0
    learned: Tensor  # [texts, length] bool: tokens that the target wrote
    states: Tensor  # [texts, length, taps * hidden size]: before the token after each
    truth: Truth  # [texts, length]: about the token after each

    @property
    def bytes(self) -> int:
        tensors = (self.tokens, self.learned, self.states, *self.truth)
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


@torch.no_grad()
def see(model: Any, texts: list[Text], taps: tuple[Tap, ...], words: Vocabulary) -> Batch:
    """One pass of the target."""
    length = max(len(text.tokens) for text in texts)
    tokens = torch.zeros(len(texts), length, dtype=torch.int64)
    learned = torch.zeros(len(texts), length, dtype=torch.bool)
    for i, text in enumerate(texts):
        tokens[i, : len(text.tokens)] = torch.tensor(text.tokens)
        learned[i, text.prompt : len(text.tokens)] = True
    device = words.ids.device
    tokens, learned = tokens.to(device), learned.to(device)
    # Padding stands behind the texts, so a causal model needs no mask for it.
    output = model(tokens, output_hidden_states=bool(taps), use_cache=False)
    found = [output.hidden_states[-1 if tap == "final" else tap] for tap in taps]
    states = torch.cat(found, -1) if found else output.logits.new_empty(*tokens.shape, 0)
    return Batch(tokens, learned, states, Truth.of(output.logits, words))
