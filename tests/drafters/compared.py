"""A draft model that is held against a fresh one at every row."""

from typing import Any

from tests.engine.helpers import Models, fed_back, make_llm, registered
from torch import Tensor

from outrider.core.request import Request
from outrider.core.tree import TokenTree
from outrider.drafters.draft_model import DraftModelDrafter
from outrider.engine.llm import LLM


class Compared(DraftModelDrafter):
    """Compares the logits of every draft row with a fresh pass over the same text, and pauses
    where it is told to."""

    name = "compared"

    def __init__(self, config: Any, target: Any) -> None:
        super().__init__(config, target)
        self.pauses: list[bool] = []  # per call and request, in turn; then none
        self.rows = self.paused = 0
        self.worst = 0.0

    def propose(self, batch: list[Request], budgets: list[int]) -> list[TokenTree]:
        for i in range(len(batch)):
            if self.pauses and self.pauses.pop():
                budgets = [*budgets[:i], 0, *budgets[i + 1 :]]
                self.paused += 1
        return super().propose(batch, budgets)

    def _extend(self, drafts: list[Any], logits: Tensor) -> None:
        for draft, row in zip(drafts, logits, strict=True):
            text = [*draft.request.tokens, *draft.tokens]
            fresh = fed_back(self.option("model"), text)[-1]
            width = min(len(fresh), len(row))
            self.worst = max(self.worst, float((fresh[:width] - row[:width]).abs().max()))
            self.rows += 1
        super()._extend(drafts, logits)


def make_compared(models: Models, length: int = 3, **options: Any) -> LLM:
    config = {"method": "compared", "model": models.noisy, "num_speculative_tokens": length}
    with registered(Compared):
        return make_llm(models.target, config, **options)


def drafter_of(llm: LLM) -> Any:
    return llm.engine.drafter
