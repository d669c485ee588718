"""Drafting with a head that continues the target's own hidden states, token by token."""

from array import array
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.nn.attention import sdpa_kernel
from torch.nn.functional import pad

from outrider.core.request import Request
from outrider.core.tree import ROOT
from outrider.drafters.base import DraftConfig
from outrider.drafters.entries import Entries
from outrider.drafters.growth import Draft
from outrider.drafters.level import level_rows
from outrider.drafters.loop_text import Shape, Text, unreadable
from outrider.drafters.slot_memory import (
    SlotMemory,
    attention_of,
    bytes_per_slot,
    pass_over,
    pass_over_ends,
)
from outrider.drafters.trained import TrainedDrafter
from outrider.heads.head import RecurrentHead
from outrider.model.attention import BACKENDS, Pass
from outrider.model.kv import KVCache
from outrider.model.loading import LoadedModel
from outrider.model.row_sizes import MOST, STEP, filled_up, prepares
from outrider.model.segment import Segment

if TYPE_CHECKING:
    from outrider.drafters.device_loop import DeviceLoop
    from outrider.model.cuda.capture import Capture
    from outrider.model.cuda.slot_table import SlotTable

CATCH_UP_ROWS, GPU_CATCH_UP_ROWS = 512, 2048  # of one catch-up pass: bounds its memory


class Inputs(NamedTuple):
    """What the head reads, filled up with rows of nobody."""

    features: Tensor  # [rows, hidden size]
    tokens: Tensor  # [rows]
    positions: Tensor  # [rows]


class Rows(NamedTuple):
    """A part of a text that the head is about to read."""

    request: Request
    segment: Segment
    before: array  # per row the slot of the token before it, whose feature it reads


