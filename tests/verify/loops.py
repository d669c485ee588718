"""Whole decode loops on a toy: draft, verify and commit over several steps with production noise.

One step alone cannot show noise that is used again in the next.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import torch

import outrider.sampling.choose as choose_module
from outrider import verify as verify_module
from outrider.core.params import SamplingParams
from outrider.core.request import Request
from outrider.core.tree import TokenTree
from outrider.sampling.counts import Counts
from outrider.sampling.rows import Row, tree_rows
from tests.sampling.statistics import p_value


@dataclass(frozen=True)
class Loop:
    """Row t of p and q is the distribution after token t: first-order chains, begun at token 0."""

    p: np.ndarray
    q: np.ndarray
    draft: int  # tokens per proposal
    length: int  # of the texts that are counted


# Rejected drafts of token 0 say much about token 1's noise and little about token 2's: shows
# residual draws that depend on the draft's.
SINGLE = Loop(
    p=np.array([[2, 70, 28]] * 3) / 100, q=np.array([[49, 49, 2]] * 3) / 100, draft=1, length=1
)
# Residuals of several tokens, far from q.
WIDE = Loop(
    p=np.array([[10, 40, 20, 30], [50, 10, 20, 20], [20, 30, 40, 10], [10, 10, 40, 40]]) / 100,
    q=np.array([[60, 20, 10, 10], [10, 50, 30, 10], [50, 10, 10, 30], [40, 40, 10, 10]]) / 100,
    draft=2,
    length=3,
)
# Found by search: numbers used again in a later step bias the text by a few hundredths.
LONG = Loop(
    p=np.array([[60, 40], [85, 15]]) / 100,
    q=np.array([[90, 10], [90, 10]]) / 100,
    draft=3,
    length=5,
)


def rows_of(table: np.ndarray, rows: Sequence[Row]) -> torch.Tensor:
    last = [(row.request.tokens + row.path)[-1] for row in rows]
    return torch.from_numpy(table[last]).log()


def propose(loop: Loop, requests: Sequence[Request], method: str) -> list[TokenTree]:
    """Chains drawn from q: with the target's own noise if coupled, else with the drafter's."""
    paths: list[list[int]] = [[] for _ in requests]
    q = []
    for depth in range(loop.draft):
        rows = [Row(request, list(path)) for request, path in zip(requests, paths)]
        scores = rows_of(loop.q, rows)
        if method == "coupled":
            tokens = choose_module.choose(scores, rows)
        else:
            tokens = choose_module.draw(scores, rows, [depth] * len(rows))
        q.append(choose_module.distribution(scores, rows))
        for path, token in zip(paths, tokens.tolist()):
            path.append(token)
    if method == "coupled":
        return [TokenTree.chain(path, "toy") for path in paths]
    per_request = torch.stack(q, 1)  # [requests, draft, vocabulary]
    return [TokenTree.chain(path, "toy", rows) for path, rows in zip(paths, per_request)]


def decode(loop: Loop, requests: Sequence[Request], method: str) -> list[tuple[int, ...]]:
    counts = Counts(len(loop.p))
    while todo := [request for request in requests if request.position < loop.length]:
        trees = propose(loop, todo, method)
        logits = rows_of(loop.p, tree_rows(trees, todo))
        verdicts = verify_module.verify(trees, todo, logits, counts, method)
        for request, tree, verdict in zip(todo, trees, verdicts):
            for token in [*(tree.tokens[node] for node in verdict.kept), verdict.next_token]:
                request.append(token)
    return [tuple(request.output_ids[: loop.length]) for request in requests]


def loop_p_value(loop: Loop, method: str, samples: int) -> float:
    requests = [Request("toy", [0], SamplingParams(), seed) for seed in range(samples)]
    expected = {
        text: float(np.prod([loop.p[a, b] for a, b in zip((0, *text), text)]))
        for text in product(range(len(loop.p)), repeat=loop.length)
    }
    return p_value(decode(loop, requests, method), expected)
