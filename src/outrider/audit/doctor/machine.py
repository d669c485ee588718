"""The machine: cores, instruction sets, memory, GPUs, versions; and which fast paths they allow."""

import platform
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from outrider.model.cache import cache_root, is_intact
from outrider.model.families import FUSED as FAMILIES
from outrider.model.loading import choose_dtype
from outrider.model.machine import cores, cpu_info, cpu_name
from outrider.model.packed import can_pack
from outrider.model.zoo import ZOO, zoo_names

PACKAGES = (
    "torch",
    "transformers",
    "tokenizers",
    "safetensors",
    "gguf",
    "triton",
    "torchao",
    "numpy",
)
# As /proc/cpuinfo spells them (x86, then ARM), with what people call them.
INSTRUCTIONS = {
    "avx2": "avx2",
    "avx512f": "avx512",
    "avx_vnni": "avx-vnni",
    "avx512_vnni": "avx512-vnni",
    "avx512_bf16": "avx512-bf16",
    "amx_tile": "amx",
    "amx_bf16": "amx-bf16",
    "amx_int8": "amx-int8",
    "asimd": "neon",
    "sve": "sve",
    "bf16": "bf16",
    "i8mm": "i8mm",
}


@dataclass(frozen=True)
class FastPath:
    name: str
    on: bool
    why: str

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def machine() -> dict[str, Any]:
    info = cpu_info()
    return {
        "system": f"{platform.system()} {platform.release()} ({platform.machine()})",
        "cpu": cpu_name(),
        "cores": cores(),
        "threads": torch.get_num_threads(),
        "instruction_sets": _instructions(info.get("flags") or info.get("Features") or ""),
        "memory_bytes": _memory(),
        "gpus": _gpus(),
        "python": platform.python_version(),
        "versions": _versions(),
    }


def _instructions(flags: str) -> list[str]:
    named = [name for flag, name in INSTRUCTIONS.items() if flag in flags.split()]
    if named:
        return named
    # Without /proc: torch knows at least which kernels it will choose.
    known = torch.backends.cpu.get_cpu_capability().lower()
    return [] if known in ("default", "no avx") else [known]


def _memory() -> dict[str, int | None]:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return {"total": None, "available": None}
    fields = {name: int(rest.split()[0]) << 10 for name, rest in (x.split(":") for x in lines)}
    return {"total": fields.get("MemTotal"), "available": fields.get("MemAvailable")}


def _gpus() -> list[dict[str, Any]]:
    found = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        free, total = torch.cuda.mem_get_info(index)
        found.append(
            {
                "name": properties.name,
                "capability": f"{properties.major}.{properties.minor}",
                "memory_bytes": {"total": total, "available": free},
            }
        )
    return found


def _versions() -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for package in ("outrider", *PACKAGES):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    return found


def fast_paths() -> list[FastPath]:
    """What is true of this version on this machine."""
    cuda = torch.cuda.is_available()
    likely = torch.empty(0, dtype=choose_dtype("auto", torch.device("cpu")))  # weights, that is
    paths = [
        FastPath("CUDA", cuda, f"{torch.cuda.device_count()} device(s)" if cuda else _no_cuda()),
        _bfloat16(),
        _threads(),
        FastPath(
            "oneDNN",
            torch.backends.mkldnn.is_available(),
            "torch's matrix kernels for CPUs"
            if torch.backends.mkldnn.is_available()
            else "this torch was built without it",
        ),
        FastPath(
            "weights for few rows",
            not cuda and (likely.dtype == torch.float32 or can_pack(likely)),
            "on a CPU: passes over a few rows cost little more than over one",
        ),
    ]
    return [*paths, *_gpu_paths()]


def _gpu_paths() -> list[FastPath]:
    """What passes over few rows go through on a GPU; families without fused layers keep the rest.
    A model that differs from its own forward on one of them falls back, with a warning."""
    cuda, triton = torch.cuda.is_available(), find_spec("triton") is not None
    reason = "needs a CUDA device" if not cuda else "needs the package triton"
    capable = cuda and torch.cuda.get_device_capability() >= (9, 0)
    told = {
        "CUDA graphs": "a pass over up to 256 rows is one launch",
        "Triton attention": "tree attention over token slots, split along the context",
        "fused layers": f"for {', '.join(sorted(FAMILIES))} in bfloat16 or float32",
        "running ahead": "the next plain pass starts before this one's tokens are known",
    }
    on = cuda and triton
    paths = [FastPath(name, on, why if on else reason) for name, why in told.items()]
    chained = "kernels start while the one before ends"
    if on and not capable:
        reason = "needs compute capability 9.0"
    return [*paths, FastPath("chained kernels", on and capable, chained if capable else reason)]


def _no_cuda() -> str:
    if torch.version.cuda is None:
        return "this torch was built without CUDA"
    return "torch sees no CUDA device"


def _bfloat16() -> FastPath:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    on = choose_dtype("auto", device) == torch.bfloat16
    if on:
        return FastPath("bfloat16", True, f"the {device.type} computes in it: dtype auto uses it")
    why = "this CPU would only emulate it (no avx512-bf16, amx or ARM bf16): dtype auto is float32"
    return FastPath("bfloat16", False, why)


def _threads() -> FastPath:
    threads, available = torch.get_num_threads(), cores()
    if threads == available:
        return FastPath("all cores", True, f"torch uses {threads} threads")
    # Threads of one product wait for each other, so one too many is worse than one too few.
    why = f"torch uses {threads} threads on {available} cores; set OMP_NUM_THREADS={available}"
    return FastPath("all cores", False, why)


def cache_state() -> dict[str, Any]:
    entries = []
    for entry in zoo_names():
        state = "intact" if entry.cached else "absent"
        folder = entry.cached
        if folder is None:
            # A folder that is there but not intact is fetched again at the next use.
            left = list((cache_root() / "zoo").glob(f"{entry.name}-*-*"))
            damaged = [path for path in left if path.is_dir() and not is_intact(path)]
            if damaged:
                state, folder = "damaged", damaged[0]
        entries.append(
            {
                "name": entry.name,
                "state": state,
                "path": None if folder is None else str(folder),
                "bytes": _size(folder) if folder else entry.size,
                "licence": ZOO[entry.name].licence,
            }
        )
    return {"root": str(cache_root()), "models": entries}


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
