"""The target's choice and its runners-up, guessed from a drafter's scores and the target's noise.

A guess may miss, so the search need not be exact. Most noisy maxima are among the likeliest tokens,
one in ten is not; what that one lacks only large noise makes up, and the largest of each group is
known without opening the group. Hence the candidates: the likeliest tokens, and of every group the
token that the noise lifts most.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from outrider.sampling.noise import GROUP
from outrider.sampling.shared_noise import SharedNoise

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


def guessed_top(scores: Tensor, stream: Tensor, count: int, known: Known) -> tuple[Tensor, Tensor]:
    """About the `count` largest values of scores + noise and their tokens, best first; none is
    there that the drafter does not have unless its value is -inf.

    scores [rows, columns], stream [rows, 5] -> values [rows, count], tokens [rows, count] int64
    """
    noise = SharedNoise(stream, len(known.columns) // GROUP)
    score, column = scores.topk(min(max(count, LIKELY), scores.shape[1]), -1)  # [rows, likely]
    likely = known.tokens[column]
    value = score + noise.of_tokens(likely)
    lifted = noise.lifted  # [rows, groups]
    twice = lifted.gather(1, likely // GROUP) == likely
    value.masked_fill_(twice, -torch.inf)
    column = known.columns[lifted]
    score = scores.gather(1, column.clamp(min=0)) + noise.highest
    score.masked_fill_(column < 0, -torch.inf)
    values, best = torch.cat([value, score], 1).topk(min(count, scores.shape[1]), -1)
    return values, torch.cat([likely, lifted], 1).gather(1, best)
