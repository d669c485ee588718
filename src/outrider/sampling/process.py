"""Raw logits -> scores: what the request's options leave of them, along each row's own path.

The order is fixed: penalties, bias, bans, the user's processors, then temperature, top-k, top-p,
min-p. softmax(scores) is p. Every operation works row by row, so that no row depends on its batch.
"""

from collections.abc import Sequence
from math import inf

import torch
from torch import Tensor

from outrider.core.params import LogitsProcessor
from outrider.core.request import Request
from outrider.sampling.counts import Counts
from outrider.sampling.rows import ProcessorError, Row
from outrider.sampling.transfer import indices, to_device
from outrider.sampling.truncate import truncate

CHUNK_BYTES = 64 << 20  # working memory beside the result
COPIES = 6  # of a row, that the steps below hold at once


def process(logits: Tensor, rows: Sequence[Row], counts: Counts) -> Tensor:
    """logits [rows, vocabulary] -> scores [rows, vocabulary] float32 (float64 stays), -inf where
    excluded. The input is never written to, but is returned as it is when there is nothing to do.

    A failing user processor sets `row.error` and leaves NaN in its row.
    """
    dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
    if all(unprocessed(row.request) for row in rows):
        return logits.to(dtype)
    scores = logits.to(dtype, copy=True)
    chunk = max(1, CHUNK_BYTES // (COPIES * scores.shape[-1] * scores.element_size()))
    for start in range(0, len(rows), chunk):
        part = rows[start : start + chunk]
        if not all(unprocessed(row.request) for row in part):
            _process(scores[start : start + chunk], part, counts)
    return scores


def unprocessed(request: Request) -> bool:
    """True when the scores are the logits."""
    params = request.params
    as_is = params.greedy or (params.temperature == 1 and not params.truncates)
    return as_is and unadjusted(request)


def takes_maximum(request: Request) -> bool:
    """True when the choice is the token of the highest logit."""
    return request.params.greedy and unadjusted(request)


def unadjusted(request: Request) -> bool:
    """True when nothing but temperature and truncation makes the scores from the logits."""
    params = request.params
    if params.adjusts or request.bad_word_ids:
        return False
    return not (params.min_tokens and request.stop_ids and request.position < params.min_tokens)


def _process(scores: Tensor, rows: Sequence[Row], counts: Counts) -> None:
    """In place on scores [rows, vocabulary]."""
    _penalise(scores, rows, counts)
    _bias(scores, rows)
    _ban(scores, rows)
    _call_processors(scores, rows)
    _divide(scores, rows)
    truncate(scores, [row.request.params for row in rows])


def _column(values: Sequence[float], like: Tensor) -> Tensor:
    """[rows, 1], to be spread over the vocabulary."""
    return to_device(torch.tensor(values, dtype=like.dtype), like.device)[:, None]


def _penalise(scores: Tensor, rows: Sequence[Row], counts: Counts) -> None:
    picked = [i for i, row in enumerate(rows) if row.request.params.penalised]
    if not picked:
        return
    params = [rows[i].request.params for i in picked]
    repetition = _column([p.repetition_penalty for p in params], scores)[:, 0]  # [picked]
    frequency = _column([p.frequency_penalty for p in params], scores)[:, 0]
    presence = _column([p.presence_penalty for p in params], scores)[:, 0]
    at = indices(picked, scores.device)
    found = counts.along([rows[i] for i in picked])
    before = [scores[at[row], token] for row, token, _ in found]
    for (row, token, output), z in zip(found, before):  # each [n]; drafted tokens come last and win
        r = repetition[row]
        z = torch.where(z > 0, z / r, z * r)
        z -= frequency[row] * output + presence[row] * (output > 0)
        scores[at[row], token] = z


def _bias(scores: Tensor, rows: Sequence[Row]) -> None:
    vocabulary = scores.shape[-1]
    entries = [
        (i, token, bias)
        for i, row in enumerate(rows)
        for token, bias in (row.request.params.logit_bias or {}).items()
        if 0 <= token < vocabulary
    ]
    if entries:
        at, tokens, biases = zip(*entries)
        where = indices(at, scores.device), indices(tokens, scores.device)
        scores[where] += _column(biases, scores)[:, 0]


def _ban(scores: Tensor, rows: Sequence[Row]) -> None:
    """Bad words and early stops; ids the model does not have need no ban."""
    banned = [(i, token) for i, row in enumerate(rows) for token in banned_tokens(row)]
    banned = [(i, token) for i, token in banned if 0 <= token < scores.shape[-1]]
    if banned:
        at, tokens = zip(*banned)
        scores[indices(at, scores.device), indices(tokens, scores.device)] = -inf


def banned_tokens(row: Row) -> list[int]:
    """The last id of every bad word whose other ids end the output so far; stops before their
    time."""
    request = row.request
    banned = [last for *start, last in request.bad_word_ids if _ends_with(row, start)]
    if row.position < request.params.min_tokens:
        banned.extend(request.stop_ids)
    return banned


def _ends_with(row: Row, tokens: list[int]) -> bool:
    n = len(tokens)
    return n == 0 or (row.request.output_ids[-n:] + row.path)[-n:] == tokens


def _call_processors(scores: Tensor, rows: Sequence[Row]) -> None:
    for i, row in enumerate(rows):
        for processor in row.request.params.logits_processors or []:
            try:
                scores[i] = _call(processor, row, scores[i].clone())
            except ProcessorError as error:
                row.error = error
                scores[i] = torch.nan
                break


def _call(processor: LogitsProcessor, row: Row, logits: Tensor) -> Tensor:
    """logits [vocabulary], a copy that the processor may change -> [vocabulary]"""
    name = getattr(processor, "__name__", type(processor).__name__)
    shape, where = logits.shape, f"request {row.request.id}: logits processor {name!r}"
    try:
        result = processor(row.request.output_ids + row.path, logits)
    except Exception as error:
        reason = f"{where} raised {type(error).__name__}: {error}"
        raise ProcessorError(row.request, reason) from error
    if not isinstance(result, Tensor):
        problem = f"a {type(result).__name__} instead of a tensor"
    elif result.shape != shape:
        problem = f"shape {tuple(result.shape)} instead of {tuple(shape)}"
    elif not result.is_floating_point():
        problem = f"{result.dtype} instead of floating point"
    elif result.isnan().any() or (result == inf).any():
        problem = "NaN or +inf"
    elif (result == -inf).all():
        problem = "-inf for every token"
    else:
        return result
    raise ProcessorError(row.request, f"{where} returned {problem}")


def _divide(scores: Tensor, rows: Sequence[Row]) -> None:
    params = [row.request.params for row in rows]
    temperatures = [1.0 if p.greedy else p.temperature for p in params]
    if any(temperature != 1 for temperature in temperatures):
        scores /= _column(temperatures, scores)
