"""MTP heads as checkpoints carry them, beside the model's own tensors or apart."""

import re
from typing import NamedTuple

import torch

from outrider.heads.files import Files, filled
from outrider.heads.head import Target
from outrider.heads.mtp import Mtp

# Our names of what is no part of the layer itself.
OURS = ("input_proj", "token_layernorm", "hidden_layernorm", "final_layernorm")


class Style(NamedTuple):
    """How one family of checkpoints names the first of its heads."""

    prefix: str  # a pattern; {layers}: the target's number of layers
    renamed: dict[str, str]  # parts that have other names than ours
    embedding_first: bool
    blind_start: bool


STYLES = (
    Style(  # DeepSeek, GLM
        r"model\.layers\.{layers}\.",
        {
            "eh_proj": "input_proj",
            "enorm": "token_layernorm",
            "hnorm": "hidden_layernorm",
            "shared_head.norm": "final_layernorm",
        },
        embedding_first=True,
        blind_start=True,
    ),
    Style(  # Qwen
        r"mtp\.",
        {
            "fc": "input_proj",
            "pre_fc_norm_embedding": "token_layernorm",
            "pre_fc_norm_hidden": "hidden_layernorm",
            "norm": "final_layernorm",
        },
        embedding_first=True,
        blind_start=False,
    ),
    Style(r"model\.mtp_layers\.0\.", {}, embedding_first=False, blind_start=True),  # MiMo
    Style(r"mtp_layers\.0\.", {}, embedding_first=True, blind_start=False),  # speculators
)
SHARED = ("shared_head.head.weight", "embed_tokens.weight")  # copies of the target's own


def mtp_names(files: Files, layers: int) -> tuple[Style, dict[str, str]] | None:
    """How the files name the tensors of an MTP head, and their names -> ours; None without one."""
    for style in STYLES:
        prefix = re.compile(style.prefix.format(layers=layers))
        names = {
            name: _ours(rest, style)
            for name in files.shapes
            if (found := prefix.match(name)) and (rest := name[found.end() :]) not in SHARED
        }
        if "input_proj.weight" in names.values():
            return style, {old: new for old, new in names.items() if new is not None}
    return None


def _ours(name: str, style: Style) -> str | None:
    if found := re.match(r"layers\.(\d+)\.(.*)", name):  # Qwen: further heads are not used
        return f"block.{found[2]}" if found[1] == "0" else None
    part, _, kind = name.rpartition(".")
    part = style.renamed.get(part, part)
    return f"{part}.{kind}" if part in OURS else f"block.{name}"


def read_mtp(
    files: Files, target: Target, dtype: torch.dtype, device: torch.device, context_length: int
) -> Mtp:
    found = mtp_names(files, target.layers)
    if found is None:
        raise files.wrong("it carries no MTP head")
    style, names = found
    return filled(
        files,
        lambda: Mtp(target, style.embedding_first, style.blind_start),
        files.renamed(names),
        dtype,
        device,
        context_length,
    )
