"""The draft loop of heads that write one token after the other: `eagle`, `eagle3`, `mtp`."""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from outrider.drafters.device_loop import DeviceLoop
from outrider.drafters.loop_text import ROWS, TEXTS
from outrider.model.cuda.capture import Capture
from outrider.model.cuda.guess import LAST
from outrider.model.cuda.inputs import POSITION, TOKEN, RowInputs
from outrider.model.cuda.slot_table import SlotTable
from outrider.model.cuda.unfused import pass_over_rows

if TYPE_CHECKING:
    from outrider.drafters.feature_drafter import FeatureDrafter


class RecurrentLoop(DeviceLoop):
    """Between two guesses, the head's states stand for the features that are not known yet."""

    first = 1  # no feature comes before it

    def __init__(self, drafter: "FeatureDrafter", table: SlotTable, cuda: Capture) -> None:
        super().__init__(drafter, table, cuda)
        self._drafter = drafter
        width = drafter.features.store.shape[1]
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
