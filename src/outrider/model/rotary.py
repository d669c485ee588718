"""Rotary factors that do not depend on the other requests of a pass."""

from typing import Any

from torch import nn
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from outrider.core.errors import ModelError

FIXED = "fixed"  # any name that transformers' update before each forward does not react to


def fix_rotary(model: nn.Module, max_len: int) -> None:
    """Freezes the factors of `dynamic` and `longrope` rotaries to those for `max_len` tokens.

    transformers recomputes them in every pass from the longest position in it, so that one long
    request would change what its neighbours write, and a text its own earlier part.
    """
    fixed = [_fix_module(module, max_len) for module in model.modules()]
    if not any(fixed) and (names := _varying(getattr(model, "config", None))):
        raise ModelError(
            f"the rotary embedding ({', '.join(sorted(names))}) changes with the longest request "
            "and is computed by code that is not known, so it cannot be fixed"
        )


def _varies(rope_type: Any) -> bool:
    # The same two tests as in transformers' `dynamic_rope_update`.
    return isinstance(rope_type, str) and ("dynamic" in rope_type or rope_type == "longrope")


def _fix_module(module: nn.Module, max_len: int) -> bool:
    """One rotary module; some hold one set of factors for each kind of layer."""
    kinds = getattr(module, "rope_type", None)
    if isinstance(kinds, dict):
        varying = [layer for layer, kind in kinds.items() if _varies(kind)]
        for layer in varying:
            _set_factors(module, kinds[layer], max_len, layer)
        if varying:
            module.rope_type = {**kinds, **dict.fromkeys(varying, FIXED)}  # type: ignore[assignment]
        return bool(varying)
    if not _varies(kinds):
        return False
    _set_factors(module, str(kinds), max_len, None)
    module.rope_type = FIXED  # type: ignore[assignment]
    return True


def _set_factors(module: nn.Module, rope_type: str, max_len: int, layer: str | None) -> None:
    prefix = f"{layer}_" if layer else ""
    old = getattr(module, f"{prefix}inv_freq", None)  # [rotary dimensions / 2]
    if old is None or rope_type not in ROPE_INIT_FUNCTIONS:
        raise ModelError(f"rotary embedding {rope_type!r} cannot be fixed at one length")
    options = {"layer_type": layer} if layer else {}
    inv_freq, scaling = ROPE_INIT_FUNCTIONS[rope_type](
        module.config, old.device, seq_len=max_len, **options
    )
    module.register_buffer(f"{prefix}inv_freq", inv_freq, persistent=False)
    setattr(module, f"{prefix}attention_scaling", scaling)


def _varying(config: Any) -> set[str]:
    """Rope types of a configuration that change with the length, whatever their nesting."""
    parameters = getattr(config, "rope_parameters", None) or {}
    nested = [value for value in parameters.values() if isinstance(value, dict)]
    kinds = [part.get("rope_type") for part in [parameters, *nested]]
    return {str(kind) for kind in kinds if _varies(kind)}
