"""Log-probabilities of the emitted tokens, and of their best rivals."""

from typing import NamedTuple

from torch import Tensor


class Logprobs(NamedTuple):
    chosen: Tensor  # [rows] float32
    rank: Tensor  # [rows] int64; 1 is the most likely token
    top_ids: Tensor  # [rows, top] int64, most likely first
    top: Tensor  # [rows, top] float32


def logprobs(scores: Tensor, tokens: Tensor, top: int) -> Logprobs:
    """From raw logits, or from processed scores where the user asked for those.

    scores [rows, vocabulary], tokens [rows] int64
    """
    log_p = scores.float().log_softmax(-1)  # low precision does not sum to 1 over a vocabulary
    chosen = log_p.gather(1, tokens[:, None])
    rank = (log_p > chosen).sum(-1) + 1
    best = log_p.topk(min(top, log_p.shape[-1]), -1)
    return Logprobs(chosen[:, 0], rank, best.indices, best.values)
