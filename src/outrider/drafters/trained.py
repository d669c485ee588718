"""What drafters with weights of their own, trained for one target, have in common."""

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor

from outrider.core.errors import ConfigError
from outrider.core.request import Request
from outrider.drafters.base import DraftConfig, Drafter
from outrider.drafters.growing import GrowingDrafter
from outrider.heads.files import Files
from outrider.heads.formats import WORDS, kind_of
from outrider.heads.head import Head, Target
from outrider.model.layout import lay_out_for_few_rows
from outrider.model.loading import LoadedModel, choose_dtype
from outrider.model.zoo import ZOO
from outrider.sampling.counts import Counts

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

    def __init__(self, config: DraftConfig, target: LoadedModel) -> None:
        super().__init__(config, target)
        files = self._files(config, target)
        dtype = choose_dtype(config.options.get("dtype") or target.dtype, target.device)
        shape = Target.of(target.model)
        self.head = self.read(files, shape, dtype, target.device, target.context_length)
        lay_out_for_few_rows(self.head)  # now: what it borrows from the target has its layout
        self.head.borrow(shape)
        self.needs_hidden = self.head.taps
        self.vocabulary = shape.vocabulary
        self.dtype, self.device = dtype, target.device
        self._longest_text = target.context_length
        self._ids = self.head.ids(shape.vocabulary)  # [draft vocabulary]
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

    def project(self, states: Tensor) -> Tensor:
        projected: Tensor = self.head.project(states.to(self.dtype))
        return projected

    def release(self, request: Request) -> None:
        self.counts.release(request)

    def _deepest(self, request: Request) -> int:
        return self._longest_text - len(request.tokens)

    def _over_targets_tokens(self, logits: Tensor) -> Tensor:
        """[rows, draft vocabulary] -> [rows, vocabulary]: tokens that it does not know, never."""
        if self.head.d2t is None:
            return logits
        full = logits.new_full((len(logits), self.vocabulary), -torch.inf)
        return full.index_copy_(1, self._ids, logits)


def trained_drafter(config: DraftConfig) -> type[Drafter] | None:
    """The drafter for the files that `model` names; None where they hold an ordinary model."""
    from outrider.drafters.registry import drafter_class

    name = config.options.get("model")
    if not isinstance(name, str) or name in ZOO:
        return None
    kind = kind_of(Files.of(name, config.options.get("revision")))
    return None if kind is None else drafter_class(kind)
