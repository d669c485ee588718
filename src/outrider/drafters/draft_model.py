"""A smaller model with the target's vocabulary writes ahead."""

from typing import Any

import torch
from torch import Tensor

from outrider.core.errors import ConfigError
from outrider.core.request import Request
from outrider.core.verdict import Span
from outrider.drafters.base import DraftConfig, Drafter
from outrider.drafters.entries import Entries
from outrider.drafters.growing import GrowingDrafter
from outrider.drafters.growth import Draft
from outrider.drafters.level import level_segments
from outrider.drafters.vocabulary import check_same_vocabulary
from outrider.model.kv import KVCache
from outrider.model.loading import LoadedModel, fix_rotary, load_model
from outrider.model.runner import Runner
from outrider.model.segment import Segment
from outrider.sampling.counts import Counts

CATCH_UP_ROWS = 512  # rows of one catch-up pass: bounds its memory


class DraftModelDrafter(GrowingDrafter):
    """Its KV lies in the target's slots. Per slot it notes which text its entry belongs to, so
    that whatever happened on the way, what is missing is found and computed.
    """

    name = "draft_model"
    options = {  # noqa: RUF012
        "model": None,
        "revision": None,
        "dtype": None,
        "quantization": None,  # int8 or int4
        "translation": None,  # where the tokenizers differ: see foreign_model.py
        "use_heterogeneous_vocab": None,
        **GrowingDrafter.options,
    }
    longest = 4

    def __init__(
        self, config: DraftConfig, target: LoadedModel, loaded: LoadedModel | None = None
    ) -> None:
        super().__init__(config, target)
        loaded = loaded or load_draft(config, target)
        self.runner = Runner(loaded)
        self.vocabulary = _width(target)
        check_same_vocabulary(target, loaded, self.vocabulary, self.runner.vocabulary)
        self.bytes_per_slot = self.runner.bytes_per_slot
        self.counts = Counts(self.vocabulary, target.device)

    @classmethod
    def make(cls, config: DraftConfig, target: LoadedModel) -> Drafter:
        """A draft model with another tokenizer needs another drafter; so do files that hold no
        model but heads that were trained for a target."""
        if cls is not DraftModelDrafter:
            return cls(config, target)
        from outrider.drafters.foreign_model import foreign_drafter, needs_translation
        from outrider.drafters.trained import trained_drafter

        cls.check_options(config)
        trained = trained_drafter(config)
        if trained is not None:
            return trained.make(config, target)
        loaded = load_draft(config, target)
        if needs_translation(config, target, loaded):
            return foreign_drafter(config, target, loaded)
        return cls(config, target, loaded)

    @classmethod
    def audit_config(cls, target: str) -> dict[str, Any]:
        return {"method": cls.name, "model": target}

    @property
    def runners(self) -> dict[Runner, int]:
        return {self.runner: CATCH_UP_ROWS}

    def bind(self, kv: KVCache) -> None:
        self.runner.allocate(kv.total)
        self.runner.speed_up()
        self.entries = Entries(kv)

    def observe(self, spans: list[Span]) -> None:
        self.entries.settle(spans)

    def release(self, request: Request) -> None:
        self.entries.release(request)
        self.counts.release(request)

    def backlog(self, request: Request) -> int:
        """Beyond the last token, which every draft starts with."""
        return len(request.tokens) - 1 - self.entries.valid(request)

    def _deepest(self, request: Request) -> int:
        return self.runner.loaded.context_length - len(request.tokens)

    def _read(
        self, requests: list[Request], ahead: dict[Request, list[int]] | None = None
    ) -> Tensor:
        """Compute what is missing of each text, and in the same pass the chain `ahead` of it.

        Logits [requests + tokens ahead, vocabulary]: after each text, then after each of the
        tokens ahead of it.
        """
        logits: dict[Request, Tensor] = {}
        for request in requests:
            self.entries.begin(request)
        missing = [(request, self.entries.valid(request)) for request in requests]
        while missing:
            segments, left, room = [], [], CATCH_UP_ROWS
            for request, start in missing:
                end = min(len(request.tokens), start + room)
                if end > start:
                    chain = (ahead or {}).get(request, [])
                    segments.append((request, _text_segment(request, start, end, chain)))
                    room -= end - start
                if end < len(request.tokens):
                    left.append((request, end))
            rows = self._forward([segment for _, segment in segments])
            for request, segment in segments:
                count = len(segment) - segment.logits_from
                if count:
                    logits[request], rows = rows[:count], rows[count:]
            missing = left
        for request in requests:
            self._note(request, [], (ahead or {}).get(request, []))
        return torch.cat([logits[request] for request in requests])

    def _pass(self, drafts: list[Draft]) -> Tensor:
        logits = self._forward([segment for draft in drafts for segment in level_segments(draft)])
        for draft in drafts:
            nodes = draft.request.reserved[draft.request.pending :]
            for node in draft.frontier:
                slot = nodes[draft.place(node)]
                self.entries.note(draft.request, slot, draft.path_tokens(node))
        return logits

    def _note(self, request: Request, before: list[int], chain: list[int]) -> None:
        """Entries of `chain` have been computed, after the drafted tokens `before`."""
        nodes = request.reserved[request.pending + len(before) :]
        for i, slot in enumerate(nodes[: len(chain)]):
            self.entries.note(request, slot, [*before, *chain[: i + 1]])

    def _forward(self, segments: list[Segment]) -> Tensor:
        """[rows that need them, the target's vocabulary]; padding of either side is cut or -inf."""
        for segment in segments:  # ids that only the target has, its padding, are read as our last
            segment.tokens = [min(token, self.runner.vocabulary - 1) for token in segment.tokens]
        logits = self.runner.forward(segments)
        for segment in segments:
            self.entries.write(segment.slots)
        if logits.shape[1] >= self.vocabulary:
            return logits[:, : self.vocabulary]
        missing = self.vocabulary - logits.shape[1]
        return torch.nn.functional.pad(logits, (0, missing), value=float("-inf"))


def load_draft(config: DraftConfig, target: LoadedModel) -> LoadedModel:
    """The model that `config` names, on the target's device and, unless told, in its precision."""
    name = config.options.get("model")
    if not isinstance(name, str):
        raise ConfigError(
            f"drafter {config.method!r} needs a 'model': a name, folder or .gguf file"
        )
    loaded = load_model(
        name,
        revision=config.options.get("revision"),
        dtype=config.options.get("dtype") or target.dtype,
        device=str(target.device),
        quantization=config.options.get("quantization"),
    )
    fix_rotary(loaded.model, loaded.context_length)
    return loaded


def _width(target: LoadedModel) -> int:
    return int(target.model.get_output_embeddings().weight.shape[0])


def _text_segment(request: Request, start: int, end: int, ahead: list[int]) -> Segment:
    """Rows for tokens[start:end]. At the text's end `ahead` follows, in the slots set aside for
    the first nodes, and the text's last token and all of these give logits."""
    rows = end - start
    if end < len(request.tokens):
        slots = request.slots + request.reserved[: request.pending]
        return Segment.chain(request.tokens[start:end], slots[start:end], slots[:start], rows)
    slots = request.slots + request.reserved[: request.pending + len(ahead)]
    return Segment.chain(request.tokens[start:] + ahead, slots[start:], slots[:start], rows - 1)
