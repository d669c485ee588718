"""The end of a step: what was accepted becomes text."""

from typing import Any

from outrider.core.tree import TokenTree
from outrider.core.verdict import Span, Verdict
from outrider.engine.launched import Launched
from outrider.engine.report import token_logprobs
from outrider.engine.sequence import Sequence
from outrider.model.flight import Flight
from outrider.model.kv import KVCache
from outrider.sampling.counts import Counts


class Commit:
    def __init__(self, kv: KVCache, counts: Counts, tokenizer: Any) -> None:
        self.kv, self.counts, self.tokenizer = kv, counts, tokenizer

    def __call__(self, launched: Launched, verdicts: dict[int, Verdict], ahead: bool) -> list[Span]:
        """Keep the accepted nodes' slots and free the rest; what was computed, for the drafters.
        `ahead`: the next pass has started, and has a slot of each request."""
        spans, first_row = [], 0
        for i, (item, tree) in enumerate(zip(launched.work, launched.trees, strict=True)):
            request = item.sequence.request
            start = len(request.slots)
            kept: list[int] = []
            if i in verdicts:
                kept = self._append(item.sequence, tree, verdicts[i], launched.flight, first_row)
                first_row += 1 + len(tree)
            kept_rows = [*range(item.rows), *(item.rows + node for node in kept)]
            self.kv.commit(request, kept_rows, ahead=ahead)
            if item.sequence.observed < start:  # what the prefix cache held
                spans.append(Span(request, 0, request.tokens[:start]))
            spans.append(Span(request, start, request.tokens[start : len(request.slots)]))
            item.sequence.observed = len(request.slots)
            # A prompt is complete, be its last part a single row: others may start from it.
            if i in verdicts and (item.rows > 1 or start + 1 == len(request.prompt_ids)):
                self.kv.share(request)
        return spans

    def _append(
        self, sequence: Sequence, tree: TokenTree, verdict: Verdict, flight: Flight, row: int
    ) -> list[int]:
        """Write the accepted tokens up to the text's end; the nodes that are part of it. `row` is
        the root's among the flight's logits."""
        request = sequence.request
        entries: list[Any] = [None] * (len(verdict.kept) + 1)
        if request.params.logprobs is not None:
            logits = flight.logits[row : row + 1 + len(tree)]  # [1 + nodes, vocabulary]
            entries = token_logprobs(request, tree, verdict, logits, self.counts, self.tokenizer)
        writing = bool(request.output_ids)
        kept: list[int] = []
        for node, entry in zip(verdict.kept, entries, strict=False):
            kept.append(node)
            if sequence.append(tree.tokens[node], from_draft=True, logprobs=entry):
                break
        else:
            sequence.append(verdict.next_token, from_draft=False, logprobs=entries[-1])
        if writing:  # the first token comes from reading the prompt
            sequence.speculation.record(len(tree), len(kept))
        return kept
