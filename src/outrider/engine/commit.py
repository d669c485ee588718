"""The end of a step: what was accepted becomes text."""

from collections.abc import Iterator
from itertools import repeat
from typing import Any

from outrider.core.outputs import Logprob, TokenLogprobs
from outrider.core.tree import TokenTree
from outrider.core.verdict import Span, Verdict
from outrider.engine.launched import Launched
from outrider.engine.report import Written, token_logprobs
from outrider.engine.sequence import Sequence
from outrider.model.kv import KVCache
from outrider.sampling.counts import Counts


class Commit:
    def __init__(self, kv: KVCache, counts: Counts, tokenizer: Any) -> None:
        self.kv, self.counts, self.tokenizer = kv, counts, tokenizer

    def __call__(
        self, launched: Launched, verdicts: dict[int, Verdict], ahead: Launched | None
    ) -> list[Span]:
        """Keep the accepted nodes' slots and free the rest; what was computed, for the drafters.
        `ahead`: the next pass, where it has started: it has slots of each request."""
        spans = []
        taken = ahead.slots if ahead is not None else {}
        logprobs = self._logprobs(launched, verdicts)
        for i, (item, tree) in enumerate(zip(launched.work, launched.trees, strict=True)):
            sequence, verdict = item.sequence, verdicts.get(i)
            request = sequence.request
            start = len(request.slots)
            kept_rows = [*range(item.rows)]
            if verdict is not None:
                kept = self._append(sequence, tree, verdict, logprobs.get(i))
                kept_rows += [item.rows + node for node in kept]
            self.kv.commit(request, kept_rows, taken.get(request, 0))
            if sequence.observed < start:  # what the prefix cache held
                spans.append(Span(request, 0, request.tokens[:start]))
            end = sequence.observed = len(request.slots)
            spans.append(Span(request, start, request.tokens[start:end]))
            # A prompt is complete, be its last part a single row: others may start from it.
            if verdict is not None and (item.rows > 1 or start + 1 == len(request.prompt_ids)):
                self.kv.share(request)
        return spans

    def _logprobs(
        self, launched: Launched, verdicts: dict[int, Verdict]
    ) -> dict[int, TokenLogprobs]:
        """By index of work, for those who want them."""
        if all(item.sequence.request.params.logprobs is None for item in launched.work):
            return {}
        asked: dict[int, Written] = {}
        row = 0
        for i, verdict in verdicts.items():
            request, tree = launched.work[i].sequence.request, launched.trees[i]
            if request.params.logprobs is not None:
                asked[i] = Written(request, tree, verdict, row)
            row += 1 + len(tree)
        if not asked:  # their prompts are not at their ends yet
            return {}
        written = list(asked.values())
        found = token_logprobs(written, launched.logits, self.counts, self.tokenizer)
        return dict(zip(asked, found, strict=True))

    def _append(
        self,
        sequence: Sequence,
        tree: TokenTree,
        verdict: Verdict,
        logprobs: TokenLogprobs | None,
    ) -> list[int]:
        """Write the accepted tokens up to the text's end; the nodes that are part of it."""
        writing = bool(sequence.request.output_ids)
        entries: Iterator[dict[int, Logprob] | None] = iter(logprobs or repeat(None))
        kept: list[int] = []
        for node in verdict.kept:
            kept.append(node)
            if sequence.append(tree.tokens[node], True, next(entries)):
                break
        else:
            sequence.append(verdict.next_token, False, next(entries))
        if writing:  # the first token comes from reading the prompt
            sequence.speculation.record(len(tree.tokens), len(kept))
        return kept
