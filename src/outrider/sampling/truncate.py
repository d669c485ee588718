"""top-k, top-p and min-p: each keeps the scores from some cut on.

Ties at the cut stay, and the maximum always does, so nothing is ever emptied.
"""

from collections.abc import Callable, Sequence
from math import inf, log

import torch
from torch import Tensor

from outrider.core.params import SamplingParams
from outrider.sampling.transfer import indices, to_device

WINDOW = 256  # most likely tokens that top-p looks at first
GROWTH = 8  # of the window, while its mass is below p

Rule = Callable[[Tensor, Sequence[float]], Tensor]  # scores [n, vocabulary], n values -> cuts [n]


def truncate(scores: Tensor, params: Sequence[SamplingParams]) -> None:
    """In place on scores [rows, vocabulary]; rows of temperature 0 stay whole."""
    drawn = [(i, p) for i, p in enumerate(params) if not p.greedy]
    _apply(top_k_cut, scores, [(i, p.top_k) for i, p in drawn if 0 < p.top_k < scores.shape[-1]])
    _apply(top_p_cut, scores, [(i, p.top_p) for i, p in drawn if p.top_p < 1])
    _apply(min_p_cut, scores, [(i, p.min_p) for i, p in drawn if p.min_p > 0])


def _apply(rule: Rule, scores: Tensor, picked: Sequence[tuple[int, float]]) -> None:
    """picked: (row, the rule's value for it)."""
    if not picked:
        return
    at, values = zip(*picked)
    if len(at) == len(scores):
        cuts = rule(scores, values)
    else:
        cuts = scores.new_full((len(scores),), -inf)
        where = indices(at, scores.device)
        cuts[where] = rule(scores[where], values)
    scores.masked_fill_(scores < cuts[:, None], -inf)


def top_k_cut(scores: Tensor, k: Sequence[float]) -> Tensor:
    """The k-th largest score of each row."""
    top = scores.topk(int(max(k)), -1).values  # [n, largest k]
    kth = indices([int(x) - 1 for x in k], scores.device)[:, None]
    return top.gather(1, kth)[:, 0]


def top_p_cut(scores: Tensor, p: Sequence[float]) -> Tensor:
    """The least likely token of the smallest set of most likely ones whose mass reaches p.

    A few hundred tokens nearly always reach it, so the vocabulary is not sorted. A row is settled
    by the first window that suffices for it alone, whatever its neighbours need.
    """
    vocabulary = scores.shape[-1]
    goal = to_device(torch.tensor(p, dtype=torch.float64), scores.device)[:, None]
    # log p of the best token; exp and logsumexp are ten times slower on rows with many -inf
    peak = scores.log_softmax(-1).amax(-1, keepdim=True)  # [n, 1]
    cuts = torch.empty_like(peak)
    todo, window = torch.arange(len(scores), device=scores.device), min(WINDOW, vocabulary)
    while len(todo):
        some = scores if len(todo) == len(scores) else scores[todo]
        top = some.topk(window, -1).values  # [todo, window], falling
        mass = (top - top[:, :1] + peak[todo]).double().exp().cumsum(-1)
        last = (mass < goal[todo]).sum(-1, keepdim=True)  # index of the first that reaches the goal
        cuts[todo] = top.gather(1, last.clamp(max=window - 1))
        if window == vocabulary:
            break
        todo = todo[last[:, 0] == window]
        window = min(window * GROWTH, vocabulary)
    return cuts[:, 0]


def min_p_cut(scores: Tensor, p: Sequence[float]) -> Tensor:
    """p(token) < min_p * p(best) in logarithms, which needs no normalisation."""
    floor = to_device(torch.tensor([log(x) for x in p], dtype=scores.dtype), scores.device)
    return scores.amax(-1) + floor
