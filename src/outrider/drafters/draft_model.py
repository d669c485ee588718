"""A smaller model with the target's vocabulary writes ahead; a chain of k."""

from array import array
from typing import Any

import numpy as np
import torch
from torch import Tensor

from outrider.core.errors import ConfigError
from outrider.core.request import Request
from outrider.core.tree import TokenTree
from outrider.drafters.base import DraftConfig, Drafter
from outrider.drafters.vocabulary import check_same_vocabulary
from outrider.model.kv import KVCache
from outrider.model.loading import LoadedModel, fix_rotary, load_model
from outrider.model.runner import Runner
from outrider.model.segment import Segment
from outrider.sampling.choose import NO_TOKEN, choose, distribution, draw
from outrider.sampling.counts import Counts
from outrider.sampling.process import process
from outrider.sampling.rows import Row

CATCH_UP_ROWS = 512  # rows of one catch-up pass: bounds its memory


class DraftModelDrafter(Drafter):
    """Its KV lies in the target's slots. Per slot it notes which text its entry belongs to, so
    that rejections, pauses, preemption and prefix hits need no code: what is missing is computed.
    """

    name = "draft_model"
    options = {"model": None, "revision": None, "dtype": None}  # noqa: RUF012
    longest = 4

    def __init__(self, config: DraftConfig, target: LoadedModel) -> None:
        super().__init__(config, target)
        if not isinstance(self.option("model"), str):
            raise ConfigError("drafter 'draft_model' needs a 'model': a name, folder or .gguf file")
        loaded = load_model(
            self.option("model"),
            revision=self.option("revision"),
            dtype=self.option("dtype") or target.dtype,
            device=str(target.device),
        )
        fix_rotary(loaded.model, loaded.context_length)
        self.runner = Runner(loaded)
        self.vocabulary = _width(target)
        check_same_vocabulary(target, loaded, self.vocabulary, self.runner.vocabulary)
        self.bytes_per_slot = self.runner.bytes_per_slot
        self.counts = Counts(self.vocabulary, target.device)

    @classmethod
    def audit_config(cls, target: str) -> dict[str, Any]:
        return {"method": cls.name, "model": target}

    def bind(self, kv: KVCache) -> None:
        self.runner.allocate(kv.total)
        self._kv = kv
        # The generation of the slot when our entry was written; 0 (never handed out): no entry.
        self._written = np.zeros(kv.total + 1, dtype=np.int64)

    def propose(self, batch: list[Request], budgets: list[int]) -> list[TokenTree]:
        limit = self.runner.loaded.context_length
        drafts = [
            _Draft(request, min(budget, limit - len(request.tokens)))
            for request, budget in zip(batch, budgets, strict=True)
        ]
        active = [draft for draft in drafts if draft.budget > 0]
        logits = self._catch_up([draft.request for draft in active])
        while active:
            self._extend(active, logits)
            active = [draft for draft in active if len(draft.tokens) < draft.budget]
            if active:
                logits = self._forward([draft.next_segment() for draft in active])
        return [draft.tree(self.name) for draft in drafts]

    def release(self, request: Request) -> None:
        self.counts.release(request)

    def _catch_up(self, requests: list[Request]) -> Tensor:
        """Compute what is missing of each text; logits [requests, vocabulary] after its end."""
        logits: dict[Request, Tensor] = {}
        missing = [(request, self._valid(request)) for request in requests]
        while missing:
            segments, left, room = [], [], CATCH_UP_ROWS
            for request, start in missing:
                end = min(len(request.tokens), start + room)
                if end > start:
                    segments.append((request, _text_segment(request, start, end)))
                    room -= end - start
                if end < len(request.tokens):
                    left.append((request, end))
            rows = iter(self._forward([segment for _, segment in segments]))
            for request, segment in segments:
                if segment.logits_from < len(segment):
                    logits[request] = next(rows)
            missing = left
        if not requests:
            return torch.empty(0, self.vocabulary)
        return torch.stack([logits[request] for request in requests])

    def _valid(self, request: Request) -> int:
        """How much of the text's start has entries of ours; at most all but the last token."""
        slots = np.array(request.slots, dtype=np.int64)
        stale = np.flatnonzero(self._written[slots] != self._kv.generation[slots])
        return int(stale[0]) if len(stale) else len(slots)

    def _forward(self, segments: list[Segment]) -> Tensor:
        """[rows that need them, the target's vocabulary]; padding of either side is cut or -inf."""
        for segment in segments:  # ids that only the target has, its padding, are read as our last
            segment.tokens = [min(token, self.runner.vocabulary - 1) for token in segment.tokens]
        logits = self.runner.forward(segments)
        for segment in segments:
            slots = np.array(segment.slots, dtype=np.int64)
            self._written[slots] = self._kv.generation[slots]
        if logits.shape[1] >= self.vocabulary:
            return logits[:, : self.vocabulary]
        missing = self.vocabulary - logits.shape[1]
        return torch.nn.functional.pad(logits, (0, missing), value=float("-inf"))

    def _extend(self, drafts: list["_Draft"], logits: Tensor) -> None:
        """Choose one more token each, by the target's own rules, so that the two agree often."""
        rows = [Row(draft.request, draft.tokens.copy()) for draft in drafts]
        scores = process(logits, rows, self.counts)  # [drafts, vocabulary]
        if self.config.verification == "coupled":
            tokens = choose(scores, rows)
        else:
            # Traversal tests a token against the q it was drawn from, with noise of its own.
            tokens = draw(scores, rows, lanes=[len(row.path) for row in rows])
            for draft, q in zip(drafts, distribution(scores, rows), strict=True):
                draft.q.append(q)
        for draft, token in zip(drafts, tokens.tolist(), strict=True):
            draft.append(token)


def _width(target: LoadedModel) -> int:
    return int(target.model.get_output_embeddings().weight.shape[0])


def _text_segment(request: Request, start: int, end: int) -> Segment:
    """Rows for tokens[start:end]; the last token of the text gives logits."""
    slots = request.slots + request.reserved[: request.pending]
    last = end == len(request.tokens)
    return Segment.chain(
        request.tokens[start:end],
        slots[start:end],
        slots[:start],
        logits_from=end - start - 1 if last else end - start,
    )


class _Draft:
    """One request's chain while it grows."""

    def __init__(self, request: Request, budget: int) -> None:
        self.request = request
        self.budget = budget
        self.tokens: list[int] = []
        self.q: list[Tensor] = []  # each [vocabulary]

    def append(self, token: int) -> None:
        if token == NO_TOKEN:  # everything is banned here: the draft ends before
            self.budget = len(self.tokens)
            del self.q[self.budget :]
        else:
            self.tokens.append(token)

    def next_segment(self) -> Segment:
        """The row of the newest token, in the slot set aside for its node."""
        request, done = self.request, len(self.tokens) - 1
        nodes = request.reserved[request.pending :]
        context = request.slots + request.reserved[: request.pending] + nodes[:done]
        return Segment.chain(self.tokens[-1:], nodes[done : done + 1], array("q", context), 0)

    def tree(self, source: str) -> TokenTree:
        q = torch.stack(self.q) if self.q else None
        return TokenTree.chain(self.tokens, source, q)