class FeatureDrafter(TrainedDrafter):
    """A row of the head reads a token and the target's feature of the token before. What it leaves
    in the KV goes into the token's slot, so that it is a function of that slot's text alone, as
    the target's own KV is: other texts that share the prefix share it, too.

    In a draft the head's own state stands for features that are not known yet. Those entries serve
    the draft only: once their tokens are accepted, they are made again from true features.
    """

    longest = 8  # a GPU's guesses cost next to nothing, and good ones hold so deep

    def __init__(self, config: DraftConfig, target: LoadedModel) -> None:
        super().__init__(config, target)
        on_gpu = self.device.type == "cuda"
        self._catch_up_rows = GPU_CATCH_UP_ROWS if on_gpu else CATCH_UP_ROWS
        # Per request: the head's states after the text (ROOT) and after nodes of its draft.
        self._states: dict[Request, dict[int, Tensor]] = {}
        self._sizes: set[tuple[str, int]] = set()  # numbers of rows that products are prepared for

    @property
    def prepared(self) -> int:
        return len(self._sizes) if self.loop is None else self.loop.captured

    def _allocate(self, kv: KVCache) -> None:
        self.entries = Entries(kv)

    def release(self, request: Request) -> None:
        super().release(request)
        self._states.pop(request, None)

    def backlog(self, request: Request) -> int:
        """Beyond the last token, which every draft starts with."""
        return len(request.tokens) - 1 - self.entries.valid(request, first=1)

    # ---- reading the text ----

    def _read(self, requests: list[Request]) -> Tensor:
        last = self._read_up_to([(request, len(request.tokens)) for request in requests])
        self._states |= {request: {ROOT: last[request]} for request in requests}
        return self._logits(torch.stack([last[request] for request in requests]))

    def _read_up_to(self, ends: list[tuple[Request, int]]) -> dict[Request, Tensor]:
        """What has not been read of the first so many tokens; the state [hidden size] after it."""
        missing = [(r, self.entries.valid(r, first=1), end) for r, end in ends]
        last: dict[Request, Tensor] = {}
        while missing := [(request, start, end) for request, start, end in missing if start < end]:
            parts, room = [], self._catch_up_rows
            for i, (request, start, end) in enumerate(missing):
                until = min(end, start + room)
                if until > start:
                    parts.append(_text_rows(request, start, until))
                    room -= until - start
                    missing[i] = (request, until, end)
            states = self._read_rows(parts)
            last |= {part.request: state for part, state in zip(parts, states, strict=True)}
        return last

    def _catch_up(self, ends: list[tuple[Request, int]]) -> None:
        """The same, as far as it goes by the loop itself, in one launch for each text."""
        left = []
        for request, end in ends:
            rows = _text_rows(request, self.entries.valid(request, first=1), end)
            if self.loop is not None and self.loop.catch_up(rows.segment, rows.before):
                self.entries.write(rows.segment.slots)
            else:
                left.append((request, end))
        self._read_up_to(left)

    def _read_rows(self, parts: list[Rows]) -> Tensor:
        """The head's state after each part: [parts, hidden size]."""
        segments = [part.segment for part in parts]
        before = torch.tensor([slot for part in parts for slot in part.before])
        features = self.features.at(before.to(self.device)).to(self.dtype)
        states = self._after(segments, features)
        for segment in segments:
            self.entries.write(segment.slots)
        return states

    def _after(self, segments: list[Segment], features: Tensor) -> Tensor:
        """The head's state after each segment [segments, hidden size]; features [rows, hidden
        size]."""
        return self._forward(segments, features)[_ends(segments)]

    # ---- drafting ----

    def _pass(self, drafts: list[Draft]) -> Tensor:
        levels = [row for draft in drafts for row in level_rows(draft, first=1)]
        features = [
            self._states[level.draft.request][level.draft.parents[node]]
            for level in levels
            for node in level.nodes
        ]
        segments = [level.segment for level in levels]
        states = self._forward(segments, torch.stack(features))
        wanted: list[Tensor] = []
        for level, rows in zip(levels, states.split([len(s) for s in segments]), strict=True):
            first = level.segment.logits_from  # rows above it are there for its attention only
            new = dict(zip(level.nodes[first:], rows[first:], strict=True))
            self._states[level.draft.request] |= new
            wanted.append(rows[first:])
        return self._logits(torch.cat(wanted))

    @sdpa_kernel(BACKENDS)
    def _forward(self, segments: list[Segment], features: Tensor) -> Tensor:
        """The head's states [rows, hidden size]; features [rows, hidden size]."""
        rows, inputs = len(features), self._inputs(segments, features)
        step = pass_over(segments, self.device, len(inputs.tokens) - rows)
        return self.run(step, *inputs)[:rows]

    def _inputs(self, segments: list[Segment], features: Tensor) -> Inputs:
        """features [rows, hidden size]."""
        tokens = [token for segment in segments for token in segment.tokens]
        positions = [position for segment in segments for position in segment.positions]
        beyond = self._beyond("states", len(tokens))
        numbers = torch.tensor([tokens, positions], device=self.device)  # [2, rows]
        numbers, features = pad(numbers, (0, beyond)), pad(features, (0, 0, 0, beyond))
        return Inputs(features, numbers[0], numbers[1])

    def _beyond(self, what: str, rows: int) -> int:
        """Rows of nobody that products over these are filled up with, and notes their number."""
        if not prepares(self.device, self.dtype):
            return 0
        if rows <= MOST:  # else preparing is a small part of it
            self._sizes.add((what, filled_up(rows, exact=STEP)))
        return filled_up(rows, exact=STEP) - rows

    def run(self, step: Pass, features: Tensor, tokens: Tensor, positions: Tensor) -> Tensor:
        """The same; tokens and positions [rows]."""
        raise NotImplementedError

    def _logits(self, states: Tensor) -> Tensor:
        beyond = self._beyond("logits", len(states))
        return self.head.logits(pad(states, (0, 0, 0, beyond)))[: len(states)]

    # ---- the loop on the device ----

    def make_loop(self, table: "SlotTable", cuda: "Capture") -> "DeviceLoop":
        from outrider.drafters.recurrent_loop import RecurrentLoop

        return RecurrentLoop(self, table, cuda)

    def bind(self, kv: KVCache) -> None:
        super().bind(kv)
        graphs = self.target_runner.graphs
        if self.loop is not None and graphs is not None:
            from outrider.drafters.following import Following

            self.following = Following(self.loop, graphs)
            self.loop_way += ", round after round"

    def followed(self, request: Request, start: int) -> None:
        self.entries.write(request.slots[start:] + request.reserved[:1])

    def texts(self, requests: list[Request], guesses: list[int]) -> list[Text]:
        starts = [self.entries.valid(request, first=1) for request in requests]
        new = [len(r.tokens) - start for r, start in zip(requests, starts, strict=True)]
        ends = {i: len(requests[i].tokens) - 1 for i in unreadable(new)}
        self._catch_up([(requests[i], end) for i, end in ends.items()])
        starts = [ends.get(i, start) for i, start in enumerate(starts)]
        texts = []
        for request, start, count in zip(requests, starts, guesses, strict=True):
            rows = _text_rows(request, start, len(request.tokens))
            slots = request.slots + request.reserved[: request.pending + count - 1]
            texts.append(Text(request, rows.segment, rows.before, slots, count))
            self.entries.write(rows.segment.slots)
        return texts


