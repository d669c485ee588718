"""EAGLE-1 and 2 as published by their authors."""

import torch

from outrider.heads.eagle import Eagle
from outrider.heads.files import Files, filled, layers_config
from outrider.heads.fit import check_vocabulary
from outrider.heads.formats import layers_given, plain_names
from outrider.heads.head import Target


def read_eagle(
    files: Files, target: Target, dtype: torch.dtype, device: torch.device, context_length: int
) -> Eagle:
    names = plain_names(files.shapes, dropped=("lm_head.weight",))  # a copy of the target's
    shapes = {new: files.shapes[old] for old, new in names.items()}
    config = layers_config(files, layers_given(files), shapes)
    if config.hidden_size != target.hidden:
        raise files.wrong(
            f"it continues states of {config.hidden_size} numbers, and the target's have "
            f"{target.hidden}; it was made for another model"
        )
    own = shapes.get("embed_tokens.weight", [None])[0]
    if own is not None:
        check_vocabulary(files, own, target)
    # A configuration that says nothing means a bias; the tensors themselves know.
    bias = "fc.bias" in shapes
    return filled(
        files,
        lambda: Eagle(config, bias, own),
        files.renamed(names),
        dtype,
        device,
        context_length,
    )
