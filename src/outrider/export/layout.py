"""What a drafter is written from and what is written, and what all formats say alike."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from outrider.heads.head import Target

# Of a drafter's own layers: what every program must be told.
COPIED = (
    "model_type",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "hidden_act",
    "rms_norm_eps",
    "attention_bias",
)


class Unfit(Exception):
    """A format cannot hold a drafter; the message goes on after "it cannot hold this drafter:"."""


@dataclass(frozen=True)
class Source:
    """A drafter as it was read."""

    head: Any  # the network; which class, is up to the kind
    target: Target
    target_name: str  # a hub id or a path: what other programs find the target by

    @property
    def architectures(self) -> list[str]:
        model = self.target.model
        return list(getattr(model.config, "architectures", None) or [type(model).__name__])


@dataclass(frozen=True)
class Written:
    """The contents of a folder. Without a name for a `pickle`, weights become safetensors."""

    tensors: dict[str, Tensor]
    config: dict[str, Any]
    pickle: str | None = None
    with_embeddings: bool = False  # the target's are to be added


Writer = Callable[[Source], Written]


def layers_config(source: Source) -> dict[str, Any]:
    """The drafter's own layers, in Llama's or Qwen 3's terms."""
    config = source.head.config
    rope = dict(config.rope_parameters)
    written = {key: getattr(config, key) for key in COPIED}
    written |= {
        "vocab_size": source.target.vocabulary,
        "max_position_embeddings": _positions(source, rope),
        # Programs that know the new key read it, older ones the other two.
        "rope_parameters": rope,
        "rope_theta": rope["rope_theta"],
        "rope_scaling": None if rope["rope_type"] == "default" else rope,
        "tie_word_embeddings": False,
        "dtype": str(source.head.dtype).removeprefix("torch."),
    }
    if config.model_type == "qwen3":
        count = config.num_hidden_layers
        written |= {"layer_types": ["full_attention"] * count, "use_sliding_window": False}
    else:
        written["mlp_bias"] = config.mlp_bias
    return written


def _positions(source: Source, rope: dict[str, Any]) -> int:
    """How far a program lets it draft. Plain rotary embeddings go as far as the target does;
    others are computed from the number."""
    own = int(source.head.config.max_position_embeddings)
    targets = getattr(source.target.model.config.get_text_config(), "max_position_embeddings", 0)
    return max(own, targets or 0) if rope["rope_type"] == "default" else own


def tensors_of(source: Source) -> dict[str, Tensor]:
    """The head's own, and where it knows a part of the target's tokens only, which ones those are:
    d2t [draft vocabulary] as offsets, t2d [vocabulary] as a mask."""
    head, vocabulary = source.head, source.target.vocabulary
    tensors: dict[str, Tensor] = dict(head.state_dict())
    if head.d2t is not None:
        known = torch.zeros(vocabulary, dtype=torch.bool)
        known[torch.arange(len(head.d2t)) + head.d2t] = True
        tensors["t2d"] = known
    return tensors


def require(fits: bool, otherwise: str) -> None:
    if not fits:
        raise Unfit(otherwise)
