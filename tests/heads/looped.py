"""Drafters with their loop on the device, without a device: what is captured runs at every
replay."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from tests.engine.helpers import make_llm
from torch import Tensor

from outrider.core.request import Request
from outrider.core.tree import TokenTree
from outrider.drafters import block_loop, device_loop, fused_eagle3
from outrider.drafters.trained import TrainedDrafter
from outrider.engine.llm import LLM
from outrider.model.cuda import unfused
from outrider.model.cuda.guess import DEPTH, LIMIT
from outrider.model.cuda.inputs import (
    ANCESTORS,
    CONTEXT,
    LINE,
    OUTPUT_POSITION,
    POSITION,
    SAMPLE,
    SEED,
    SEGMENT,
    SLOT,
    TEMPERATURE,
    TILE_ROWS,
    TOKEN,
    RowInputs,
)
from outrider.model.cuda.slot_table import SlotTable
from outrider.sampling import guess
from outrider.sampling.noise import Key, Purpose, noise, streams


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

    def mark(self) -> Callable[[], None]:
        return lambda: None

    def wait(self) -> None:
        pass


def make_looped(target: str, config: dict[str, Any], fused: bool = False, **options: Any) -> LLM:
    """An engine whose drafter has a loop."""
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
    drafter: Any = engine.drafter.members[-1]
    table = SlotTable(engine.config.max_num_seqs, engine.max_model_len, torch.device("cpu"))
    for parameter in drafter.head.parameters():  # on a CPU, laid out for its own products
        parameter.data = parameter.data.contiguous()
    make = drafter.fused_loop if fused else drafter.make_loop
    drafter.loop = make(table, NoCapture())
    assert drafter.loop is not None
    return llm


class Watched:
    """Has every chain written a second time, pass by pass, and counts where they differ. Of what it
    then proposes, the first few tokens are right, in turn `right` of them."""

    def __init__(self, llm: LLM, right: list[int], texts: list[list[int]]) -> None:
        """`texts`: what the target writes, with prompts; none is the start of another."""
        self.drafter: Any = llm.engine.drafter
        self._propose = self.drafter.propose
        self.drafter.propose = self.propose
        self._right, self._texts = right, texts
        self.tokens = self.other = 0
        self.unsure = [0.0, 0.0]  # largest difference of a confidence, without noise and with it

    def propose(self, batch: list[Request], budgets: list[int]) -> list[TokenTree]:
        loop, entries = self.drafter.loop, getattr(self.drafter, "entries", None)
        may_write = {0, *(slot for request in batch for slot in request.reserved)}
        if entries is not None:
            unread = entries._written != entries._kv.generation
            may_write |= {slot for r in batch for slot in r.slots if unread[slot]}
        held = self._held()
        trees = self._propose(batch, budgets)
        changed = (self._held() != held).flatten(1).any(1).nonzero()[:, 0].tolist()
        assert may_write.issuperset(changed)
        written = None if entries is None else entries._written.copy()
        self.drafter.loop = None
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(guess, "LIKELY", self.drafter.vocabulary)  # as exact as the loop
            expected = self._propose(batch, budgets)
        self.drafter.loop = loop
        if entries is not None:
            assert (entries._written == written).all()  # both have read the same
        for request, tree, other in zip(batch, trees, expected, strict=True):
            assert tree.parents == other.parents
            self.tokens += len(tree)
            self.other += tree.tokens != other.tokens
            if tree.tokens == other.tokens and len(tree):
                sure = torch.tensor([tree.confidence, other.confidence])
                noisy = not request.params.greedy
                difference = float((sure[0] - sure[1]).abs().max())
                self.unsure[noisy] = max(self.unsure[noisy], difference)
        return [self._corrected(r, tree) for r, tree in zip(batch, trees, strict=True)]

    def _held(self) -> Tensor:
        """[slots, ...]: the drafter's own keys, those of a loop's blocks apart."""
        memory = getattr(self.drafter, "memory", None)
        if memory is None:
            return torch.zeros(0, 1)
        slots = len(self.drafter.entries._written)
        return memory.layers[0].keys[:slots].nan_to_num().clone()

    def _corrected(self, request: Request, tree: TokenTree) -> TokenTree:
        self._right.append(self._right.pop(0))
        known = len(request.tokens)
        text = next(text for text in self._texts if text[:known] == request.tokens)
        tokens = (text[known:][: self._right[0]] + tree.tokens)[: len(tree)]
        return TokenTree.chain(tokens, tree.source, confidence=tree.confidence)


# ---- the kernels once more, in plain torch: the interpreter takes seconds for a chain ----


def plain_attention(
    query: Tensor,  # [rows, heads, size]
    keys: Tensor,  # [slots, kv heads, size]
    values: Tensor,
    inputs: RowInputs,
    work: Any,
    scale: float,
    options: Any = None,
    out: Tensor | None = None,
) -> Tensor:
    out = torch.zeros_like(query) if out is None else out
    for row in range(inputs.rows):
        at = {field: int(inputs.field(field)[row]) for field in (LINE, CONTEXT, SEGMENT, ANCESTORS)}
        nodes = [j for j in range(64) if at[ANCESTORS] >> j & 1]
        if not nodes:  # padding
            continue
        slots = [*inputs.table[at[LINE], : at[CONTEXT]].tolist()]
        slots += inputs.field(SLOT)[at[SEGMENT] :][nodes].tolist()
        shared = query.shape[1] // keys.shape[1]
        k = keys[slots].repeat_interleave(shared, 1)  # [keys, heads, size]
        v = values[slots].repeat_interleave(shared, 1)
        weights = (torch.einsum("hd,khd->hk", query[row], k) * scale).softmax(-1)
        out[row] = torch.einsum("hk,khd->hd", weights, v)
    return out


def plain_guess(
    logits: Tensor, inputs: RowInputs, work: Any, out: Tensor, sure: Tensor | None = None
) -> None:
    for row, scores in enumerate(logits.float()):
        at = inputs.packed.view(-1, inputs.rows)[:, row]  # [fields]
        temperature = at[TEMPERATURE].to(torch.int32).view(torch.float32)
        if temperature:
            key = Key(int(at[SEED]), int(at[SAMPLE]), int(at[OUTPUT_POSITION]), Purpose.CHOICE)
            scores = scores / temperature + noise(streams([key]), len(scores))[0]
        token = int(scores.argmax())
        out[at[DEPTH], 0, row] = token
        out[at[DEPTH], 1, row] = scores.softmax(-1)[token] if sure is None else sure[row]
        at[TOKEN] = token
        for field in (POSITION, OUTPUT_POSITION, DEPTH):
            at[field] += 1
        goes_on = int(at[POSITION]) <= int(at[LIMIT])
        at[SLOT] = inputs.table[at[LINE], at[POSITION]] if goes_on else 0
        at[CONTEXT] = at[POSITION] if goes_on else 0
        at[ANCESTORS] = at[TILE_ROWS] = int(goes_on)


def use_plain_kernels(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(unfused, "tree_attention", plain_attention)
    patch.setattr(block_loop, "tree_attention", plain_attention)
    patch.setattr(fused_eagle3, "tree_attention", plain_attention)
    patch.setattr(device_loop, "guess_and_move_on", plain_guess)
