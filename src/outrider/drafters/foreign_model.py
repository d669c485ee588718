"""Draft models with another tokenizer than the target's: by common tokens, or by strings."""

import logging
from math import ceil
from typing import Literal

import torch
from torch import Tensor

from outrider.core.errors import ConfigError
from outrider.core.request import Request
from outrider.core.tree import TokenTree
from outrider.drafters.base import DraftConfig, Drafter
from outrider.drafters.draft_model import CATCH_UP_ROWS, DraftModelDrafter
from outrider.drafters.foreign_text import ForeignTexts, Shadow
from outrider.drafters.growing import GrowingDrafter
from outrider.drafters.growth import Draft
from outrider.drafters.string_draft import StringDraft
from outrider.drafters.translation import (
    EncodedView,
    Intersection,
    MappedView,
    Overlap,
    compare_cuts,
)
from outrider.drafters.vocabulary import Vocabulary, same_vocabulary
from outrider.drafters.worth import Worth
from outrider.model.kv import KVCache
from outrider.model.loading import LoadedModel
from outrider.model.runner import Runner
from outrider.sampling.counts import Counts

log = logging.getLogger(__name__)

Translation = Literal["intersection", "strings"]
TRANSLATIONS = (None, "intersection", "strings")
# Share of tokens cut alike from which on drafting in common tokens is the better way. Where the
# target's next token is not a common one such a chain ends; strings only take a pass more.
ALIKE = 0.95
FIRST = 4  # tokens tried for the first place of a draft by strings


def needs_translation(config: DraftConfig, target: LoadedModel, loaded: LoadedModel) -> bool:
    """Whether the draft model's ids mean something else, or the user wants them translated."""
    named, hint = _options(config)
    if named is not None:
        return True
    widths = [int(one.model.get_output_embeddings().weight.shape[0]) for one in (target, loaded)]
    return hint is not False and not same_vocabulary(target, loaded, *widths)


def _options(config: DraftConfig) -> tuple[Translation | None, bool | None]:
    named = config.options.get("translation")
    if named not in TRANSLATIONS:
        raise ConfigError(f"translation={named!r} must be 'intersection' or 'strings', or left out")
    hint = config.options.get("use_heterogeneous_vocab")
    if hint not in (None, True, False):
        raise ConfigError(f"use_heterogeneous_vocab={hint!r} must be True or False")
    return named, hint


def foreign_drafter(config: DraftConfig, target: LoadedModel, loaded: LoadedModel) -> Drafter:
    """The drafter that suits how alike the two tokenizers are, unless the user has chosen."""
    runner = Runner(loaded)
    width = int(target.model.get_output_embeddings().weight.shape[0])
    ours, theirs = Vocabulary(target, width), Vocabulary(loaded, runner.vocabulary)
    pair = Intersection(ours, theirs, target.device)
    overlap = compare_cuts(ours, theirs)
    named, hint = _options(config)  # vLLM's hint asks for the intersection, the only way it knows
    bushy = config.options.get("tree", "chain") != "chain"  # needs the target's ids, too
    alike = hint or bushy or overlap.common >= ALIKE
    chosen = named or ("intersection" if alike else "strings")
    log.info(
        "draft model %s has another vocabulary than %s: %d tokens in common, %.0f %% of a sample "
        "cut alike; translating by %s",
        loaded.name,
        target.name,
        len(pair),
        100 * overlap.common,
        chosen,
    )
    kind = IntersectionDrafter if chosen == "intersection" else StringsDrafter
    return kind(config, target, runner, pair, overlap)


class ForeignModelDrafter(Drafter):
    """What both ways share. The draft model reads the text in tokens and slots of its own."""

    name = DraftModelDrafter.name
    options = DraftModelDrafter.options
    longest = DraftModelDrafter.longest
    translation: Translation

    def _set_up(self, texts: ForeignTexts, overlap: Overlap) -> None:
        self.texts, self.overlap = texts, overlap
        self.bytes_per_slot = texts.bytes_per_slot

    @property
    def runners(self) -> dict[Runner, int]:
        return {self.texts.runner: CATCH_UP_ROWS}

    def bind(self, kv: KVCache) -> None:
        self.texts.bind(kv)

    def backlog(self, request: Request) -> int:
        return self.texts.backlog(request)

    def release(self, request: Request) -> None:
        self.texts.release(request)


