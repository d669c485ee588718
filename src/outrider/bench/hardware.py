"""The machine that a benchmark ran on, and the memory that a run took."""

import os
import platform
import sys
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from outrider.model.machine import cores, cpu_name

PACKAGES = ("torch", "transformers", "tokenizers", "numpy")


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def hardware(device: torch.device) -> dict[str, Any]:
    return {
        "cpu": cpu_name(),
        "cores": cores(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
        "memory_bytes": _memory(),
    }


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # Windows
        return None


class PeakMemory:
    """The largest memory of the process, and of the GPU, since this was made.

    Linux can forget an earlier peak; elsewhere the figure is that of the whole process so far.
    """

    def __init__(self, device: torch.device) -> None:
        self._cuda = device if device.type == "cuda" else None
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")
        if self._cuda is not None:
            torch.cuda.reset_peak_memory_stats(self._cuda)

    @property
    def host(self) -> int | None:
        try:
            lines = Path("/proc/self/status").read_text().splitlines()
            return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
        except (OSError, StopIteration):
            return _highest_ever()

    @property
    def cuda(self) -> int | None:
        return None if self._cuda is None else torch.cuda.max_memory_allocated(self._cuda)


def _highest_ever() -> int | None:
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak * (1 if sys.platform == "darwin" else 1024)  # bytes there, KiB elsewhere
