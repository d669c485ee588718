"""The draft loop of Medusa heads: all of them guess at the start, and each step takes the next."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from outrider.drafters.device_loop import DeviceLoop
from outrider.drafters.loop_text import ROWS, TEXTS
from outrider.model.cuda.capture import Capture
from outrider.model.cuda.guess import DEPTH, LAST
from outrider.model.cuda.inputs import RowInputs
from outrider.model.cuda.slot_table import SlotTable

if TYPE_CHECKING:
    from outrider.drafters.medusa import MedusaDrafter


class MedusaLoop(DeviceLoop):
    def __init__(self, drafter: "MedusaDrafter", table: SlotTable, cuda: Capture) -> None:
        super().__init__(drafter, table, cuda)
        self._head, self._features = drafter.head, drafter.features
        width, heads = drafter.features.width, drafter.head.options.heads
        self._states = torch.zeros(
            ROWS[-1], width, dtype=drafter.dtype, device=drafter.device
        )  # what the target's head reads, [rows, hidden size]
        self._logits = torch.zeros(heads * TEXTS[-1], len(drafter.ids), **drafter.logits_like)

    def read(self, rows: RowInputs, features: Tensor) -> None:
        self._states[: rows.rows] = self._features.at(features)

    def begin(self, texts: RowInputs) -> None:
        states = self._states.index_select(0, texts.field(LAST))  # [texts, hidden size]
        for index in range(self._head.options.heads):
            self._logits[index * texts.rows :][: texts.rows] = self._head(states, index)
        self.step(texts)

    def step(self, texts: RowInputs) -> None:
        count, last = texts.rows, self._head.options.heads - 1
        depth = texts.field(DEPTH).clamp(max=last)  # [texts]
        place = depth * count + torch.arange(count, device=depth.device)
        self.guess(self._logits.index_select(0, place), texts)
