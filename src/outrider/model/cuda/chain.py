"""Kernels that start while the one before them still runs (from compute capability 9.0 on).

Each kernel lets its successor start as soon as it has itself waited for its predecessor's end, so
that no more than one of them waits on the device. Until then a kernel does what does not depend on
the one before, such as reading its first weights. That hides the gaps between kernels, which add
up to an eighth of a pass over one row. Every kernel of a chain must wait, or order would be lost.
"""

from functools import cache
from typing import Any

import torch


@cache
def _capable(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


def chained(device: torch.device) -> dict[str, Any]:
    """Launch options and the flag that tells a kernel of them."""
    return {"CHAINED": True, "launch_pdl": True} if _capable(device) else {"CHAINED": False}
