"""KV of a trained drafter's own layers, in the target's slots."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from outrider.heads.block import Attend
from outrider.model.attention import LayerKV, Pass
from outrider.model.runner import SCRAP
from outrider.model.segment import Segment, group_segments


class SlotMemory:
    def __init__(
        self, config: Any, layers: int, slots: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        shape = (slots + 1, config.num_key_value_heads, config.head_dim)
        self.device = device
        # Not filled: on a CPU, pages that no request ever uses are never taken.
        self.layers = [
            LayerKV(
                torch.empty(shape, dtype=dtype, device=device),
                torch.empty(shape, dtype=dtype, device=device),
            )
            for _ in range(layers)
        ]
        for memory in self.layers:
            memory.keys[0], memory.values[0] = 0, 0  # what padding reads must be finite

    def attend(self, step: Pass, last: Pass | None = None) -> Attend:
        """For this pass: writes its rows' KV, then attends. `last`: the same in the last layer,
        where fewer rows attend there."""

        def attend(layer: int, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            memory = self.layers[layer]
            own = last if last is not None and memory is self.layers[-1] else step
            how = own.kernel or own.attend
            memory.keys.index_copy_(0, step.write_slots, keys)
            memory.values.index_copy_(0, step.write_slots, values)
            return how(query, memory, query.shape[-1] ** -0.5, (None, None, None))

        return attend


def pass_over(segments: list[Segment], device: torch.device, beyond: int = 0) -> Pass:
    """With so many rows of nobody `beyond` those of the segments."""
    groups = [group.to(device) for group in group_segments(segments)]
    return Pass(_written(segments, device, beyond), groups)


def pass_over_ends(
    segments: list[Segment], device: torch.device, beyond: int, queries: int
) -> Pass:
    """The same where only the last row of each segment attends; so many `queries` in all, some of
    them nobody's."""
    groups = [group.to(device) for group in group_segments([each.end for each in segments])]
    return Pass(_written(segments, device, beyond), groups, queries=queries)


def _written(segments: list[Segment], device: torch.device, beyond: int) -> Tensor:
    """[rows + beyond]: where their KV goes."""
    slots = np.concatenate([np.array(s.slots, dtype=np.int64) for s in segments])
    slots = np.pad(slots, (0, beyond), constant_values=SCRAP)
    return torch.from_numpy(slots).to(device)


def bytes_per_slot(config: Any, layers: int, dtype: torch.dtype) -> int:
    size = torch.empty((), dtype=dtype).element_size()
    return 2 * layers * int(config.num_key_value_heads) * int(config.head_dim) * size


def attention_of(config: Any) -> tuple[int, int, int]:
    """Heads, KV heads and the size of a value."""
    return config.num_attention_heads, config.num_key_value_heads, config.head_dim
