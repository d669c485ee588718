"""Folders that appear whole or not at all, and are checked each time before they are used."""

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

MANIFEST = "outrider-manifest.json"  # written last: without it a folder is unfinished
SMALL = 16 << 20


def cache_root() -> Path:
    """OUTRIDER_CACHE, else the platform's folder for caches."""
    if chosen := os.environ.get("OUTRIDER_CACHE"):
        return Path(chosen).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "outrider"
    variable, default = "XDG_CACHE_HOME", Path.home() / ".cache"
    if sys.platform == "win32":
        variable, default = "LOCALAPPDATA", Path.home() / "AppData" / "Local"
    return Path(os.environ.get(variable) or default) / "outrider"


def ensure_folder(folder: Path, build: Callable[[Path], None], full_check: bool = False) -> Path:
    """`folder`, built by `build(empty folder)` first if it is missing or damaged.

    The work happens in a sibling that is renamed when it is complete and on disk, under a lock
    that the processes of this machine share: a reader never sees a half-written folder.
    """
    if is_intact(folder, full_check):
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _lock(folder):
        if is_intact(folder, full_check):  # another process built it while we waited
            return folder
        for leftover in folder.parent.glob(f"{folder.name}.partial-*"):
            shutil.rmtree(leftover, ignore_errors=True)  # of a process that was killed
        partial = folder.with_name(f"{folder.name}.partial-{os.getpid()}")
        partial.mkdir()
        try:
            build(partial)
            _seal(partial)
            if folder.exists():
                shutil.rmtree(folder)
            partial.rename(folder)
            _sync(folder.parent)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return folder


def is_intact(folder: Path, full_check: bool = False) -> bool:
    """Whether all files are there with the right content.

    Every start of the program asks this. Hashing half a gigabyte of weights would take longer than
    loading them, so of large files only the size and, for safetensors, the header are compared:
    that finds every write that was cut short. `full_check` hashes them too, which finds bad disks.
    """
    try:
        files = json.loads((folder / MANIFEST).read_text())["files"]
        return bool(files) and all(
            _matches(folder / name, noted, full_check) for name, noted in files.items()
        )
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _matches(path: Path, noted: dict[str, Any], full_check: bool) -> bool:
    if path.stat().st_size != noted["size"]:
        return False
    if full_check or noted["size"] <= SMALL:
        return sha256_of(path) == noted["sha256"]
    return path.suffix != ".safetensors" or _header_fits(path)


def _header_fits(path: Path) -> bool:
    """Whether a safetensors file's header describes exactly the bytes that follow it."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > path.stat().st_size:
            return False
        header = json.loads(file.read(length))
    ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
    return 8 + length + max(ends) == path.stat().st_size


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _seal(folder: Path) -> None:
    """Notes every file's size and hash, and forces all of it to disk before the rename."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    files = {
        path.relative_to(folder).as_posix(): {
            "size": path.stat().st_size,
            "sha256": sha256_of(path),
        }
        for path in paths
    }
    manifest = folder / MANIFEST
    manifest.write_text(json.dumps({"files": files}, indent=1))
    for path in [*paths, manifest, folder]:
        _sync(path)


def _sync(path: Path) -> None:
    if path.is_dir() and sys.platform == "win32":
        return  # Windows cannot open folders
    # Windows flushes only handles that may write.
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _lock(folder: Path) -> FileLock:
    lock = FileLock(folder.with_name(folder.name + ".lock"))
    try:
        lock.acquire(timeout=0)
        lock.release()
    except Timeout:
        print(f"waiting for another process that prepares {folder.name}", file=sys.stderr)
    return lock
