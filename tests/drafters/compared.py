"""Drafters that are held against a fresh one at every row."""

from typing import Any

import torch
from tests.engine.helpers import Models, fed_back, make_llm, registered
from torch import Tensor

from outrider.core.request import Request
from outrider.core.tree import ROOT, TokenTree
from outrider.drafters.draft_model import DraftModelDrafter
from outrider.drafters.growing import GrowingDrafter
from outrider.drafters.growth import Draft
from outrider.engine.llm import LLM


class Comparing(GrowingDrafter):
    """Compares the logits of every draft row with those of a fresh drafter for the same text,
    pauses where it is told to, and does with its trees what a policy may do."""

    def fresh(self, request: Request, path: list[int]) -> Tensor:
        """[vocabulary]: what the logits after the request's text and `path` should be."""
        raise NotImplementedError

    def __init__(self, config: Any, target: Any) -> None:
        super().__init__(config, target)
        self.pauses: list[bool] = []  # per call and request, in turn; then none
        self.meddles: list[int] = []  # per tree, in turn: what is done to it; then nothing
        self.rows = self.paused = 0
        self.worst = 0.0

    def propose(self, batch: list[Request], budgets: list[int]) -> list[TokenTree]:
        for i in range(len(batch)):
            if self.pauses and self.pauses.pop():
                budgets = [*budgets[:i], 0, *budgets[i + 1 :]]
                self.paused += 1
        trees = super().propose(batch, budgets)
        if self.config.verification == "traversal":
            return trees  # drawn ones must be checked as they are
        return [self._meddled(tree) for tree in trees]

    def _meddled(self, tree: TokenTree) -> TokenTree:
        """As it is; or without the first branch; or behind others' nodes; or replaced."""
        how = self.meddles.pop() if self.meddles else 0
        if how == 0 or not len(tree):
            return tree
        if how == 1:
            return tree.select([node for node in range(len(tree)) if tree.path(node)[0] != 0])
        if how == 2:
            return TokenTree([9, *tree.tokens[:-1]], [-1, *_shifted(tree.parents[:-1])], "merged")
        return TokenTree([token ^ 1 for token in tree.tokens], tree.parents, "other")

    def _extend(self, drafts: list[Draft], logits: Tensor) -> None:
        nodes = [(draft, node) for draft in drafts for node in draft.frontier]
        spread = logits if self.known is None else self.known.spread(logits)
        for (draft, node), row in zip(nodes, spread, strict=True):
            self.compare(draft.request, draft.path_tokens(node), row)
        super()._extend(drafts, logits)

    def compare(self, request: Request, path: list[int], row: Tensor) -> None:
        """row [vocabulary]: the logits after the request's text and `path`."""
        fresh = self.fresh(request, path)
        width = min(len(fresh), len(row))
        fresh, row = fresh[:width], row[:width]
        possible = fresh > -torch.inf
        assert torch.equal(possible, row > -torch.inf)
        self.worst = max(self.worst, float((fresh - row)[possible].abs().max()))
        self.rows += 1


class Compared(Comparing, DraftModelDrafter):
    name = "compared"

    def fresh(self, request: Request, path: list[int]) -> Tensor:
        return fed_back(self.option("model"), [*request.tokens, *path])[-1]


def _shifted(parents: list[int]) -> list[int]:
    """As they are numbered behind one more node."""
    return [parent if parent == ROOT else parent + 1 for parent in parents]


def make_compared(
    models: Models, length: int = 3, draft: dict[str, Any] | None = None, **options: Any
) -> LLM:
    """`draft` are further options of the drafter, `options` those of the engine."""
    config = {"method": "compared", "model": models.noisy, "num_speculative_tokens": length}
    config |= draft or {}
    with registered(Compared):
        return make_llm(models.target, config, **options)


def drafter_of(llm: LLM) -> Any:
    return llm.engine.drafter
