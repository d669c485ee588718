"""The draft loop of heads that write one token after the other: `eagle`, `eagle3`, `mtp`."""

from array import array
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from outrider.drafters.device_loop import DeviceLoop
from outrider.drafters.fused_eagle3 import FusedEagle3
from outrider.drafters.loop_text import ROWS, TEXTS
from outrider.model.attention import knows_causal
from outrider.model.cuda.capture import Capture
from outrider.model.cuda.guess import LAST
from outrider.model.cuda.inputs import POSITION, TOKEN, RowInputs
from outrider.model.cuda.slot_table import SlotTable
from outrider.model.cuda.unfused import pass_over_rows
from outrider.model.cuda.whole_text import WholeText, size_for, sizes_for
from outrider.model.segment import Segment

if TYPE_CHECKING:
    from outrider.drafters.feature_drafter import FeatureDrafter, RecurrentDrafter


class RecurrentLoop(DeviceLoop):
    """Between two guesses, the head's states stand for the features that are not known yet. Here
    the head's own modules run."""

    first = 1  # no feature comes before it

    def __init__(self, drafter: "FeatureDrafter", table: SlotTable, cuda: Capture) -> None:
        super().__init__(drafter, table, cuda)
        self._drafter = drafter
        width = drafter.features.width
        like: Any = {"dtype": drafter.dtype, "device": drafter.device}
        self._read_states = torch.zeros(ROWS[-1], width, **like)
        self._states = torch.zeros(TEXTS[-1], width, **like)

    def read(self, rows: RowInputs, features: Tensor) -> None:
        known = self._drafter.features.at(features).to(self._drafter.dtype)
        self._read_states[: rows.rows] = self._run_head(known, rows)

    def begin(self, texts: RowInputs) -> None:
        states = self._states[: texts.rows]
        states[:] = self._read_states.index_select(0, texts.field(LAST))
        self.guess(self._drafter.head.logits(states), texts)

    def step(self, texts: RowInputs) -> None:
        states = self._states[: texts.rows]
        states[:] = self._run_head(states, texts)
        self.guess(self._drafter.head.logits(states), texts)

    def _run_head(self, features: Tensor, rows: RowInputs) -> Tensor:
        """[rows, hidden size] -> the head's states, the same."""
        step = pass_over_rows(rows, self.work)
        return self._drafter.run(step, features, rows.field(TOKEN), rows.field(POSITION))


class FusedLoop(RecurrentLoop):
    """The same with a few kernels for each layer; states are written where the features were."""

    def __init__(self, drafter: "RecurrentDrafter", table: SlotTable, cuda: Capture) -> None:
        super().__init__(drafter, table, cuda)
        head: Any = drafter.head
        self._fused = FusedEagle3(head, drafter.memory.layers, table.longest)
        memory = drafter.memory.layers[0]
        self._may_catch_up = knows_causal(memory.keys, memory.values.shape[2])
        self._texts: dict[int, WholeText] = {}

    def read(self, rows: RowInputs, features: Tensor) -> None:
        states = self._read_states[: rows.rows]
        states[:] = self._drafter.features.at(features)
        self._fused.run(states, rows, self.work)

    def catch_up(self, rows: Segment, features: array) -> bool:
        size = size_for(rows) if self._may_catch_up else None
        if size is None:
            return False
        with self.cuda.active():
            replay = self._reads_text(size)
            known = self._texts[size].more_here
            known[:] = 0
            known[len(rows.context) :][: len(features)] = features
            self._texts[size].send(rows)
            replay()
        return True

    def prepare(self, guesses: int) -> None:
        with self.cuda.active(), torch.inference_mode():
            for size in sizes_for(self.slot_table.longest) if self._may_catch_up else ():
                self._reads_text(size)
        super().prepare(guesses)

    def _reads_text(self, size: int) -> Callable[[], None]:
        return self.captured_for(lambda: self._reading_text(size), "text", size)

    def _reading_text(self, size: int) -> Callable[[], None]:
        text = self._texts[size] = WholeText(size, size, self.table, self.cuda)

        def read() -> None:
            known = self._drafter.features.at(text.more).to(self._drafter.dtype)
            self._fused.read_text(known, text.inputs, text.keys, self.work)

        return read

    def begin(self, texts: RowInputs) -> None:
        states = self._states[: texts.rows]
        states[:] = self._read_states.index_select(0, texts.field(LAST))
        self.guess(self._fused.logits(self._fused.starting(states), self.work), texts)

    def step(self, texts: RowInputs) -> None:
        stream = self._fused.run(self._states[: texts.rows], texts, self.work)
        self.guess(self._fused.logits(stream, self.work), texts)
