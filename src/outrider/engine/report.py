"""Log-probabilities of accepted tokens, in the shape that users get."""

from typing import Any

import torch
from torch import Tensor

from outrider.core.outputs import Logprob
from outrider.core.request import Request
from outrider.core.tree import TokenTree
from outrider.core.verdict import Verdict
from outrider.sampling.counts import Counts
from outrider.sampling.logprobs import logprobs
from outrider.sampling.process import process
from outrider.sampling.rows import Row


def token_logprobs(
    request: Request,
    tree: TokenTree,
    verdict: Verdict,
    logits: Tensor,  # [1 + nodes, vocabulary]: the target's raw ones, root first
    counts: Counts,
    tokenizer: Any,
) -> list[dict[int, Logprob]]:
    """For the accepted tokens and the one after them. To be called before they are committed:
    processed scores depend on what was written before each row."""
    params = request.params
    assert params.logprobs is not None
    path = [tree.tokens[node] for node in verdict.kept]
    tokens = [*path, verdict.next_token]
    scores = logits[[0, *(node + 1 for node in verdict.kept)]]
    if params.logprobs_mode == "processed":
        rows = [Row(request, path[:depth]) for depth in range(len(tokens))]
        scores = process(scores, rows, counts)
    found = logprobs(scores, torch.tensor(tokens, device=scores.device), params.logprobs)

    def text(token: int) -> str:
        return "" if tokenizer is None else tokenizer.decode([token])

    entries = []
    for i, token in enumerate(tokens):
        chosen = Logprob(float(found.chosen[i]), int(found.rank[i]), text(token))
        entry = {token: chosen}
        rivals = zip(found.top_ids[i].tolist(), found.top[i].tolist(), strict=True)
        for rank, (rival, value) in enumerate(rivals, 1):
            entry.setdefault(rival, Logprob(value, rank, text(rival)))
        entries.append(entry)
    return entries
