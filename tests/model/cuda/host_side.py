"""What the host does for CUDA graphs, without a GPU."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from outrider.model.cuda.graphs import BUCKETS, Graphs
from outrider.model.cuda.inputs import FIELDS, RowInputs, updates_of
from outrider.model.cuda.slot_table import SlotTable


class HostSide(Graphs):
    """Fills buffers as `Graphs` does; a subclass says what a pass does with them, in `_fly`."""

    def __init__(self, heads: int, kv_heads: int, lines: int, longest: int, device: Any) -> None:
        self.device, self._shape = device, (heads, kv_heads, 0)
        self.invariant, self.most_rows = False, BUCKETS[-1]
        self.prompts = self.together = None
        self._graphs = {}
        self.table = SlotTable(lines, longest, device)
        size = FIELDS * self.most_rows + 2 * updates_of(self.most_rows)
        self._staging = [torch.zeros(size, dtype=torch.int64) for _ in range(2)]
        self._stages, self._launches = {}, 0
        idle: Any = SimpleNamespace(synchronize=lambda: None, record=lambda: None)
        self._read = [idle, idle]

    def _graph(self, rows: int, single: bool) -> Any:
        return SimpleNamespace(inputs=RowInputs.of(rows, single, self.table.device_table))

    def received(self, graph: Any, rows: int) -> np.ndarray:
        """[FIELDS, rows] as they have reached the device, with the changes of its table made."""
        packed: Tensor = graph.inputs.packed.cpu()
        fields, tail = packed.split([FIELDS * graph.inputs.rows, 2 * updates_of(graph.inputs.rows)])
        places, slots = tail.to(self.device).chunk(2)
        self.table.device_table.view(-1)[places] = slots.int()
        return fields.view(FIELDS, -1)[:, :rows].numpy().copy()
