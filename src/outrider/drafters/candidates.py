"""Which tokens a drafter with probabilities proposes after a node, best first."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from outrider.sampling.choose import distribution
from outrider.sampling.guess import Known, guessed_top
from outrider.sampling.noise import Key, Purpose, streams
from outrider.sampling.rows import Row
from outrider.sampling.top import perturbed_top

RIVALS = 32  # of a token, that its confidence is weighed against where there is noise
SURE = 4  # children that are exactly the best; a worse fourth guess is not worth more noise


class Found(NamedTuple):
    """Children of one node, by rank."""

    tokens: list[int]
    confidence: list[float]  # the drafter's probability of each
    q: Tensor | None = None  # [vocabulary]: what they were drawn from, one after the other


def candidates(
    scores: Tensor,
    rows: Sequence[Row],
    wanted: Sequence[int],
    lanes: Sequence[int] | None = None,
    known: Known | None = None,
) -> list[Found]:
    """Up to wanted[i] children after row i; fewer where fewer tokens are possible.

    scores [rows, vocabulary], or over the drafter's own tokens where `known` says which these are:
    then guesses are sought in less time than they would need to be exact. With `lanes` the
    children are drawn for traversal, from scores over the target's tokens, lanes[i] being row i's
    own number in its request's step; else they are guesses at the target's choice. Both are the
    same where temperature is 0: the likeliest tokens, which nobody drew.
    """
    found: list[Found] = [Found([], [])] * len(rows)
    greedy = [i for i, row in enumerate(rows) if row.request.params.greedy]
    noisy = [i for i, row in enumerate(rows) if not row.request.params.greedy]
    for part in (greedy, noisy):
        if not part:
            continue
        some = scores if len(part) == len(rows) else scores[part]
        which, count = [rows[i] for i in part], [wanted[i] for i in part]
        if part is greedy:
            children = _likeliest(some, count, known)
        elif lanes is None:
            children = _guessed(some, which, count, known)
        else:
            children = _drawn(some, which, count, [lanes[i] for i in part])
        for i, child in zip(part, children, strict=True):
            found[i] = child
    return found


def _likeliest(scores: Tensor, wanted: Sequence[int], known: Known | None) -> list[Found]:
    values, columns = scores.topk(min(max(wanted), scores.shape[1]), -1)
    confidence = scores.softmax(-1).gather(1, columns)
    tokens = columns if known is None else known.tokens[columns]
    return _found(values, tokens, confidence, wanted)


def _guessed(
    scores: Tensor, rows: Sequence[Row], wanted: Sequence[int], known: Known | None
) -> list[Found]:
    """By score and the target's own noise. The softmax of both says how far a rival is behind:
    what differs between drafter and target must make that up."""
    keys = [Key(r.request.seed, r.request.sample, r.position, Purpose.CHOICE) for r in rows]
    stream = streams(keys, scores.device)
    most = max(wanted)
    if known is None:
        values, tokens = perturbed_top(scores, stream, max(most, RIVALS), min(most, SURE))
    else:
        values, tokens = guessed_top(scores, stream, max(most, RIVALS), known)
    confidence = (values - values[:, :RIVALS].logsumexp(-1, keepdim=True)).exp()
    return _found(values, tokens, confidence, wanted)


def _drawn(
    scores: Tensor, rows: Sequence[Row], wanted: Sequence[int], lanes: Sequence[int]
) -> list[Found]:
    """Without replacement, which is what the order of score and noise amounts to."""
    keys = [
        Key(row.request.seed, row.request.sample, row.request.position, Purpose.DRAFT, lane)
        for row, lane in zip(rows, lanes, strict=True)
    ]
    most = max(wanted)
    values, tokens = perturbed_top(scores, streams(keys, scores.device), most, most)
    q = distribution(scores, rows)  # [rows, vocabulary]
    chance = q.gather(1, tokens.clamp(max=scores.shape[1] - 1))
    values = torch.where(chance > 0, values, -torch.inf)
    return [
        children._replace(q=row)
        for children, row in zip(_found(values, tokens, chance, wanted), q, strict=True)
    ]


def _found(
    values: Tensor, tokens: Tensor, confidence: Tensor, wanted: Sequence[int]
) -> list[Found]:
    """All [rows, count], best first; a value that is not finite ends the row."""
    usable = values.isfinite().long().cumprod(-1).sum(-1).tolist()
    return [
        Found(ids[: min(n, most)], chances[: min(n, most)])
        for ids, chances, n, most in zip(
            tokens.tolist(), confidence.tolist(), usable, wanted, strict=True
        )
    ]
