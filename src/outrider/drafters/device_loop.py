"""A whole chain of guesses without the host: on a GPU, the passes of a trained drafter.

One copy brings the numbers of all texts to the device. Then two captured functions are replayed.
One will `read` what is new in the texts. The other makes as many guesses as are wanted: it will
`begin` with the first, and each `step` finds in fixed buffers what the one before has left there.
One copy brings the guesses back.

What is too much for that (other trees than chains, options that the kernel cannot choose by, texts
to catch up on that `catch_up` cannot read) goes level by level, as on a CPU.
"""

from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from outrider.core.request import Request
from outrider.drafters.loop_text import MOST_GUESSES, ROWS, TEXTS, Guesses, Shape, Text, bucket
from outrider.model.cuda.capture import Capture
from outrider.model.cuda.guess import DEPTH, LAST, LIMIT, LOOP_FIELDS
from outrider.model.cuda.guess import guess as guess_and_move_on
from outrider.model.cuda.guess import workspace_for as guess_parts
from outrider.model.cuda.inputs import (
    ANCESTORS,
    CONTEXT,
    FIELDS,
    LINE,
    OUTPUT_POSITION,
    POSITION,
    SAMPLE,
    SEED,
    SEGMENT,
    SEGMENT_ROWS,
    TEMPERATURE,
    TILE_FIRST,
    TILE_ROWS,
    TOKEN,
    RowInputs,
    fill,
)
from outrider.model.cuda.linear import workspace_for as product_parts
from outrider.model.cuda.slot_table import SlotTable
from outrider.model.cuda.tree_attention import rows_per_tile
from outrider.model.cuda.tree_attention import workspace_for as attention_parts
from outrider.model.cuda.whole_text import SIZES, WIDTHS
from outrider.model.cuda.workspace import Workspace
from outrider.model.segment import Segment
from outrider.sampling.process import unadjusted

if TYPE_CHECKING:
    from outrider.drafters.trained import TrainedDrafter

PREPARED_TEXTS, PREPARED_GUESSES = 8, 8  # at most, that chains are captured for at load
UPDATES = 512  # changed entries of the slot table that travel with the other numbers
_TEXT_NUMBERS = LOOP_FIELDS * TEXTS[-1] + 2 * UPDATES
_ROW_FIELDS = FIELDS + 1  # the last: the slot whose feature a row reads


