"""Trees and the target's logits -> verdicts. Knows no model."""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Literal

from torch import Tensor

from outrider.core.request import Request
from outrider.core.tree import TokenTree
from outrider.core.verdict import Verdict
from outrider.sampling.choose import NO_TOKEN, choose, distribution
from outrider.sampling.counts import Counts
from outrider.sampling.process import process, unprocessed
from outrider.sampling.rows import Row, tree_rows
from outrider.verify.coupled import walk
from outrider.verify.traversal import KeyedDraws, keyed_draws, traverse

Method = Literal["coupled", "traversal"]


def verify(
    trees: Sequence[TokenTree],
    requests: Sequence[Request],
    logits: Tensor,
    counts: Counts,
    method: Method = "coupled",
    best: list[int] | None = None,
) -> list[Verdict]:
    """One verdict per request. `best`: the likeliest token of every row, where `best_decides`.

    logits [sum of (1 + nodes), vocabulary]: for each request its root's row, then its nodes' rows
    in tree order. Raises RowError, which names the request, when its text reaches a row where no
    token can be chosen; nothing has changed then, so the caller may drop that request and call
    again with the others.
    """
    rows = tree_rows(trees, requests)
    given = len(logits) if best is None else len(best)
    if len(rows) != given:
        raise ValueError(f"{given} rows of logits for {len(rows)} roots and nodes")
    spans = list(pairwise(accumulate((1 + len(tree) for tree in trees), initial=0)))
    if best is not None:
        return [_coupled(tree, rows[a:b], best[a:b]) for tree, (a, b) in zip(trees, spans)]
    scores = process(logits, rows, counts)
    if method == "coupled":
        choices = choose(scores, rows).tolist()
        return [_coupled(tree, rows[a:b], choices[a:b]) for tree, (a, b) in zip(trees, spans)]
    highest, likeliest = scores.max(-1)
    finite, choices = highest.isfinite().tolist(), likeliest.tolist()
    draws = keyed_draws(requests, trees)
    verdicts = [
        _traversal(tree, rows[a:b], scores[a:b], finite[a:b], own)
        for tree, own, (a, b) in zip(trees, draws, spans)
    ]
    return [
        Verdict(verdict.kept, verdict.next_token, choices[a:b])
        for verdict, (a, b) in zip(verdicts, spans)
    ]


def best_decides(request: Request, method: Method = "coupled") -> bool:
    """Whether the target's choice is simply its likeliest token."""
    return method == "coupled" and request.params.greedy and unprocessed(request)


def _coupled(tree: TokenTree, rows: list[Row], choices: list[int]) -> Verdict:
    verdict = walk(tree, choices)
    if verdict.next_token == NO_TOKEN:
        raise rows[verdict.kept[-1] + 1 if verdict.kept else 0].failure()
    return Verdict(verdict.kept, verdict.next_token, choices)


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
