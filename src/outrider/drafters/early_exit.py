"""The target drafts for itself, with some of its layers left out."""

from array import array
from typing import Any

import torch
from torch import Tensor

from outrider.core.errors import ConfigError
from outrider.core.request import Request
from outrider.core.tree import TokenTree
from outrider.core.verdict import Verdict
from outrider.drafters.base import DraftConfig, Drafter
from outrider.drafters.layer_search import LayerSearch
from outrider.model.kv import KVCache
from outrider.model.loading import LoadedModel
from outrider.model.segment import Segment
from outrider.sampling.choose import NO_TOKEN, choose, distribution, draw
from outrider.sampling.counts import Counts
from outrider.sampling.process import process
from outrider.sampling.rows import Row

SEARCH_EVERY = 64  # written tokens per comparison of two sets of layers: what the search may cost
SEARCH_TOKENS = 32  # on which they are compared
LEAST_LIKELY = -16.0  # log-likelihoods are cut here: one token may not decide a comparison


class EarlyExitDrafter(Drafter):
    """`exit_layer` runs only so many of the first layers, `skip_layers` all but those it names.

    Either way the target's own norm and head follow, and its own KV is what precedes. A draft
    writes into the slots of its nodes, where verification then computes all layers anew: nothing
    has to be kept or cleaned up.

    By default the layers to skip are searched. Leaving from a middle layer needs a model that was
    trained for it; in others the last layers are the ones that matter most.
    """

    name = "early_exit"
    options = {"exit_layer": None, "skip_layers": None}  # noqa: RUF012
    longest = 4

    def __init__(self, config: DraftConfig, target: LoadedModel) -> None:
        super().__init__(config, target)
        self._layers = int(target.model.config.get_text_config().num_hidden_layers)
        self._search: LayerSearch | None = None
        self._fixed = self._named_layers()
        self.reset()

    @classmethod
    def audit_config(cls, target: str) -> dict[str, Any]:
        # One layer alone is wrong most of the time, and an audit is about being wrong.
        return {"method": cls.name, "exit_layer": 1}

    def _named_layers(self) -> frozenset[int] | None:
        """The layers to skip as the configuration has it; None: they are searched."""
        leave, skip = self.option("exit_layer"), self.option("skip_layers")
        if leave is not None and skip is not None:
            raise ConfigError(
                "drafter 'early_exit' takes either exit_layer or skip_layers, not both"
            )
        if leave is not None:
            if not _is_index(leave) or not 1 <= leave <= self._layers:
                raise ConfigError(
                    f"exit_layer={leave!r} must be a whole number from 1 to {self._layers},"
                    " the target's number of layers"
                )
            return frozenset(range(leave, self._layers))
        if skip is None or skip == "search":
            return None
        if not isinstance(skip, list | tuple) or not all(
            _is_index(i) and 0 <= i < self._layers for i in skip
        ):
            raise ConfigError(
                f"skip_layers={skip!r} must be 'search' or a list of layers, each from 0 to"
                f" {self._layers - 1}"
            )
        if len(set(skip)) == self._layers:
            raise ConfigError(f"skip_layers={skip!r} leaves no layer to draft with")
        return frozenset(skip)

    def reset(self) -> None:
        self._search = LayerSearch(self._layers) if self._fixed is None else None
        self._unsearched = 0  # tokens written since two sets were last compared

    @property
    def skip(self) -> frozenset[int]:
        return self._search.best if self._search else self._fixed or frozenset()

    def bind(self, kv: KVCache) -> None:
        self._kv = kv
        self._counts = Counts(self.target_runner.vocabulary, self.target_runner.device)

    def release(self, request: Request) -> None:
        self._counts.release(request)

    # ---- drafting ----

    def propose(self, batch: list[Request], budgets: list[int]) -> list[TokenTree]:
        drafts = [_Draft(request, k) for request, k in zip(batch, budgets, strict=True)]
        active = [draft for draft in drafts if draft.budget > 0]
        while active:
            segments = [draft.next_segment() for draft in active]
            self._extend(active, self.target_runner.forward(segments, self.skip))
            active = [draft for draft in active if len(draft.tokens) < draft.budget]
        return [draft.tree(self.name) for draft in drafts]

    def _extend(self, drafts: list["_Draft"], logits: Tensor) -> None:
        """Choose one more token each, by the target's own rules, so that the two agree often.

        logits [drafts, vocabulary]
        """
        rows = [Row(draft.request, draft.tokens.copy()) for draft in drafts]
        scores = process(logits, rows, self._counts)  # [drafts, vocabulary]
        if self.config.verification == "coupled":
            tokens = choose(scores, rows)  # [drafts]
        else:
            # Traversal tests a token against the q it was drawn from, with noise of its own.
            tokens = draw(scores, rows, lanes=[len(row.path) for row in rows])
            for draft, q in zip(drafts, distribution(scores, rows), strict=True):
                draft.q.append(q)
        sure = scores.softmax(-1).gather(1, tokens.clamp(min=0)[:, None])[:, 0]  # [drafts]
        for draft, token, chance in zip(drafts, tokens.tolist(), sure.tolist(), strict=True):
            draft.append(token, chance)

    # ---- the search ----

    def review(self, batch: list[Request], trees: list[TokenTree], verdicts: list[Verdict]) -> None:
        """Now and then, try another set of layers on what was written last."""
        search = self._search
        if search is None or search.done:
            return
        for tree, verdict in zip(trees, verdicts, strict=True):
            held = len(verdict.kept)
            search.watch(held, reached=min(held + 1, len(tree)))
            self._unsearched += held + 1
        longest = max(batch, key=lambda request: len(request.output_ids))
        due = self._unsearched >= SEARCH_EVERY and len(longest.output_ids) >= SEARCH_TOKENS
        if due and self._compare(longest, search):
            self._unsearched = 0

    def _compare(self, request: Request, search: LayerSearch) -> bool:
        """False where no memory was free for it: a search may not push anybody out."""
        scratch = Request("", [], request.params, seed=0)
        if self._kv.available < SEARCH_TOKENS or not self._kv.reserve(scratch, SEARCH_TOKENS):
            return False
        try:
            both = (search.best, search.candidate)
            best, candidate = [self._likelihood(request, scratch.reserved, skip) for skip in both]
        finally:
            self._kv.commit(scratch, [])
        search.judge(best, candidate)
        return True

    def _likelihood(self, request: Request, slots: array, skip: frozenset[int]) -> list[float]:
        """log q of the last tokens that were written, each after the true text before it."""
        written = torch.tensor(request.output_ids[-SEARCH_TOKENS:])  # [SEARCH_TOKENS]
        start = len(request.tokens) - 1 - SEARCH_TOKENS
        text = request.tokens[start:-1]
        segment = Segment.chain(text, slots, request.slots[:start], logits_from=0)
        logits = self.target_runner.forward([segment], skip)  # [SEARCH_TOKENS, vocabulary]
        log_q = logits.float().log_softmax(-1)
        found: list[float] = log_q.gather(1, written.to(log_q.device)[:, None])[:, 0].tolist()
        return [max(x, LEAST_LIKELY) for x in found]


def _is_index(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


class _Draft:
    """One request's chain while it grows."""

    def __init__(self, request: Request, budget: int) -> None:
        self.request = request
        self.budget = budget
        self.tokens: list[int] = []
        self.confidence: list[float] = []
        self.q: list[Tensor] = []  # each [vocabulary]

    def append(self, token: int, chance: float) -> None:
        if token == NO_TOKEN:  # everything is banned here: the draft ends before
            self.budget = len(self.tokens)
            del self.q[self.budget :]
        else:
            self.tokens.append(token)
            self.confidence.append(chance)

    def next_segment(self) -> Segment:
        """The rows that have no KV yet: at first the text's last token, then the draft's."""
        request, done = self.request, len(self.tokens)
        if not done:
            pending = request.tokens[len(request.slots) :]
            slots = request.reserved[: request.pending]
            return Segment.chain(pending, slots, request.slots, logits_from=len(pending) - 1)
        before = request.pending + done - 1
        context = request.slots + request.reserved[:before]
        return Segment.chain(self.tokens[-1:], request.reserved[before : before + 1], context, 0)

    def tree(self, source: str) -> TokenTree:
        q = torch.stack(self.q) if self.q else None
        return TokenTree.chain(self.tokens, source, q, self.confidence)
