"""The best few tokens by score and noise. With a drafter's own noise this is a draw without
replacement; with the target's own it is a guess at its choice and at the runners-up."""

import torch
from torch import Tensor

from outrider.sampling.choose import WINDOW, _grouped
from outrider.sampling.noise import GROUP
from outrider.sampling.shared_noise import SharedNoise


def perturbed_top(scores: Tensor, stream: Tensor, count: int, sure: int) -> tuple[Tensor, Tensor]:
    """The `count` largest values of scores + noise and their tokens, best first.

    scores [rows, vocabulary], stream [rows, 5] -> values [rows, count], tokens [rows, count] int64

    The first `sure` are those that all noise would give. The rest are the best of what had to be
    opened for that: a token among many may be missing, and none is there that does not belong to
    the vocabulary unless its value is -inf. The search is that of `perturbed_max`.
    """
    grouped = _grouped(scores)  # [rows, groups, GROUP]
    rows, groups, _ = grouped.shape
    count = min(count, groups * GROUP)
    sure = min(sure, count)
    noise = SharedNoise(stream, groups)
    bound = grouped.amax(-1) + noise.highest  # [rows, groups]
    values = scores.new_empty(rows, count)
    tokens = torch.empty(rows, count, dtype=torch.int64, device=scores.device)
    todo, window = torch.arange(rows, device=scores.device), max(WINDOW, -(-count // GROUP))
    while len(todo):
        last = window >= groups
        ceiling, group = bound[todo].topk(min(window + 1, groups), -1)
        if not last:
            ceiling, group = ceiling[:, -1], group[:, :-1]
        opened = grouped[todo[:, None], group] + noise.of_groups(todo, group)
        value, index = opened.flatten(1).topk(count, -1)  # [todo, count]
        values[todo] = value
        tokens[todo] = group.gather(1, index // GROUP) * GROUP + index % GROUP
        if last:
            break
        settled = (ceiling < value[:, sure - 1]) | (ceiling == -torch.inf)  # NaN stays in doubt
        todo = todo[~settled]
        window *= 4
    return values, tokens
