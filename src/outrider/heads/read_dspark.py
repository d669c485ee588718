"""DFlash and DSpark as published: by their authors, and in the speculators format."""

from typing import Any, get_args

import torch

from outrider.heads.dspark import DSpark, DSparkOptions, MarkovType
from outrider.heads.files import Files, filled, layers_config
from outrider.heads.fit import check_architecture, check_d2t, check_taps, check_vocabulary
from outrider.heads.formats import layers_given, plain_names
from outrider.heads.head import Target


def read_dspark(
    files: Files, target: Target, dtype: torch.dtype, device: torch.device, context_length: int
) -> DSpark:
    check_architecture(files, target)
    names = plain_names(files.shapes)
    shapes = {new: files.shapes[old] for old, new in names.items()}
    config = layers_config(files, layers_given(files), shapes)
    options = _options(files, shapes, config, target)
    tensors = files.renamed(names)
    if options.draft_vocabulary == options.target_vocabulary:
        tensors.pop("d2t", None)  # the identity
    check_d2t(files, target.vocabulary, tensors.get("d2t"), files.take(["t2d"]).get("t2d"))
    return filled(files, lambda: DSpark(config, options), tensors, dtype, device, context_length)


def _options(
    files: Files, shapes: dict[str, list[int]], config: Any, target: Target
) -> DSparkOptions:
    taps = _taps(files, target.layers)
    inputs = files.size("fc.weight", 1)
    if inputs != len(taps) * target.hidden:
        raise files.wrong(
            f"its fc.weight reads {inputs} numbers, but {len(taps)} states of this target have "
            f"{len(taps) * target.hidden}; it was made for another model"
        )
    own_embedding, own_output = (f"{x}.weight" in shapes for x in ("embed_tokens", "lm_head"))
    if own_embedding:
        check_vocabulary(files, shapes["embed_tokens.weight"][0], target)
    if config.hidden_size != target.hidden and not (own_embedding and own_output):
        raise files.wrong(
            f"it uses the target's embeddings or output layer, which are {target.hidden} wide "
            f"instead of {config.hidden_size}"
        )
    markov = "markov_head.markov_w1.weight"
    if markov in shapes:
        check_vocabulary(files, shapes[markov][0], target)
    confidence = "confidence_head.proj.weight"
    return DSparkOptions(
        taps=taps,
        target_hidden=target.hidden,
        draft_vocabulary=shapes["lm_head.weight"][0] if own_output else target.vocabulary,
        target_vocabulary=target.vocabulary,
        block=_number(files, "block_size", 2, 256),
        mask_token=_number(files, "mask_token_id", 0, target.vocabulary - 1),
        # Where nothing is said: what the two methods' own code does.
        from_anchor=bool(files.config.get("sample_from_anchor", markov in shapes)),
        markov_rank=shapes[markov][1] if markov in shapes else 0,
        markov_type=_markov_type(files),
        confidence=confidence in shapes,
        confidence_with_markov=shapes.get(confidence, [1, 0])[1] > config.hidden_size,
        own_embedding=own_embedding,
        own_output=own_output,
    )


def _given(files: Files, key: str) -> Any:
    return files.config.get(key, (files.config.get("dflash_config") or {}).get(key))


def _number(files: Files, key: str, least: int, most: int) -> int:
    found = _given(files, key)
    if isinstance(found, bool) or not isinstance(found, int) or not least <= found <= most:
        raise files.wrong(f"its config.json has {key}={found!r}; it must be {least} to {most}")
    return found


def _markov_type(files: Files) -> MarkovType:
    kind: Any = files.config.get("markov_head_type", "vanilla")
    if kind not in get_args(MarkovType):
        known = ", ".join(get_args(MarkovType))
        raise files.wrong(f"its Markov head is {kind!r}; {known} can be used")
    checked: MarkovType = kind
    return checked


def _taps(files: Files, layers: int) -> tuple[int, ...]:
    """speculators names layers by their inputs, the methods' authors by their outputs."""
    ids = files.config.get("aux_hidden_state_layer_ids")
    if ids is None:
        outputs = _given(files, "target_layer_ids")
        if not isinstance(outputs, list):
            raise files.wrong("its config.json does not say which layers of the target it reads")
        ids = [i + 1 for i in outputs]
    return check_taps(files, ids, layers)
