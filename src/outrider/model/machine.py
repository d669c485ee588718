"""What this process runs on: the processor's name and the cores it may use."""

import os
import platform
from pathlib import Path


def cores() -> int:
    """A container or a scheduler may have given this process fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cpu_name() -> str:
    return cpu_info().get("model name") or platform.processor() or platform.machine()


def cpu_info() -> dict[str, str]:
    """Linux's fields of the first processor, by name; elsewhere empty."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return {}
    found: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(":")
        found.setdefault(name.strip(), value.strip())
    return found