class IntersectionDrafter(ForeignModelDrafter, GrowingDrafter):
    """Drafts in the tokens that both models have: there its logits are logits of the target's ids,
    and all that a drafter of the same vocabulary does with logits is done with these.
    """

    translation = "intersection"

    def __init__(
        self,
        config: DraftConfig,
        target: LoadedModel,
        runner: Runner,
        pair: Intersection,
        overlap: Overlap,
    ) -> None:
        super().__init__(config, target)
        if not len(pair):
            raise ConfigError(
                f"draft model {runner.loaded.name} has no token in common with {target.name}; "
                "use translation='strings'"
            )
        self.pair = pair
        self.counts = Counts(pair.target.width, target.device)
        self._set_up(ForeignTexts(runner, pair, MappedView, overlap.ratio), overlap)
        self._ready: dict[Request, Shadow] = {}  # of the step under way

    def _grow(
        self, batch: list[Request], budgets: list[int], depth: int, worth: Worth
    ) -> list[TokenTree]:
        self._ready = self.texts.follow(batch, budgets)
        trees = super()._grow(batch, budgets, depth, worth)
        self._ready = {}
        return trees

    def release(self, request: Request) -> None:
        super().release(request)
        self.counts.release(request)

    def _deepest(self, request: Request) -> int:
        return self._ready[request].room if request in self._ready else 0

    def _read(self, requests: list[Request]) -> Tensor:
        return self.pair.scatter(self.texts.read([self._ready[request] for request in requests]))

    def _pass(self, drafts: list[Draft]) -> Tensor:
        nodes = []
        for draft in drafts:
            for node in draft.frontier:
                ids = [self.pair.to_draft[token] for token in draft.path_tokens(node)]
                places = [draft.place(at) for at in draft.path(node)]
                nodes.append((self._ready[draft.request], list(zip(places, ids))))
        return self.pair.scatter(self.texts.go_on(nodes))


class StringsDrafter(ForeignModelDrafter):
    """Drafts greedily in tokens of its own; the target's tokenizer cuts what was written."""

    translation = "strings"

    def __init__(
        self,
        config: DraftConfig,
        target: LoadedModel,
        runner: Runner,
        pair: Intersection,
        overlap: Overlap,
    ) -> None:
        super().__init__(config, target)
        if self.option("tree") != "chain":
            raise ConfigError(
                f"tree={self.option('tree')!r} needs probabilities of the target's tokens, which "
                "translation='strings' does not have; use translation='intersection'"
            )
        self._set_up(ForeignTexts(runner, pair, EncodedView, overlap.ratio), overlap)

    def propose(self, batch: list[Request], budgets: list[int]) -> list[TokenTree]:
        ratio = self.overlap.ratio  # draft tokens per target token, usually
        most = [ceil(1.5 * ratio * budget) + 1 if budget else 0 for budget in budgets]
        least = [ceil(min(1.0, ratio) * budget) for budget in budgets]
        ready = self.texts.follow(batch, most)
        drafts = {
            request: StringDraft(request, ready[request], self.texts.pair, budget, few, many)
            for request, budget, few, many in zip(batch, budgets, least, most, strict=True)
            if request in ready
        }
        active = list(drafts.values())
        if active:
            self._extend(active, self.texts.read([draft.shadow for draft in active]))
        while active := [draft for draft in active if not draft.done]:
            paths = [(draft.shadow, list(enumerate(draft.ids))) for draft in active]
            self._extend(active, self.texts.go_on(paths))
        return [
            drafts[request].tree(self.name) if request in drafts else TokenTree.empty()
            for request in batch
        ]

    def _extend(self, drafts: list[StringDraft], logits: Tensor) -> None:
        """logits [drafts, draft ids]"""
        logits = logits.float()
        best, ids = logits.topk(FIRST, -1)
        chances = (best - torch.logsumexp(logits, -1, keepdim=True)).exp()
        for draft, some, likely in zip(drafts, ids.tolist(), chances.tolist(), strict=True):
            draft.extend(some, likely)