class DeviceLoop(ABC):
    """A subclass says what the three functions do. They are captured: each reads and writes the
    same buffers at every call, and has no other effect. Rows without a text hold zeros, and
    write to slot 0."""

    first = 0  # of every text, tokens that the drafter does not see

    def __init__(self, drafter: "TrainedDrafter", table: SlotTable, cuda: Capture) -> None:
        shape, device = drafter.loop_shape, table.device_table.device
        self.slot_table, self.cuda = table, cuda
        self._group = shape.heads // shape.kv_heads
        self.table = table.device_table[:, self.first :]
        self.work = Workspace.of(*_workspace_sizes(shape), device)
        size = _TEXT_NUMBERS + _ROW_FIELDS * ROWS[-1]
        self._packed = torch.zeros(size, dtype=torch.int64, device=device)
        self._packed_here = cuda.host_memory(size, torch.int64)
        found = MOST_GUESSES * 2 * TEXTS[-1]
        self._found = torch.zeros(found, dtype=torch.float64, device=device)
        self._found_here = cuda.host_memory(found, torch.float64)
        self._ids = None if drafter.head.d2t is None else drafter.ids  # [draft vocabulary]
        if self._ids is not None:
            self._full = torch.full(
                (TEXTS[-1], shape.vocabulary), -torch.inf, **drafter.logits_like
            )
        self._captured: dict[tuple[str | int, ...], Callable[[], None]] = {}

    # ---- what is captured ----

    @abstractmethod
    def read(self, rows: RowInputs, features: Tensor) -> None:
        """Take in what is new in the texts; features [rows]: the slot whose feature a row reads."""

    @abstractmethod
    def begin(self, texts: RowInputs) -> None:
        """Make the first guess; `texts` has one row for each, with the fields of guess.py."""

    @abstractmethod
    def step(self, texts: RowInputs) -> None:
        """Make the next guess, below the last one."""

    def guess(self, logits: Tensor, texts: RowInputs, sure: Tensor | None = None) -> None:
        """How `begin` and `step` end. logits [texts, draft vocabulary]; sure [texts] float32."""
        count = texts.rows
        if self._ids is not None:  # tokens that it does not know stay at -inf
            logits = self._full[:count].index_copy_(1, self._ids, logits)
        guess_and_move_on(logits, texts, self.work, self.found(count), sure)

    def catch_up(self, rows: Segment, features: array) -> bool:
        """Read a text that is too long for `read`, in one launch; features: per row the slot whose
        feature it reads. False where that cannot be."""
        return False

    # ---- the buffers that captured functions share ----

    def texts(self, count: int) -> RowInputs:
        """The fields of so many texts."""
        return RowInputs(count, True, self._packed[: LOOP_FIELDS * count], self.table)

    def rows(self, size: int) -> RowInputs:
        """The fields of so many rows that are read; one more, FIELDS, names the feature's slot."""
        fields = self._packed[_TEXT_NUMBERS:][: _ROW_FIELDS * size]
        return RowInputs(size, False, fields, self.table)

    def found(self, count: int) -> Tensor:
        """[guesses, 2, texts] float64, as guess.py writes it."""
        return self._found[: MOST_GUESSES * 2 * count].view(MOST_GUESSES, 2, count)

    def clear(self) -> None:
        """There are no texts, no rows and no changes of the table."""
        self._packed.zero_()

    def tile(self, rows: int) -> int:
        """Rows of one text that the attention of the reading takes at once."""
        return rows_per_tile(rows, self._group, False)

    # ---- the host's side ----

    @property
    def captured(self) -> int:
        """Functions so far."""
        return len(self._captured)

    def fits(self, request: Request, guesses: int) -> bool:
        """Whether the guesses for a request can be chosen here, and its text has room. Truncation
        is left out: the likeliest tokens, which are guessed, are those that it keeps."""
        longest = self.slot_table.longest
        enough = guesses <= MOST_GUESSES and len(request.tokens) + guesses <= longest
        return enough and unadjusted(request)

    def __call__(self, texts: list[Text]) -> list[Guesses]:
        """For at most as many texts and rows as loop_text.py says."""
        with self.cuda.active():
            return self._run(texts)

    @torch.inference_mode()
    def prepare(self, guesses: int) -> None:
        """Capture what small batches need for chains of up to so many guesses, rather than when a
        request has to wait for it. No text may be under way."""
        with self.cuda.active():
            for rows in ROWS:
                self.reads(rows)
            for count in filter(lambda each: each <= PREPARED_TEXTS, TEXTS):
                for length in range(1, min(guesses, PREPARED_GUESSES) + 1):
                    self.drafting(count, length)

    def _run(self, texts: list[Text]) -> list[Guesses]:
        rows = bucket(ROWS, sum(len(text.rows) for text in texts))
        count = bucket(TEXTS, len(texts))
        guesses = max(text.guesses for text in texts)
        read, draft = self.reads(rows), self.drafting(count, guesses)
        size = self._fill(texts, rows, count)
        self._packed[:size].copy_(self._packed_here[:size], non_blocking=True)
        read()
        draft()
        found = guesses * 2 * count
        self._found_here[:found].copy_(self._found[:found], non_blocking=True)
        self.cuda.wait()
        guessed = self._found_here[:found].view(-1, 2, count).numpy()
        return [_guesses(guessed[: text.guesses, :, i]) for i, text in enumerate(texts)]

    def captured_for(
        self, make: Callable[[], Callable[[], None]], kind: str, *size: int
    ) -> Callable[[], None]:
        """What `make` gives, as one launch; made once for each size of a kind. What the fields hold
        may be lost: all that shall run one after the other must be there before the first does."""
        key: tuple[str | int, ...] = (kind, *size)
        if key not in self._captured:
            self.clear()  # capturing runs it once: for no text, so that no slot is written
            self._captured[key] = self.cuda(make())
        return self._captured[key]

    def drafting(self, count: int, guesses: int) -> Callable[[], None]:
        """As one launch: so many guesses, one at least, below what the fields of `count` texts
        name and what was read before."""
        return self.captured_for(lambda: self._drafting(count, guesses), "draft", count, guesses)

    def reads(self, rows: int) -> Callable[[], None]:
        """As one launch: what the fields of so many rows name, and the table's changes before."""
        return self.captured_for(lambda: self._reading(rows), "read", rows)

    def _reading(self, size: int) -> Callable[[], None]:
        rows = self.rows(size)
        whole = self.slot_table.device_table.view(-1)
        changes = self._packed[LOOP_FIELDS * TEXTS[-1] :][: 2 * UPDATES].view(2, UPDATES)

        def read() -> None:
            whole.index_copy_(0, changes[0], changes[1].int())
            self.read(rows, rows.field(FIELDS))

        return read

    def _drafting(self, count: int, guesses: int) -> Callable[[], None]:
        texts = self.texts(count)

        def draft() -> None:
            self.begin(texts)
            for _ in range(guesses - 1):
                self.step(texts)

        return draft

    def _fill(self, texts: list[Text], rows: int, count: int) -> int:
        """Write the numbers of all texts; how many there are, in all."""
        size = _TEXT_NUMBERS + _ROW_FIELDS * rows
        packed = self._packed_here[:size].numpy()
        lines = self._update_table(texts, packed[LOOP_FIELDS * TEXTS[-1] :][: 2 * UPDATES])
        fields = packed[: LOOP_FIELDS * count].reshape(LOOP_FIELDS, count)
        fields[:] = 0
        self._fill_texts(fields[:, : len(texts)], texts, lines)
        own = packed[_TEXT_NUMBERS:]
        segments = [text.rows for text in texts]
        fill(own, rows, segments, lines, self.tile(rows))
        features = [slot for text in texts for slot in text.features]
        own[FIELDS * rows :] = 0
        own[FIELDS * rows :][: len(features)] = features
        return size

    def _update_table(self, texts: list[Text], changes: np.ndarray) -> list[int]:
        """Each text's line; changes [2 * UPDATES]."""
        table = self.slot_table
        wanted = [Segment([], [], array("q"), text.slots, 0, text.request) for text in texts]
        lines = table.lines_for(wanted)
        places, slots = table.changes(wanted, lines)
        if len(places) > UPDATES:
            table.write(places, slots)
            places = slots = []
        changes[:] = 0  # entry 0 of the table belongs to the scrap line
        changes[: len(places)] = places
        changes[UPDATES:][: len(slots)] = slots
        return lines

    def _fill_texts(self, fields: np.ndarray, texts: list[Text], lines: list[int]) -> None:
        """fields [LOOP_FIELDS, texts]."""
        requests = [text.request for text in texts]
        fields[TOKEN] = [request.tokens[-1] for request in requests]
        fields[POSITION] = [len(request.tokens) - 1 - self.first for request in requests]
        fields[CONTEXT] = [len(request.slots) - self.first for request in requests]
        fields[LINE] = lines
        fields[SEGMENT] = fields[TILE_FIRST] = range(len(texts))
        fields[ANCESTORS] = fields[TILE_ROWS] = fields[SEGMENT_ROWS] = 1
        temperatures = [0.0 if r.params.greedy else r.params.temperature for r in requests]
        fields[TEMPERATURE] = np.array(temperatures, dtype=np.float32).view(np.int32)
        fields[SEED] = [request.seed for request in requests]
        fields[SAMPLE] = [request.sample for request in requests]
        fields[OUTPUT_POSITION] = [request.position for request in requests]
        fields[LIMIT] = [len(text.slots) - self.first - 1 for text in texts]
        fields[DEPTH] = 0
        fields[LAST] = np.cumsum([len(text.rows) for text in texts]) - 1


