"""The model that a drafter was trained for: its shape, its name elsewhere, its embeddings."""

import json
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from outrider.core.errors import ConfigError, ModelError
from outrider.heads.files import Files
from outrider.heads.head import Target
from outrider.model.gguf_file import read_gguf_config
from outrider.model.quiet import quiet_transformers
from outrider.model.source import locate
from outrider.model.zoo import ZOO


class Found(NamedTuple):
    name: str  # as we know it
    elsewhere: str  # a hub id or a path: what other programs find it by
    shape: Target  # its model has no weights


def find_target(files: Files, given: str | None) -> Found:
    """The model that was `given`, else the one that the drafter's files name."""
    name = given or _noted(files)
    if name is None:
        raise ConfigError(
            f"{files.name!r} does not say which model it was trained for; give --target MODEL"
        )
    try:
        path = locate(name, weights=False)
    except ModelError as error:
        hint = "" if given else "; give --target MODEL if it is elsewhere by now"
        raise ModelError(f"the target of {files.name!r}: {error}{hint}") from error
    with quiet_transformers(), torch.device("meta"):
        try:
            config = read_gguf_config(path) if path.is_file() else AutoConfig.from_pretrained(path)
            model = AutoModelForCausalLM.from_config(config)
        except Exception as error:  # whatever a configuration makes a class object to
            raise ModelError(f"the target {name!r} cannot be read: {error}") from error
    here = name in ZOO or Path(name).expanduser().exists()
    elsewhere = str(path.resolve()) if here else name.split("@")[0]
    return Found(name, elsewhere, Target.of(model))


def _noted(files: Files) -> str | None:
    """What training or a published configuration says."""
    report = files.path / "report.json"
    try:
        said = json.loads(report.read_text("utf-8")) if report.is_file() else {}
    except ValueError as error:
        raise ModelError(f"{report} cannot be read ({error}); give --target MODEL") from error
    verifier = (files.config.get("speculators_config") or {}).get("verifier") or {}
    name: str | None = (
        said.get("target")
        or verifier.get("name_or_path")
        or files.config.get("base_model_name_or_path")
    )
    return name


def embeddings(target: Found) -> Tensor:
    """[vocabulary, hidden size], out of the target's files; nothing else of them is read."""
    model = target.shape.model
    weight = model.get_input_embeddings().weight
    key = next(name for name, parameter in model.named_parameters() if parameter is weight)
    path = locate(target.name)
    found = Files(target.name, path).take([key]) if path.is_dir() else {}
    if key not in found:
        raise ModelError(
            f"the drafter uses the embeddings of {target.name!r}, which the exported files must "
            f"hold, and no safetensors there have {key}; give --target a folder that has them"
        )
    return found[key]