class RecurrentDrafter(FeatureDrafter):
    """With layers of the head's own."""

    head: RecurrentHead

    def __init__(self, config: DraftConfig, target: LoadedModel) -> None:
        super().__init__(config, target)
        self._layers = len(self.head.layers)
        self.bytes_per_slot = bytes_per_slot(self.head.config, self._layers, self.dtype)

    def _allocate(self, kv: KVCache) -> None:
        super()._allocate(kv)
        self.memory = SlotMemory(self.head.config, self._layers, kv.total, self.dtype, self.device)

    def run(self, step: Pass, features: Tensor, tokens: Tensor, positions: Tensor) -> Tensor:
        return self.head(features, tokens, positions, self.memory.attend(step))

    @sdpa_kernel(BACKENDS)
    def _after(self, segments: list[Segment], features: Tensor) -> Tensor:
        """Of the rows between, the last layer's keys and values are wanted and nothing else: that
        is a quarter of the work where it is the only one."""
        inputs, count = self._inputs(segments, features), len(segments)
        beyond = len(inputs.tokens) - len(features)
        ends = _ends(segments) + [0] * self._beyond("ends", count)
        last = pass_over_ends(segments, self.device, beyond, len(ends))
        step = last if self._layers == 1 else pass_over(segments, self.device, beyond)
        wanted = torch.tensor(ends, device=self.device)
        states: Tensor = self.head(*inputs, self.memory.attend(step, last), wanted)
        return states[:count]

    @property
    def loop_shape(self) -> Shape:
        heads, kv_heads, size = attention_of(self.head.config)
        widest = max(self.head.config.hidden_size, (heads + 2 * kv_heads) * size)
        return Shape(heads, kv_heads, size, self.vocabulary, widest=widest)

    def fused_loop(self, table: "SlotTable", cuda: "Capture") -> "DeviceLoop | None":
        from outrider.drafters.fused_eagle3 import unfused_because
        from outrider.drafters.recurrent_loop import FusedLoop

        fusable = unfused_because(self.head, self.dtype) is None
        return FusedLoop(self, table, cuda) if fusable else None


def _ends(segments: list[Segment]) -> list[int]:
    """The last row of each, among the rows of all."""
    return [end - 1 for end in accumulate(map(len, segments))]


def _text_rows(request: Request, start: int, end: int) -> Rows:
    """For tokens[start:end]. The first token has no row: no feature comes before it."""
    slots = request.slots + request.reserved[: request.pending]
    segment = Segment.chain(
        request.tokens[start:end], slots[start:end], slots[1:start], logits_from=0
    )
    return Rows(request, segment, slots[start - 1 : end - 1])
