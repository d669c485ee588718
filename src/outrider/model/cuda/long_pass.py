"""A pass over more rows than graphs take, kernel by kernel: prompts, or very many texts."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from outrider.core.tree import is_chain
from outrider.model.attention import Asked, Kernel, LayerKV, attend_whole, knows_causal
from outrider.model.cuda.capture import Capture
from outrider.model.cuda.fused import FusedModel
from outrider.model.cuda.inputs import ANCESTORS, FIELDS, RowInputs, fill
from outrider.model.cuda.text_attention import Texts, text_attention, tiles_of
from outrider.model.cuda.tree_attention import Options
from outrider.model.cuda.workspace import Workspace
from outrider.model.flight import Flight
from outrider.model.segment import Segment, wanted_rows

Choose = Callable[[Tensor, RowInputs], Tensor]  # logits [rows, vocabulary] -> [rows] int64


class LongPass:
    """`choose` takes up to `most_choices` rows."""

    def __init__(
        self,
        model: FusedModel,
        group: int,
        table: Tensor,
        work: Workspace,
        choose: Choose,
        most_choices: int,
        cuda: Capture,
    ) -> None:
        """group: query heads per key head; table [lines, longest text]."""
        self._model, self._group, self._table, self._work = model, group, table, work
        self._choose, self._most_choices, self._cuda = choose, most_choices, cuda

    def takes(self, segments: list[Segment]) -> bool:
        return all(is_chain(segment.parents) for segment in segments)

    def __call__(self, segments: list[Segment]) -> Flight:
        rows = sum(map(len, segments))
        wanted = wanted_rows(segments)
        ends = [segment for segment in segments if segment.logits_from < len(segment)]
        chooses = len(wanted) == len(ends) <= self._most_choices  # one row each
        parts = [  # first what kernels of ours read: they are compiled for aligned tensors
            tiles_of(segments, self._group).ravel(),
            np.concatenate([np.array(part) for s in segments for part in (s.context, s.slots)]),
            _rows_of(segments),
            np.array(wanted, dtype=np.int64),
            choosing_of(ends) if chooses else np.empty(0, dtype=np.int64),
        ]
        tiles, slots, fields, last, choosing = self._send(parts)
        inputs = RowInputs.of(rows, False, self._table)
        inputs.packed[: len(fields)] = fields
        inputs.field(ANCESTORS).fill_(1)  # no row is padding
        texts = Texts(tiles.view(-1, 4), slots)
        alone = slots if len(segments) == 1 and not segments[0].context else None
        logits = self._model.long_pass(inputs, _attend(texts, alone), last, self._work)
        if not chooses:
            return Flight(logits, replayed=False)
        if not wanted:
            return Flight(logits, landed=list, hands_on=False, replayed=False)
        chosen = self._cuda.host_memory(len(wanted), torch.int64)
        inputs = RowInputs(len(wanted), True, choosing.clone(), self._table)
        chosen.copy_(self._choose(logits, inputs), non_blocking=True)
        landed = self._cuda.mark()

        def tokens() -> list[int]:
            landed()
            return chosen.tolist()

        return Flight(logits, landed=tokens, hands_on=False, replayed=False)

    def _send(self, parts: list[np.ndarray]) -> list[Tensor]:
        """By one copy: [n] int64 each."""
        lengths = [len(part) for part in parts]
        here = self._cuda.host_memory(sum(lengths), torch.int64)
        np.concatenate(parts, out=here.numpy())
        return list(here.to(self._table.device, non_blocking=True).split(lengths))


def _rows_of(segments: list[Segment]) -> np.ndarray:
    """[3 * rows] int64: the fields token, position and slot."""
    tokens = [np.array(segment.tokens) for segment in segments]
    places = [np.arange(len(segment)) + len(segment.context) for segment in segments]
    slots = [np.array(segment.slots) for segment in segments]
    return np.concatenate([*tokens, *places, *slots])


def choosing_of(ends: list[Segment]) -> np.ndarray:
    """[FIELDS * segments] int64: how the token after each is chosen."""
    rows = [
        Segment([0], [-1], end.slots[-1:], end.context[:0], 0, choosing=end.choosing)
        for end in ends
    ]
    packed = np.empty(FIELDS * len(rows), dtype=np.int64)
    fill(packed, len(rows), rows, lines=[0] * len(rows), tile=1)
    return packed


def _attend(texts: Texts, alone: Tensor | None) -> Kernel:
    """alone [rows]: the slots of a single text that is read from its start, which torch's own
    attention does best."""

    def attend(query: Tensor, memory: LayerKV, scale: float, asked: Asked) -> Tensor:
        plain = asked == (None, None, None) and knows_causal(query, memory.values.shape[2])
        if plain and alone is not None:
            return attend_whole(query, memory, alone, scale)
        return text_attention(query, memory.keys, memory.values, texts, scale, Options(*asked))

    return attend
