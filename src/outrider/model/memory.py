"""What a device has free, and what one engine takes of it."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from outrider.core.errors import ModelError

GIB = 2**30


@dataclass(frozen=True)
class MemoryUse:
    """One engine's memory on one device, in bytes. All models of the engine share it: the weights
    are there before anything is measured, and of what they leave free `utilization` is the share
    for the rest: slots, the graphs' workspace, and what a pass takes for a moment."""

    device: str
    free: int  # once the weights of all models were loaded
    utilization: float
    weights: int
    workspace: int
    passes: int  # the largest pass; those of several models come one after the other
    bytes_per_slot: int  # of all models
    slots: int

    @property
    def kv(self) -> int:
        return self.slots * self.bytes_per_slot

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "kv": self.kv}

    def __str__(self) -> str:
        parts = [
            f"weights {_size(self.weights)}",
            f"KV {_size(self.kv)} ({self.slots} slots of {self.bytes_per_slot} bytes)",
        ]
        if self.workspace or self.passes:  # of a GPU
            parts += [f"workspace {_size(self.workspace)}", f"passes {_size(self.passes)}"]
        return f"{self.device}: {', '.join(parts)}; free beside the weights: {_size(self.free)}"


def _size(size: int) -> str:
    return f"{size / GIB:.2f} GiB" if size >= GIB else f"{size / 2**20:.1f} MiB"


def slots_that_fit(
    free: int, utilization: float, workspace: int, passes: int, bytes_per_slot: int, useful: int
) -> int:
    """As many slots as the share of the free memory holds beside the rest, but no more than could
    ever be used."""
    share = int(free * utilization)
    left = share - workspace - passes
    if left < bytes_per_slot:
        raise ModelError(
            f"no memory is left for KV: memory_utilization={utilization} of the {_size(free)} that "
            f"are free beside the weights is {_size(share)}, of which workspace takes "
            f"{_size(workspace)} and a pass {_size(passes)}; raise memory_utilization, free memory "
            "there, or lower max_model_len or max_num_batched_tokens"
        )
    return min(useful, left // bytes_per_slot)


def free_memory(device: torch.device) -> int:
    """Bytes that can be had now, whoever else is on the device."""
    if device.type == "cuda":
        torch.cuda.empty_cache()  # what torch only keeps for later would count as taken
        return torch.cuda.mem_get_info(device)[0]
    return _free_host_memory()


def peak_bytes(device: torch.device, run: Callable[[], Any]) -> int:
    """What `run` takes beyond what was taken; all that is free where even that is too little."""
    free = free_memory(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    try:
        run()
    except torch.OutOfMemoryError:
        return free
    return torch.cuda.max_memory_allocated(device) - before


def _free_host_memory() -> int:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        fields = dict(line.split(":") for line in lines)
        return int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError):
        return 8 << 30  # macOS and Windows do not tell without another package: a modest guess
