"""A drafter read, checked against its target, and written in another format."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save_file

from outrider.core.errors import ConfigError, OutriderError, unknown_name
from outrider.export import original, speculators
from outrider.export.layout import Source, Unfit, Writer, Written
from outrider.export.target import Found, embeddings, find_target
from outrider.heads.files import Files
from outrider.heads.formats import WORDS, kind_of
from outrider.heads.read_dspark import read_dspark
from outrider.heads.read_eagle3 import read_eagle3
from outrider.heads.read_medusa import read_medusa


class Kind(NamedTuple):
    read: Any
    formats: dict[str, Writer]


KINDS = {
    "eagle3": Kind(read_eagle3, {"speculators": speculators.eagle3, "eagle3": original.eagle3}),
    "dspark": Kind(read_dspark, {"speculators": speculators.dspark, "dspark": original.dspark}),
    "medusa": Kind(
        read_medusa, {"medusa": original.medusa, "medusa-vllm": original.medusa_of_vllm}
    ),
}
FORMATS = sorted({name for kind in KINDS.values() for name in kind.formats})


def export(drafter: str, out: Path, format: str, target: str | None = None) -> None:
    """Write the drafter that `drafter` names, a folder or hub id, into the folder `out`. `target`
    is the model it was trained for; without it, what its files say."""
    if format not in FORMATS:
        raise ConfigError(unknown_name("format", format, FORMATS))
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out} is not empty; give another --out")
    files = Files.of(drafter, sure=True)
    kind = kind_of(files)
    if kind not in KINDS:
        held = "an ordinary model" if kind is None else WORDS[kind]
        known = ", ".join(WORDS[name] for name in KINDS)
        raise ConfigError(f"{drafter!r} holds {held}, which cannot be exported; {known} can")
    found = find_target(files, target)
    source = _read(files, kind, found)
    written = _written(source, KINDS[kind].formats, format, WORDS[kind])
    if written.with_embeddings:
        written.tensors["embed_tokens.weight"] = embeddings(found).to(source.head.dtype)
    _write(written, out)


def _read(files: Files, kind: str, target: Found) -> Source:
    """In the precision of its files."""
    stored = [t.dtype for t in files.take(files.shapes).values() if t.is_floating_point()]
    dtype = stored[0]
    for other in stored:
        dtype = torch.promote_types(dtype, other)
    # The last one: how long texts may be. That matters where it runs, not in what is written.
    head = KINDS[kind].read(files, target.shape, dtype, torch.device("cpu"), 2048)
    return Source(head, target.shape, target.elsewhere)


def _written(source: Source, formats: dict[str, Writer], format: str, words: str) -> Written:
    """Refused with the formats that can hold it."""
    refused, reason = {}, f"it is for other drafters than {words}"
    for name, writer in formats.items():
        try:
            written = writer(source)
            if name == format:
                return written
        except Unfit as error:
            refused[name] = str(error)
    able = [name for name in formats if name not in refused]
    remedy = f"--format {' or '.join(able)} can" if able else "no other format can"
    raise ConfigError(
        f"format {format!r} cannot hold this drafter: {refused.get(format, reason)}; {remedy}"
    )


def _write(written: Written, out: Path) -> None:
    tensors = {key: tensor.contiguous() for key, tensor in written.tensors.items()}
    try:
        out.mkdir(parents=True, exist_ok=True)
        if written.pickle:
            torch.save(tensors, out / written.pickle)
        else:
            save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
        (out / "config.json").write_text(json.dumps(written.config, indent=2) + "\n", "utf-8")
    except (OSError, RuntimeError) as error:
        raise OutriderError(
            f"{out} could not be written ({error}); make room and empty it, then try again"
        ) from error
