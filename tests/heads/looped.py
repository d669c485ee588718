"""Drafters with their loop on the device, without a device: what is captured runs at every replay,
in Triton's interpreter."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from tests.engine.helpers import make_llm
from torch import Tensor

from outrider.core.request import Request
from outrider.core.tree import TokenTree
from outrider.drafters.trained import TrainedDrafter
from outrider.engine.llm import LLM
from outrider.model.cuda.slot_table import SlotTable


class NoCapture:
    """Stands for `Capture`. Like it, it runs a function once when that is captured."""

    def __init__(self) -> None:
        self.captured = self.replays = 0

    def active(self) -> AbstractContextManager[None]:
        return nullcontext()

    def __call__(self, run: Callable[[], None]) -> Callable[[], None]:
        self.captured += 1
        run()

        def replay() -> None:
            self.replays += 1
            run()

        return replay

    def host_memory(self, size: int, dtype: torch.dtype) -> Tensor:
        return torch.zeros(size, dtype=dtype)

    def wait(self) -> None:
        pass


def make_looped(target: str, config: dict[str, Any], **options: Any) -> LLM:
    """An engine whose drafter has a loop, and checks every chain of it against its passes."""
    allowed = TrainedDrafter.may_loop
    TrainedDrafter.may_loop = True  # type: ignore[assignment, method-assign]
    checked = TrainedDrafter.bind
    TrainedDrafter.bind = lambda self, kv: self._allocate(kv)  # type: ignore[method-assign]
    try:
        llm = make_llm(target, config, **options)
    finally:
        TrainedDrafter.may_loop = allowed  # type: ignore[method-assign]
        TrainedDrafter.bind = checked  # type: ignore[method-assign]
    engine = llm.engine
    drafter: Any = engine.drafter
    table = SlotTable(engine.config.max_num_seqs, engine.max_model_len, torch.device("cpu"))
    drafter.loop = drafter.make_loop(table, NoCapture())
    return llm


class Watched:
    """Has every chain written a second time, pass by pass, and counts where they differ."""

    def __init__(self, llm: LLM) -> None:
        self.drafter: Any = llm.engine.drafter
        self._propose = self.drafter.propose
        self.drafter.propose = self.propose
        self.chains = self.tokens = self.other = 0
        self.unsure = 0.0  # largest difference of a confidence

    def propose(self, batch: list[Request], budgets: list[int]) -> list[TokenTree]:
        loop, entries = self.drafter.loop, getattr(self.drafter, "entries", None)
        trees = self._propose(batch, budgets)
        written = entries and entries._written.copy()
        self.drafter.loop = None
        expected = self._propose(batch, budgets)
        self.drafter.loop = loop
        if entries is not None:
            assert (entries._written == written).all()  # both have read the same
        for tree, other in zip(trees, expected, strict=True):
            assert tree.parents == other.parents
            self.chains += 1
            self.tokens += len(tree)
            same = tree.tokens == other.tokens
            self.other += not same
            if same and len(tree):
                sure = torch.tensor([tree.confidence, other.confidence])
                self.unsure = max(self.unsure, float((sure[0] - sure[1]).abs().max()))
        return trees
