"""The target's choice and its runners-up, guessed from a drafter's scores and the target's noise.

A guess may miss, so the search need not be exact. Most noisy maxima are among the likeliest tokens,
one in ten is not; what that one lacks only large noise makes up, and the largest of each group is
known without opening the group. Hence the candidates: the likeliest tokens, and of every group the
token that the noise lifts most.
"""

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from outrider.sampling.noise import GROUP
from outrider.sampling.shared_noise import KEPT, SharedNoise

LIKELY = 64  # tokens whose noise is computed one by one: the maximum is seldom missed


class Known(NamedTuple):
    """The tokens that a drafter has, which may be some of the target's only."""

    tokens: Tensor  # [columns]: which token of the target each column of its scores is
    columns: Tensor  # [groups * GROUP]: the column of each of the target's tokens; -1: none
    vocabulary: int  # of the target
    in_order: bool  # columns are the target's tokens, all of them

    @classmethod
    def of(cls, tokens: Tensor, vocabulary: int) -> "Known":
        size = -(-vocabulary // GROUP) * GROUP
        columns = torch.full((size,), -1, dtype=torch.int64, device=tokens.device)
        columns[tokens] = torch.arange(len(tokens), device=tokens.device)
        in_order = torch.equal(tokens, torch.arange(vocabulary, device=tokens.device))
        return cls(tokens, columns, vocabulary, in_order)

    def spread(self, scores: Tensor) -> Tensor:
        """[rows, columns] -> [rows, vocabulary]: the tokens that it does not have, never."""
        if self.in_order:
            return scores
        full = scores.new_full((len(scores), self.vocabulary), -torch.inf)
        return full.index_copy_(1, self.tokens, scores)


class _Lifted(NamedTuple):
    """Of every group the token that noise lifts most, where the drafter has it."""

    columns: Tensor  # [rows or 1, found]: of its scores
    tokens: Tensor
    noise: Tensor  # -inf where it does not have the token after all


def guessed_top(scores: Tensor, stream: Tensor, count: int, known: Known) -> tuple[Tensor, Tensor]:
    """About the `count` largest values of scores + noise and their tokens, best first; none is
    there that the drafter does not have unless its value is -inf.

    scores [rows, columns], stream [rows, 5] -> values [rows, count], tokens [rows, count] int64
    """
    noise = SharedNoise(stream, len(known.columns) // GROUP)
    score, column = scores.topk(min(max(count, LIKELY), scores.shape[1]), -1)  # [rows, likely]
    likely = known.tokens[column]
    lift, twice = noise.of_tokens(likely)
    value = (score + lift).masked_fill_(twice, -torch.inf)
    lifted = _lifted(noise, known) if noise.whose is None else _lifted_at(noise.whose, known)
    columns, tokens = (each.expand(len(scores), -1) for each in lifted[:2])
    others = scores.gather(1, columns) + lifted.noise
    values, best = torch.cat([value, others], 1).topk(min(count, scores.shape[1]), -1)
    return values, torch.cat([likely, tokens], 1).gather(1, best)


def _lifted(noise: SharedNoise, known: Known) -> _Lifted:
    tokens = noise.lifted
    columns = known.columns[tokens]
    return _Lifted(columns.clamp(min=0), tokens, noise.highest.masked_fill(columns < 0, -torch.inf))


@lru_cache(maxsize=KEPT)
def _lifted_at(whose: tuple[int, ...], known: Known) -> _Lifted:
    """The same at one place of a text, without the groups whose token the drafter does not have:
    most of them, where it has a part of the target's tokens."""
    lifted = _lifted(SharedNoise(torch.tensor([whose]), len(known.columns) // GROUP), known)
    has = lifted.noise[0].isfinite()
    return _Lifted(*(each[:, has] for each in lifted))
