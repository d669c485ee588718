"""Numbers from the host to the device that holds the logits, without waiting for what it is at."""

from collections.abc import Sequence

import torch
from torch import Tensor


def to_device(values: Tensor, device: torch.device | str) -> Tensor:
    """Ordinary memory is copied only once the device has done all that it was told; from pinned
    memory it reads when it comes to that."""
    if torch.device(device).type == "cuda" and values.numel():
        return values.pin_memory().to(device, non_blocking=True)
    return values.to(device)


def indices(values: Sequence[int], device: torch.device | str) -> Tensor:
    """[n] int64."""
    return to_device(torch.tensor(values, dtype=torch.int64), device)
