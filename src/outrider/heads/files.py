"""The files of a trained drafter: what they hold, and a network filled from them or refused."""

import json
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers import AutoConfig

from outrider.core.errors import ModelError
from outrider.heads.block import Rotary
from outrider.heads.head import Head
from outrider.model.rotary import fix_rotary
from outrider.model.source import locate

log = logging.getLogger(__name__)

SHOWN = 3  # tensors named where many are wrong
LAYER_KEYS = (
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "rms_norm_eps",
    "hidden_act",
    "rope_theta",
    "rope_scaling",
    "rope_parameters",
    "max_position_embeddings",
    "attention_bias",
    "mlp_bias",
    "vocab_size",
)

AnyHead = TypeVar("AnyHead", bound=Head)


@dataclass
class Files:
    """A folder's configuration and tensors; nothing is read before it is asked for."""

    name: str
    path: Path

    @classmethod
    def of(cls, name: str, revision: str | None = None, sure: bool = False) -> "Files":
        """`sure`: they are known to be a drafter's, and not a model's. Weights in the older format
        are fetched only for drafters, since models are not read from it."""
        files = cls(name, locate(name, revision))
        if not files._safetensors and (sure or files._look_like_heads):
            files = cls(name, locate(name, revision, pickles=True))
        return files

    @property
    def _look_like_heads(self) -> bool:
        hints = {"medusa_num_heads", "num_heads", "eagle_config", "draft_vocab_size", "block_size"}
        return bool(hints & self.config.keys()) or self.config.get("num_hidden_layers", 1) == 1

    @cached_property
    def config(self) -> dict[str, Any]:
        if self.path.is_file():  # a GGUF file
            return {}
        try:
            found = json.loads((self.path / "config.json").read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise ModelError(f"the config.json of {self.name!r} cannot be read: {error}") from error
        return found if isinstance(found, dict) else {}

    @cached_property
    def record(self) -> tuple[float, ...]:
        """By depth, how often guesses hold once one came so deep, on texts that were held out of
        their training: its report says so, where there is one. No guess came deeper than a depth at
        which none held."""
        file = self.path / "report.json"
        if not file.is_file():
            return ()
        try:
            shares = json.loads(file.read_text("utf-8"))["held out"][-1]["depths"]
            if not all(0 <= share <= 1 for share in shares):
                raise ValueError(f"shares of guesses cannot be {shares}")
            return tuple(shares[: shares.index(0) + 1] if 0 in shares else shares)
        except (OSError, ValueError, LookupError, TypeError) as error:
            log.warning("the report.json of drafter %r is not used: %r", self.name, error)
            return ()

    @cached_property
    def shapes(self) -> dict[str, list[int]]:
        """Of all tensors. Safetensors tell without being read."""
        found: dict[str, list[int]] = {}
        try:
            for file in self._safetensors:
                with safe_open(file, "pt") as opened:
                    for key in opened.keys():  # noqa: SIM118  it is no dict
                        found[key] = list(opened.get_slice(key).get_shape())
        except SafetensorError as error:
            raise self.damaged(error) from error
        return found or {key: list(tensor.shape) for key, tensor in self._pickled.items()}

    def take(self, names: Iterable[str]) -> dict[str, Tensor]:
        """Those of these tensors that are there."""
        wanted = set(names)
        if not self._safetensors:
            return {key: tensor for key, tensor in self._pickled.items() if key in wanted}
        found: dict[str, Tensor] = {}
        for file in self._safetensors:
            with safe_open(file, "pt") as opened:
                found |= {key: opened.get_tensor(key) for key in wanted.intersection(opened.keys())}
        return found

    def renamed(self, names: dict[str, str]) -> dict[str, Tensor]:
        """Tensors under new names; `names`: the files' -> the new ones."""
        return {names[old]: tensor for old, tensor in self.take(names).items()}

    @property
    def _safetensors(self) -> list[Path]:
        return sorted(self.path.glob("*.safetensors")) if self.path.is_dir() else []

    @cached_property
    def _pickled(self) -> dict[str, Tensor]:
        """Older checkpoints; only tensors are taken out of a pickle, nothing in it is run."""
        found: dict[str, Tensor] = {}
        for file in sorted([*self.path.glob("*.bin"), *self.path.glob("*.pt")]):
            try:
                found |= torch.load(file, map_location="cpu", weights_only=True)
            except Exception as error:
                raise self.damaged(error) from error
        return found

    def damaged(self, error: Exception) -> ModelError:
        said = " ".join(str(error).split())[:200]
        return ModelError(f"the weights of {self.name!r} are damaged ({said}); fetch them again")

    def wrong(self, what: str) -> ModelError:
        return ModelError(f"drafter {self.name!r}: {what}")

    def size(self, tensor: str, dimension: int) -> int:
        """Of a tensor that cannot be done without."""
        if tensor not in self.shapes:
            raise self.wrong(f"tensor {tensor} is missing; the checkpoint is incomplete")
        return self.shapes[tensor][dimension]


def layers_config(files: Files, given: dict[str, Any], shapes: dict[str, list[int]]) -> Any:
    """The configuration of a drafter's own layers, in Llama's terms. How many there are and how
    large a head is follows from the tensors: configurations are known to be wrong there."""
    if "sliding_attention" in (given.get("layer_types") or []):
        raise files.wrong("its layers have sliding windows, which are not supported")
    needed = ("hidden_size", "num_attention_heads", "intermediate_size")
    if missing := [key for key in needed if given.get(key) is None]:
        raise files.wrong(f"its config.json lacks {', '.join(missing)}")
    kept = {key: given[key] for key in LAYER_KEYS if given.get(key) is not None}
    kept.setdefault("num_key_value_heads", kept["num_attention_heads"])
    query = "layers.0.self_attn.q_proj.weight"
    if query not in shapes:
        raise files.wrong(f"tensor {query} is missing; the checkpoint is incomplete")
    kept["head_dim"] = shapes[query][0] // kept["num_attention_heads"]
    kept["num_hidden_layers"] = 1 + max(
        int(name.split(".")[1]) for name in shapes if name.startswith("layers.")
    )
    family = "qwen3" if "layers.0.self_attn.q_norm.weight" in shapes else "llama"
    try:
        return AutoConfig.for_model(family, **kept)
    except Exception as error:  # whatever a configuration class objects to
        raise files.wrong(f"its config.json is not usable: {error}") from error


def filled(
    files: Files,
    make: Callable[[], AnyHead],
    tensors: dict[str, Tensor],
    dtype: torch.dtype,
    device: torch.device,
    context_length: int,
) -> AnyHead:
    """The head that `make` builds, with exactly these tensors; refused where they do not fit."""
    with torch.device("meta"):
        head = make()
    expected = {key: list(tensor.shape) for key, tensor in head.state_dict().items()}
    got = {key: list(tensor.shape) for key, tensor in tensors.items()}
    wrong = {
        "missing": sorted(expected.keys() - got.keys()),
        "unexpected": sorted(got.keys() - expected.keys()),
        "misshapen": [
            f"{key} {got[key]} instead of {shape}"
            for key, shape in sorted(expected.items())
            if key in got and got[key] != shape
        ],
    }
    if any(wrong.values()):
        parts = [
            f"{kind}: {', '.join(keys[:SHOWN])}"
            + (f" and {len(keys) - SHOWN} more" if len(keys) > SHOWN else "")
            for kind, keys in wrong.items()
            if keys
        ]
        raise files.wrong(f"its tensors are not those of this kind; {'; '.join(parts)}")
    moved = {
        key: tensor.to(device, dtype if tensor.is_floating_point() else None)
        for key, tensor in tensors.items()
    }
    head.load_state_dict(moved, assign=True)
    if head.config is not None:
        head.rotary = Rotary(head.config).to(device)  # computed, not loaded
        fix_rotary(head, context_length)
    return head.eval().requires_grad_(False)