def _guesses(found: np.ndarray) -> Guesses:
    """found [guesses, 2]; where no token was possible, the chain ends."""
    tokens = found[:, 0].astype(np.int64).tolist()
    end = tokens.index(-1) if -1 in tokens else len(tokens)
    return Guesses(tokens[:end], found[:end, 1].tolist())


def bytes_of_loop(shape: Shape, outputs: int, longest: int, element: int) -> int:
    """What a loop holds once all sizes are captured: workspace, rotations of fused layers, what
    runs where those catch up, and logits over the target's tokens and over the drafter's `outputs`.
    What else runs is as small as its rows are few."""
    work = 4 * sum(_workspace_sizes(shape))
    work += SIZES[-1] * WIDTHS * shape.widest * element
    rotations = 2 * longest * shape.value_size * element if shape.widest else 0
    logits = element * TEXTS[-1] * (shape.vocabulary + (1 + shape.text_rows) * outputs)
    return work + rotations + logits


def _workspace_sizes(shape: Shape) -> tuple[int, int]:
    """Elements of the workspace's two parts."""
    passes = [(rows, False) for rows in ROWS] + [(count, True) for count in TEXTS]
    passes += [(count * shape.text_rows, False) for count in TEXTS]
    heads = (shape.heads, shape.kv_heads, shape.value_size)
    sizes = [attention_parts(rows, single, *heads) for rows, single in passes]
    sizes.append(guess_parts(TEXTS[-1], shape.vocabulary))
    sizes.append((product_parts(shape.widest), 0))
    parts, weights = zip(*sizes, strict=True)
    return max(parts), max(weights)
