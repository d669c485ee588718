"""What drafters with weights of their own, trained for one target, have in common."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from outrider.core.errors import ConfigError
from outrider.core.request import Request
from outrider.core.tree import TokenTree
from outrider.drafters.base import DraftConfig, Drafter
from outrider.drafters.growing import GrowingDrafter
from outrider.drafters.loop_text import TEXTS, Shape, Text
from outrider.heads.files import Files
from outrider.heads.formats import WORDS, kind_of
from outrider.heads.head import Head, Target
from outrider.model.kv import KVCache
from outrider.model.layout import lay_out_for_few_rows
from outrider.model.loading import LoadedModel, choose_dtype
from outrider.model.zoo import ZOO
from outrider.sampling.counts import Counts
from outrider.sampling.guess import Known

if TYPE_CHECKING:
    from outrider.drafters.device_loop import DeviceLoop
    from outrider.model.cuda.capture import Capture
    from outrider.model.cuda.slot_table import SlotTable

Reader = Callable[[Files, Target, torch.dtype, torch.device, int], Head]


class TrainedDrafter(GrowingDrafter):
    """`model` names the drafter's files. A subclass says how they are `read` and gives logits over
    the drafter's own tokens; here they become the target's."""

    options = {  # noqa: RUF012
        "model": None,
        "revision": None,
        "dtype": None,
        **GrowingDrafter.options,
    }
    kind: ClassVar[str]  # of files, as `kind_of` tells it
    read: Reader  # a static method
    head: Any
    known: Known
    loop: "DeviceLoop | None" = None
    loop_way = "level by level"  # how drafts are made, in words

    def __init__(self, config: DraftConfig, target: LoadedModel) -> None:
        super().__init__(config, target)
        files = self._files(config, target)
        self.record = files.record
        dtype = choose_dtype(config.options.get("dtype") or target.dtype, target.device)
        shape = Target.of(target.model)
        self.head = self.read(files, shape, dtype, target.device, target.context_length)
        self.head.borrow(shape)
        lay_out_for_few_rows(self.head)
        self.needs_hidden = self.head.taps
        self.vocabulary = shape.vocabulary
        self.dtype, self.device = dtype, target.device
        self._longest_text = target.context_length
        self.ids = self.head.ids(shape.vocabulary)  # [draft vocabulary]
        self.known = Known.of(self.ids, shape.vocabulary)
        self.counts = Counts(shape.vocabulary, target.device)

    @classmethod
    def audit_config(cls, target: str) -> dict[str, Any]:
        from outrider.heads.untrained import untrained

        return {"method": cls.name, "model": untrained(cls.kind, target)}

    def _files(self, config: DraftConfig, target: LoadedModel) -> Files:
        name = config.options.get("model")
        if not isinstance(name, str):
            raise ConfigError(f"drafter {config.method!r} needs a 'model': a folder or hub id")
        files = Files.of(name, config.options.get("revision"), sure=True)
        kind = kind_of(files)
        if kind != self.kind:
            found = "an ordinary model" if kind is None else WORDS[kind]
            remedy = "'draft_model'" if kind is None else f"{kind!r}, or none at all"
            raise ConfigError(
                f"{files.name!r} holds {found}, and method {config.method!r} needs "
                f"{WORDS[self.kind]}; give method {remedy}"
            )
        return files

    def _usual_tree(self, target: LoadedModel) -> str:
        """A GPU makes chains without its host. Elsewhere a level of many guesses takes little
        longer than of one, and the policy weighs depth and width."""
        free = self.config.num_speculative_tokens is None
        coupled = self.config.verification == "coupled"
        return "confidence" if free and coupled and target.device.type == "cpu" else "chain"

    # ---- the loop on the device, which every kind of drafter makes its own ----

    @property
    def loop_shape(self) -> Shape:
        raise NotImplementedError

    def make_loop(self, table: "SlotTable", cuda: "Capture") -> "DeviceLoop":
        raise NotImplementedError

    def fused_loop(self, table: "SlotTable", cuda: "Capture") -> "DeviceLoop | None":
        """The same with kernels for the head's layers, where there are any for them."""
        return None

    def texts(self, requests: list[Request], guesses: list[int]) -> list[Text]:
        """For the loop, which will have read all of these texts once it has run."""
        raise NotImplementedError

    @property
    def logits_like(self) -> dict[str, Any]:
        """dtype and device of the head's logits."""
        weight = self.head.lm_head.weight
        return {"dtype": weight.dtype, "device": weight.device}

    @property
    def may_loop(self) -> bool:
        """Whether drafts can be made on the device without the host: chains whose tokens the
        target chooses, too, where the target's passes are graphs. Before anything is bound: where
        they might be."""
        fitting = self._tree == "chain" and self.config.verification == "coupled"
        fitting = fitting and (self.head.config is None or self.head.rotary.fixed)
        runner = getattr(self, "target_runner", None)
        return fitting and self.device.type == "cuda" and (runner is None or bool(runner.graphs))

    @property
    def workspace_bytes(self) -> int:
        if not self.may_loop:
            return 0
        try:
            from outrider.drafters.device_loop import bytes_of_loop
        except ImportError:  # no Triton, no graphs
            return 0
        element = self.logits_like["dtype"].itemsize
        return bytes_of_loop(self.loop_shape, len(self.ids), self._longest_text, element)

    def bind(self, kv: KVCache) -> None:
        self._allocate(kv)
        if self.may_loop:
            from outrider.drafters.loop_check import checked_loop

            self.loop, self.loop_way = checked_loop(self, kv)

    def _allocate(self, kv: KVCache) -> None:
        """The pool exists now."""

    def propose(self, batch: list[Request], budgets: list[int]) -> list[TokenTree]:
        if self.loop is None:
            return super().propose(batch, budgets)
        guesses = [
            max(0, min(budget, self._deepest(request)))
            for request, budget in zip(batch, budgets, strict=True)
        ]
        looped = [
            i
            for i, request in enumerate(batch)
            if guesses[i] and self.loop.fits(request, guesses[i])
        ]
        others = sorted({*range(len(batch))}.difference(looped))
        trees: dict[int, TokenTree] = {}
        if others:
            level_by_level = super().propose(
                [batch[i] for i in others], [budgets[i] for i in others]
            )
            trees |= dict(zip(others, level_by_level, strict=True))
        for start in range(0, len(looped), TEXTS[-1]):
            part = looped[start : start + TEXTS[-1]]
            found = self.loop(self.texts([batch[i] for i in part], [guesses[i] for i in part]))
            for i, (tokens, confidence) in zip(part, found, strict=True):
                trees[i] = TokenTree.chain(tokens, self.name, confidence=confidence)
        return [trees[i] for i in range(len(batch))]

    # ---- the rest ----

    @property
    def prepared(self) -> int:
        return 0 if self.loop is None else self.loop.captured

    def project(self, states: Tensor) -> Tensor:
        projected: Tensor = self.head.project(states.to(self.dtype))
        return projected

    def release(self, request: Request) -> None:
        self.counts.release(request)

    def _deepest(self, request: Request) -> int:
        return self._longest_text - len(request.tokens)


def trained_drafter(config: DraftConfig) -> type[Drafter] | None:
    """The drafter for the files that `model` names; None where they hold an ordinary model."""
    from outrider.drafters.registry import drafter_class

    name = config.options.get("model")
    if not isinstance(name, str) or name in ZOO:
        return None
    kind = kind_of(Files.of(name, config.options.get("revision")))
    return None if kind is None else drafter_class(kind)
