"""Medusa heads as published: by their authors, and as vLLM has them."""

import re

import torch
from torch import Tensor

from outrider.heads.files import Files, filled
from outrider.heads.fit import check_d2t, check_vocabulary
from outrider.heads.head import Target
from outrider.heads.medusa import Medusa, MedusaOptions

LINEAR = re.compile(r"(\d+)\.(\d+)\.linear\.weight")


def read_medusa(
    files: Files, target: Target, dtype: torch.dtype, device: torch.device, context_length: int
) -> Medusa:
    tensors = _renamed(files.take(files.shapes))
    found = [match for name in tensors if (match := LINEAR.fullmatch(name))]
    heads, layers = (1 + max(int(match[part]) for match in found) for part in (1, 2))
    declared = files.config.get("medusa_num_heads", files.config.get("num_heads", heads))
    if declared != heads:
        raise files.wrong(f"its config.json names {declared} heads, and its tensors are of {heads}")
    hidden = tensors["0.0.linear.weight"].shape[0] if "0.0.linear.weight" in tensors else 0
    if hidden != target.hidden:
        raise files.wrong(
            f"its heads read states of {hidden} numbers, and the target's have {target.hidden}; "
            "it was made for another model"
        )
    own = f"0.{layers}.weight"
    shared = "lm_head.weight" in tensors
    output = tensors.get(own if own in tensors else "lm_head.weight")
    vocabulary = target.vocabulary if output is None else len(output)
    if "d2t" not in tensors:
        check_vocabulary(files, vocabulary, target)
    check_d2t(files, target.vocabulary, tensors.get("d2t"), None)
    options = MedusaOptions(
        hidden=hidden,
        heads=heads,
        layers=layers,
        draft_vocabulary=vocabulary,
        target_vocabulary=target.vocabulary,
        bias="0.0.linear.bias" in tensors,
        own_outputs=own in tensors,
        shared_output=shared,
    )
    return filled(files, lambda: Medusa(options), tensors, dtype, device, context_length)


def _renamed(given: dict[str, Tensor]) -> dict[str, Tensor]:
    """vLLM's names -> the authors', which are ours."""
    tensors: dict[str, Tensor] = {}
    for name, tensor in given.items():
        name = re.sub(r"^blocks\.(\d+)\.layers\.(\d+)\.", r"\1.\2.linear.", name)
        tensors[name.removeprefix("medusa_head.")] = tensor
    layers = 1 + max((int(m[2]) for name in tensors if (m := LINEAR.fullmatch(name))), default=-1)
    for name in [name for name in tensors if name.startswith("lm_heads.")]:
        head = name.split(".")[1]
        tensors[f"{head}.{layers}.weight"] = tensors.pop(name)
    token_map = tensors.pop("token_map", None)
    if token_map is not None:  # ids instead of offsets
        tensors["d2t"] = token_map.long() - torch.arange(len(token_map))
    return tensors
