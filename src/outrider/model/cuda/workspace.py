"""Memory between the programs of one kernel: partial results, and who has arrived.

Where a result is put together from parts that different programs compute, the one that arrives last
adds them up, always in the same order, and sets the counter back for the next kernel. All kernels
of a pass run one after the other, so they share this memory.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

COUNTERS = 4096  # tiles of one kernel at most


@dataclass(eq=False)
class Workspace:
    parts: Tensor  # [size] float32
    weights: Tensor  # [size] float32: what attention's parts are weighted by
    arrived: Tensor  # [COUNTERS] int32, zero between kernels

    @classmethod
    def of(cls, parts: int, weights: int, device: torch.device) -> "Workspace":
        return cls(
            torch.empty(parts, device=device),
            torch.empty(weights, device=device),
            torch.zeros(COUNTERS, dtype=torch.int32, device=device),
        )
