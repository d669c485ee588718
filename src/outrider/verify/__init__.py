"""Trees and the target's logits -> verdicts. Knows no model."""

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor

from outrider.core.request import Request
from outrider.core.tree import TokenTree
from outrider.core.verdict import Verdict
from outrider.sampling.choose import NO_TOKEN, choose, distribution
from outrider.sampling.counts import Counts
from outrider.sampling.process import process, takes_maximum, unadjusted
from outrider.sampling.rows import Row, tree_rows
from outrider.verify.coupled import spans, walk
from outrider.verify.traversal import KeyedDraws, keyed_draws, traverse

Method = Literal["coupled", "traversal"]


def verify(
    trees: Sequence[TokenTree],
    requests: Sequence[Request],
    logits: Tensor,
    counts: Counts,
    method: Method = "coupled",
    everywhere: bool = False,
) -> list[Verdict]:
    """One verdict per request; with the target's choices at all nodes, where a drafter wants to
    know them `everywhere`.

    logits [sum of (1 + nodes), vocabulary]: for each request its root's row, then its nodes' rows
    in tree order. Raises RowError, which names the request, when its text reaches a row where no
    token can be chosen; nothing has changed then, so the caller may drop that request and call
    again with the others.
    """
    rows = tree_rows(trees, requests)
    if len(rows) != len(logits):
        raise ValueError(f"{len(logits)} rows of logits for {len(rows)} roots and nodes")
    if method == "traversal":
        return _traversed(trees, requests, process(logits, rows, counts), rows)
    # On a CPU every row takes its time; a device would be waited for in every round of the walk.
    if everywhere or logits.device.type != "cpu":
        chosen = choose(process(logits, rows, counts), rows).tolist()
        return _walk_chosen(trees, chosen, rows.__getitem__)

    # Finding the maximum of a row takes less time than copying it.
    maxima = choose(logits, rows).tolist() if all(map(takes_maximum, requests)) else None

    def choices(at: list[int]) -> list[int]:
        reached = [rows[i] for i in at]
        if maxima is None:
            scores = process(_picked(logits, at), reached, counts)  # [at, vocabulary]
            chosen = choose(scores, reached).tolist()
        else:
            chosen = [maxima[i] for i in at]
        found = _found(chosen, at, rows.__getitem__)
        return [row.decided(token) for row, token in zip(reached, found, strict=True)]

    return walk(trees, choices)


def pass_can_choose(request: Request, method: Method = "coupled") -> bool:
    """Whether the target's choice needs nothing but logits, temperature, truncation and noise."""
    return method == "coupled" and unadjusted(request)


def verify_chosen(
    trees: Sequence[TokenTree],
    requests: Sequence[Request],
    chosen: list[int],
    logits: Callable[[], Tensor],
    counts: Counts,
) -> list[Verdict]:
    """The same where the pass itself has chosen tokens: `chosen` has one for each root and node,
    NO_TOKEN where there was none to choose. Requests that need more have theirs chosen here; only
    where there are such are the logits asked for."""
    others = [i for i, request in enumerate(requests) if not pass_can_choose(request)]
    adjusted: dict[int, Row] = {}
    if others:
        where = spans(trees)
        at = [row for i in others for row in range(*where[i])]
        rows = tree_rows([trees[i] for i in others], [requests[i] for i in others])
        adjusted = dict(zip(at, rows, strict=True))
        found = choose(process(logits()[at], rows, counts), rows).tolist()
        instead = dict(zip(at, found, strict=True))
        chosen = [instead.get(i, token) for i, token in enumerate(chosen)]
    return _walk_chosen(
        trees, chosen, lambda row: adjusted.get(row) or tree_rows(trees, requests)[row]
    )


def _walk_chosen(
    trees: Sequence[TokenTree], chosen: list[int], row_of: Callable[[int], Row]
) -> list[Verdict]:
    verdicts = walk(trees, lambda at: _found([chosen[i] for i in at], at, row_of))
    return _with_choices(verdicts, trees, chosen)


def _found(tokens: Sequence[int], at: list[int], row_of: Callable[[int], Row]) -> list[int]:
    """The tokens that were chosen at rows which texts have reached: there must be one at each."""
    found = list(tokens)
    if NO_TOKEN in found:
        raise row_of(at[found.index(NO_TOKEN)]).failure()
    return found


def _with_choices(
    verdicts: list[Verdict], trees: Sequence[TokenTree], chosen: list[int]
) -> list[Verdict]:
    return [
        Verdict(verdict.kept, verdict.next_token, chosen[a:b])
        for verdict, (a, b) in zip(verdicts, spans(trees), strict=True)
    ]


def _picked(logits: Tensor, rows: list[int]) -> Tensor:
    """Some rows [rows, vocabulary]; neighbours, as those of a batch without drafts, uncopied."""
    first, last = rows[0], rows[-1]
    if last - first == len(rows) - 1:
        return logits[first : last + 1]
    return logits.index_select(0, torch.tensor(rows))  # several times as fast as indexing


def _traversed(
    trees: Sequence[TokenTree], requests: Sequence[Request], scores: Tensor, rows: list[Row]
) -> list[Verdict]:
    """scores [rows, vocabulary]; the likeliest tokens pass for the target's choices."""
    highest, likeliest = scores.max(-1)
    finite = highest.isfinite().tolist()
    verdicts = [
        _traversal(tree, rows[a:b], scores[a:b], finite[a:b], draws)
        for tree, draws, (a, b) in zip(trees, keyed_draws(requests, trees), spans(trees))
    ]
    return _with_choices(verdicts, trees, likeliest.tolist())


def _traversal(
    tree: TokenTree, rows: list[Row], scores: Tensor, finite: list[bool], draws: KeyedDraws
) -> Verdict:
    """scores [1 + nodes, vocabulary]; finite: which rows have a finite maximum."""
    if tree.q is not None and tree.q.shape != scores[1:].shape:
        raise ValueError(f"q has shape {tuple(tree.q.shape)}, not {tuple(scores[1:].shape)}")

    def p(node: int) -> Tensor:
        if not finite[node + 1]:
            raise rows[node + 1].failure()
        row = slice(node + 1, node + 2)
        return distribution(scores[row].double(), rows[row])[0]

    return traverse(tree, p, draws)
