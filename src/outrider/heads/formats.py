"""Which kind of trained drafter some files hold: told by the files, not by a flag."""

import re
from math import prod
from typing import Any

from outrider.heads.files import Files

# What a configuration may call itself -> our name
DECLARED = {"eagle3": "eagle3", "dflash": "dspark", "dspark": "dspark", "mtp": "mtp"}
MEDUSA = re.compile(r"(\d+\.\d+\.linear|blocks\.\d+\.layers\.\d+)\.weight")
LAYER = re.compile(r"(midlayer|layers\.\d+)\.")
WORDS = {
    "medusa": "Medusa heads",
    "eagle": "EAGLE-1/2",
    "eagle3": "EAGLE-3",
    "dspark": "DFlash/DSpark",
    "mtp": "MTP heads",
}


def kind_of(files: Files) -> str | None:
    """A key of WORDS; None for an ordinary model."""
    declared = files.config.get("speculators_model_type")
    if declared is not None:
        if declared not in DECLARED:
            known = ", ".join(DECLARED)
            raise files.wrong(
                f"it is {declared!r} in the speculators format, of which {known} can be used"
            )
        return DECLARED[declared]
    if not files.path.is_dir():
        return None
    names = {name.removeprefix("model.") for name in files.shapes}
    if any(MEDUSA.fullmatch(name) for name in names):
        return "medusa"
    if "fc.weight" in names and "hidden_norm.weight" in names:
        return "dspark"
    if "midlayer.hidden_norm.weight" in names or "layers.0.hidden_norm.weight" in names:
        return "eagle3"
    if "fc.weight" in names and "layers.0.self_attn.q_proj.weight" in names:
        return "eagle"
    return None


def layers_given(files: Files) -> dict[str, Any]:
    """The part of the configuration that describes the drafter's own layers."""
    given: dict[str, Any] = files.config.get("transformer_layer_config", files.config)
    return given


def plain_names(names: Any, dropped: tuple[str, ...] = ()) -> dict[str, str]:
    """The checkpoint's names -> ours; without those that a drafter does not need."""
    useless = (*dropped, "t2d", "verifier_lm_head.weight", "verifier_norm.weight")
    renamed = {
        name: name.removeprefix("model.").replace("midlayer.", "layers.0.") for name in names
    }
    return {
        old: new
        for old, new in renamed.items()
        if new not in useless and not new.endswith("rotary_emb.inv_freq")
    }


def described(files: Files) -> str:
    """What a trained drafter is, in a line."""
    kind = kind_of(files)
    assert kind is not None
    given = "speculators format" if "speculators_model_type" in files.config else "original format"
    count = sum(prod(shape) for shape in files.shapes.values())
    parts = [f"{WORDS[kind]}, {given}, {count / 1e6:.1f} million numbers"]
    layers = {m[0] for name in files.shapes if (m := LAYER.search(name))}
    if layers:
        parts.append(f"{len(layers)} layer{'s' * (len(layers) > 1)}")
    output = files.shapes.get("lm_head.weight")
    if output is not None:
        parts.append(f"writes {output[0]} tokens")
    verifier = (files.config.get("speculators_config") or {}).get("verifier") or {}
    base = verifier.get("name_or_path") or files.config.get("base_model_name_or_path")
    if base:
        parts.append(f"made for {base}")
    return "; ".join(parts)
