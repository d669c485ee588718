"""EAGLE-3 as published: by its authors, by SpecForge, in the speculators format."""

from typing import Any

import torch

from outrider.heads.eagle3 import Eagle3, Eagle3Options
from outrider.heads.files import Files, filled, layers_config
from outrider.heads.fit import check_architecture, check_d2t, check_taps, check_vocabulary
from outrider.heads.formats import layers_given, plain_names
from outrider.heads.head import Target


def read_eagle3(
    files: Files, target: Target, dtype: torch.dtype, device: torch.device, context_length: int
) -> Eagle3:
    check_architecture(files, target)
    names = plain_names(files.shapes)
    shapes = {new: files.shapes[old] for old, new in names.items()}
    config = layers_config(files, layers_given(files), shapes)
    options = _options(files, shapes, config, target)
    tensors = files.renamed(names)
    if not options.reduced:
        tensors.pop("d2t", None)  # the identity
    check_d2t(files, target.vocabulary, tensors.get("d2t"), files.take(["t2d"]).get("t2d"))
    return filled(files, lambda: Eagle3(config, options), tensors, dtype, device, context_length)


def _options(
    files: Files, shapes: dict[str, list[int]], config: Any, target: Target
) -> Eagle3Options:
    given = files.config
    eagle: dict[str, Any] = given.get("eagle_config") or {}

    def flag(key: str) -> bool:
        # Absent means no, as in the authors' code and in speculators.
        return bool(given.get(key, eagle.get(key, False)))

    inputs = files.size("fc.weight" if "fc.weight" in files.shapes else "model.fc.weight", 1)
    taps = _taps(files, eagle, inputs // target.hidden, target.layers)
    if inputs != len(taps) * target.hidden:
        raise files.wrong(
            f"its fc.weight reads {inputs} numbers, but {len(taps)} states of this target have "
            f"{len(taps) * target.hidden}; it was made for another model"
        )
    own_embedding = "embed_tokens.weight" in shapes
    if own_embedding:
        check_vocabulary(files, shapes["embed_tokens.weight"][0], target)
    elif config.hidden_size != target.hidden:
        raise files.wrong(
            f"it has no embed_tokens.weight, and the target's are {target.hidden} wide instead of "
            f"{config.hidden_size}"
        )
    return Eagle3Options(
        taps=taps,
        target_hidden=target.hidden,
        draft_vocabulary=shapes.get("lm_head.weight", [target.vocabulary])[0],
        target_vocabulary=target.vocabulary,
        norm_before_residual=flag("norm_before_residual"),
        norm_before_fc=flag("norm_before_fc"),
        fc_norm=flag("fc_norm"),
        norm_output=flag("norm_output"),
        own_embedding=own_embedding,
    )


def _taps(files: Files, eagle: dict[str, Any], count: int, layers: int) -> tuple[int, ...]:
    key = "eagle_aux_hidden_state_layer_ids"
    ids = files.config.get(key) or eagle.get(key)
    if ids is None:
        ids = [2, layers // 2, layers - 3]
    elif files.config.get("architectures") == ["LlamaForCausalLMEagle3"]:
        ids = [i + 1 for i in ids]  # SpecForge counts by the outputs of layers
    return check_taps(files, ids, layers)
