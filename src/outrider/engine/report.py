"""Log-probabilities of accepted tokens, in the shape that users get."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from outrider.core.outputs import Logprob, TokenLogprobs
from outrider.core.request import Request
from outrider.core.tree import TokenTree
from outrider.core.verdict import Verdict
from outrider.sampling.counts import Counts
from outrider.sampling.logprobs import logprobs
from outrider.sampling.process import process
from outrider.sampling.rows import Row


class Written(NamedTuple):
    """What a pass has decided for one request."""

    request: Request
    tree: TokenTree
    verdict: Verdict
    root: int  # the root's row among the logits; its nodes' rows follow

    @property
    def tokens(self) -> list[int]:
        """The accepted ones and the one after them."""
        return [*self._path, self.verdict.next_token]

    @property
    def _path(self) -> list[int]:
        return [self.tree.tokens[node] for node in self.verdict.kept]

    @property
    def logit_rows(self) -> list[int]:
        """Those that decided the tokens."""
        return [self.root, *(self.root + 1 + node for node in self.verdict.kept)]

    @property
    def rows(self) -> list[Row]:
        path = self._path
        return [Row(self.request, path[:depth]) for depth in range(len(path) + 1)]


def token_logprobs(
    written: list[Written],
    logits: Tensor,  # [rows, vocabulary]: the target's raw ones
    counts: Counts,
    tokenizer: Any,
) -> list[TokenLogprobs]:
    """Per request one entry for each token, for those that asked for them; all at once, so that a
    GPU is waited for once. To be called before the tokens are committed: processed scores depend
    on what was written before each row."""
    scores = logits[[row for each in written for row in each.logit_rows]].float()
    _process_some(scores, written, counts)
    tokens = torch.tensor([token for each in written for token in each.tokens])
    top = max(each.request.params.logprobs or 0 for each in written)
    found = logprobs(scores, tokens.to(scores.device), top)
    packed = torch.cat([found.chosen[:, None], found.rank[:, None], found.top, found.top_ids], 1)
    table = iter(packed.tolist())  # ids are below 2 ** 24, so a float32 holds them exactly

    def text(token: int) -> str:
        return "" if tokenizer is None else tokenizer.decode([token])

    return [
        [_entry(next(table), token, each.request.params.logprobs or 0, text)
         for token in each.tokens]
        for each in written
    ]  # fmt: skip


def _process_some(scores: Tensor, written: list[Written], counts: Counts) -> None:
    """In place on scores [tokens, vocabulary]: for requests that asked for processed ones."""
    first = 0
    for each in written:
        end = first + len(each.verdict.kept) + 1
        if each.request.params.logprobs_mode == "processed":
            scores[first:end] = process(scores[first:end], each.rows, counts)
        first = end


def _entry(
    row: list[float], token: int, top: int, text: Callable[[int], str]
) -> dict[int, Logprob]:
    """From a row of the table: value and rank of the token, then all best values, then their
    ids."""
    value, rank, *best = row
    half = len(best) // 2
    entry = {token: Logprob(value, int(rank), text(token))}
    for place, (rival, other) in enumerate(zip(best[half:], best[:half], strict=True), 1):
        if place <= top:
            entry.setdefault(int(rival), Logprob(other, place, text(int(rival))))
    return entry
