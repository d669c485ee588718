"""Scores and noise -> tokens. Adding Gumbel noise and taking the maximum draws from softmax."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from outrider.sampling.noise import GROUP, Key, Purpose, streams
from outrider.sampling.rows import Row
from outrider.sampling.shared_noise import SharedNoise

NO_TOKEN = -1  # chosen where a row has no finite maximum; no drafted token equals it
WINDOW = 16  # groups opened at first; mostly enough, as some 5 to 30 can win at T = 1


def choose(scores: Tensor, rows: Sequence[Row], purpose: Purpose = Purpose.CHOICE) -> Tensor:
    """The token at every row, keyed by its absolute output position.

    scores [rows, vocabulary] -> [rows] int64; argmax without noise where temperature is 0.
    """
    keys = [Key(row.request.seed, row.request.sample, row.position, purpose) for row in rows]
    return _decide(scores, rows, keys)


def draw(scores: Tensor, rows: Sequence[Row], lanes: Sequence[int]) -> Tensor:
    """A drafter's own draws under traversal: lanes[i] is the index of row i's draw in its step.

    scores [rows, vocabulary] -> [rows] int64
    """
    keys = [
        Key(row.request.seed, row.request.sample, row.request.position, Purpose.DRAFT, lane)
        for row, lane in zip(rows, lanes, strict=True)
    ]
    return _decide(scores, rows, keys)


def distribution(scores: Tensor, rows: Sequence[Row]) -> Tensor:
    """What `draw` draws from: softmax, or one-hot where temperature is 0; same shape and dtype."""
    probabilities = scores.softmax(-1)
    greedy = [i for i, row in enumerate(rows) if row.request.params.greedy]
    if greedy:
        best = scores[greedy].argmax(-1)
        probabilities[greedy] = functional.one_hot(best, scores.shape[-1]).to(scores.dtype)
    return probabilities


def _decide(scores: Tensor, rows: Sequence[Row], keys: Sequence[Key]) -> Tensor:
    noisy = [i for i, row in enumerate(rows) if not row.request.params.greedy]
    if not noisy:
        value, token = highest(scores)
    elif len(noisy) == len(rows):
        value, token = perturbed_max(scores, streams(keys, scores.device))
    else:
        value, token = highest(scores)
        stream = streams([keys[i] for i in noisy], scores.device)
        value[noisy], token[noisy] = perturbed_max(scores[noisy], stream)
    return torch.where(value.isfinite(), token, NO_TOKEN)


def highest(scores: Tensor) -> tuple[Tensor, Tensor]:
    """max and argmax over tokens: scores [rows, vocabulary] -> values [rows], tokens [rows] int64.

    A CPU finds a maximum six times as fast as where it is: so that is asked of one group alone. A
    tie goes to the lower token id.
    """
    if scores.device.type != "cpu":
        return tuple(scores.max(-1))  # type: ignore[return-value]
    grouped = _grouped(scores)  # [rows, groups, GROUP]
    value, group = grouped.amax(-1).max(-1)  # [rows] each
    opened = grouped[torch.arange(len(scores)), group]  # [rows, GROUP]
    return value, group * GROUP + opened.argmax(-1)


def perturbed_max(scores: Tensor, stream: Tensor) -> tuple[Tensor, Tensor]:
    """max and argmax over tokens of scores + noise, bit for bit as if all noise were computed.

    scores [rows, vocabulary], stream [rows, 5] -> values [rows], tokens [rows] int64

    No token of a group exceeds bound = (its best score) + (its largest noise), and rounding keeps
    that order. So open the groups by falling bound, until the next bound is below what was found.
    """
    grouped = _grouped(scores)  # [rows, groups, GROUP]
    rows, groups, _ = grouped.shape
    noise = SharedNoise(stream, groups)
    bound = grouped.amax(-1) + noise.highest  # [rows, groups]
    values = scores.new_empty(rows)
    tokens = torch.empty(rows, dtype=torch.int64, device=scores.device)
    todo, window = torch.arange(rows, device=scores.device), WINDOW
    while len(todo):
        last = window >= groups
        ceiling, group = bound[todo].topk(min(window + 1, groups), -1)
        if not last:
            ceiling, group = ceiling[:, -1], group[:, :-1]
        group = group.sort(-1).values  # [todo, window], ascending: a tie goes to the lower token id
        opened = grouped[todo[:, None], group] + noise.of_groups(todo, group)
        value, index = opened.flatten(1).max(-1)
        values[todo] = value
        tokens[todo] = group.gather(1, index[:, None] // GROUP)[:, 0] * GROUP + index % GROUP
        if last:
            break
        todo = todo[~(ceiling < value)]  # NaN stays in doubt
        window *= 4
    return values, tokens


def _grouped(scores: Tensor) -> Tensor:
    """[rows, vocabulary] -> [rows, groups, GROUP], padded with -inf."""
    rows, vocabulary = scores.shape
    groups = -(-vocabulary // GROUP)
    if vocabulary % GROUP:
        scores = functional.pad(scores, (0, groups * GROUP - vocabulary), value=-torch.inf)
    return scores.reshape(rows, groups, GROUP)
