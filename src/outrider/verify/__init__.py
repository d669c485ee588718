"""Trees and the target's logits -> verdicts. Knows no model."""

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Literal

from torch import Tensor

from outrider.core.request import Request
from outrider.core.tree import TokenTree
from outrider.core.verdict import Verdict
from outrider.sampling.choose import NO_TOKEN, choose, distribution
from outrider.sampling.counts import Counts
from outrider.sampling.process import process, unadjusted
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
) -> list[Verdict]:
    """One verdict per request.

    logits [sum of (1 + nodes), vocabulary]: for each request its root's row, then its nodes' rows
    in tree order. Raises RowError, which names the request, when its text reaches a row where no
    token can be chosen; nothing has changed then, so the caller may drop that request and call
    again with the others.
    """
    rows = tree_rows(trees, requests)
    if len(rows) != len(logits):
        raise ValueError(f"{len(logits)} rows of logits for {len(rows)} roots and nodes")
    scores = process(logits, rows, counts)
    spans = _spans(trees)
    if method == "coupled":
        choices = choose(scores, rows).tolist()
        return [
            _coupled(tree, request, choices[a:b], rows[a:b])
            for tree, request, (a, b) in zip(trees, requests, spans)
        ]
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
    spans = _spans(trees)
    others = [i for i, request in enumerate(requests) if not pass_can_choose(request)]
    verdicts = {}
    if others:
        rows = [row for i in others for row in range(*spans[i])]
        some = verify(
            [trees[i] for i in others], [requests[i] for i in others], logits()[rows], counts
        )
        verdicts = dict(zip(others, some, strict=True))
    return [
        verdicts.get(i) or _coupled(tree, request, chosen[a:b])
        for i, (tree, request, (a, b)) in enumerate(zip(trees, requests, spans, strict=True))
    ]


def _spans(trees: Sequence[TokenTree]) -> list[tuple[int, int]]:
    """Where each request's rows lie."""
    return list(pairwise(accumulate([1 + len(tree.tokens) for tree in trees], initial=0)))


def _coupled(
    tree: TokenTree, request: Request, choices: list[int], rows: list[Row] | None = None
) -> Verdict:
    kept: list[int] = []
    token = choices[0]
    if tree.tokens:  # most rows of a large batch have none
        kept, token, _ = walk(tree, choices)
    if token == NO_TOKEN:
        rows = rows or tree_rows([tree], [request])
        raise rows[kept[-1] + 1 if kept else 0].failure()
    return Verdict(kept, token, choices)


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
