"""The target drafts for itself, with some of its layers left out."""

from array import array
from typing import Any

import torch
from torch import Tensor

from outrider.core.errors import ConfigError
from outrider.core.request import Request
from outrider.core.tree import TokenTree
from outrider.core.verdict import Verdict
from outrider.drafters.base import DraftConfig
from outrider.drafters.growing import GrowingDrafter
from outrider.drafters.growth import Draft
from outrider.drafters.layer_search import LayerSearch
from outrider.drafters.level import level_segments
from outrider.model.kv import KVCache
from outrider.model.loading import LoadedModel
from outrider.model.segment import Segment
from outrider.sampling.counts import Counts

SEARCH_EVERY = 64  # written tokens per comparison of two sets of layers: what the search may cost
SEARCH_TOKENS = 32  # on which they are compared
LEAST_LIKELY = -16.0  # log-likelihoods are cut here: one token may not decide a comparison


class EarlyExitDrafter(GrowingDrafter):
    """`exit_layer` runs only so many of the first layers, `skip_layers` all but those it names.

    Either way the target's own norm and head follow, and its own KV is what precedes. A draft
    writes into the slots of its nodes, where verification then computes all layers anew: nothing
    has to be kept or cleaned up.

    By default the layers to skip are searched. Leaving from a middle layer needs a model that was
    trained for it; in others the last layers are the ones that matter most.
    """

    name = "early_exit"
    options = {"exit_layer": None, "skip_layers": None, **GrowingDrafter.options}  # noqa: RUF012
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
        super().reset()
        self._search = LayerSearch(self._layers) if self._fixed is None else None
        self._unsearched = 0  # tokens written since two sets were last compared

    @property
    def skip(self) -> frozenset[int]:
        return self._search.best if self._search else self._fixed or frozenset()

    def bind(self, kv: KVCache) -> None:
        self._kv = kv
        self.counts = Counts(self.target_runner.vocabulary, self.target_runner.device)

    def release(self, request: Request) -> None:
        self.counts.release(request)

    # ---- drafting ----

    def _deepest(self, request: Request) -> int:
        return self.target_runner.loaded.context_length - len(request.tokens)

    def _read(self, requests: list[Request]) -> Tensor:
        """Only the text's last token has no KV of the target's yet."""
        segments = [
            Segment.chain(
                request.tokens[len(request.slots) :],
                request.reserved[: request.pending],
                request.slots,
                logits_from=request.pending - 1,
            )
            for request in requests
        ]
        return self.target_runner.forward(segments, self.skip)

    def _pass(self, drafts: list[Draft]) -> Tensor:
        segments = [segment for draft in drafts for segment in level_segments(draft)]
        return self.target_runner.forward(segments, self.skip)

    # ---- the search ----

    def review(self, batch: list[Request], trees: list[TokenTree], verdicts: list[Verdict]) -> None:
        """Now and then, try another set of layers on what was written last."""
        super().review(batch, trees, verdicts)
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
