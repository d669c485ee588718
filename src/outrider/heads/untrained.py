"""Checkpoints of heads that have learned nothing: audits need a drafter for any target, and being
wrong is what they are about."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

from outrider.heads.dspark import DSpark, DSparkOptions
from outrider.heads.eagle import Eagle
from outrider.heads.eagle3 import Eagle3, Eagle3Options
from outrider.heads.head import Head, Target
from outrider.heads.medusa import Medusa, MedusaOptions
from outrider.heads.mtp import Mtp
from outrider.model.gguf_file import read_gguf_config
from outrider.model.source import locate

Checkpoint = tuple[Head, dict[str, Any]]  # and its config.json

_folders: list[TemporaryDirectory[str]] = []  # removed when Python ends


@cache
def untrained(kind: str, target: str) -> str:
    """A folder with such a checkpoint for the model that `target` names."""
    path = locate(target, weights=False)
    config = read_gguf_config(path) if path.is_file() else AutoConfig.from_pretrained(path)
    _folders.append(TemporaryDirectory(prefix="outrider-"))
    return str(write_untrained(kind, config.get_text_config(), Path(_folders[-1].name)))


def write_untrained(kind: str, target: Any, folder: Path, seed: int = 0, **options: Any) -> Path:
    """For a target with this configuration. `options` override those of the head."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        head, config = MAKERS[kind](target, options)
        for name, parameter in head.named_parameters():
            if "norm" not in name:
                torch.nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5)
            else:  # ones would hide a norm that is left out
                torch.nn.init.uniform_(parameter, 0.5, 1.5)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {key: tensor.contiguous() for key, tensor in head.state_dict().items()}
    if kind == "mtp":
        tensors = {f"mtp_layers.0.{k.removeprefix('block.')}": t for k, t in tensors.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    return folder


def _layers(target: Any, count: int) -> dict[str, Any]:
    heads = target.num_attention_heads
    return {
        "model_type": "llama",
        "hidden_size": target.hidden_size,
        "intermediate_size": getattr(target, "intermediate_size", None) or 4 * target.hidden_size,
        "num_hidden_layers": count,
        "num_attention_heads": heads,
        "num_key_value_heads": getattr(target, "num_key_value_heads", None) or heads,
        "head_dim": getattr(target, "head_dim", None) or target.hidden_size // heads,
        "max_position_embeddings": 4096,
        "rope_theta": 10000.0,
        "rms_norm_eps": 1e-6,
        "vocab_size": target.vocab_size,
    }


def spread_taps(layers: int) -> tuple[int, ...]:
    """EAGLE-3's choice of layers; in shallow models some of them coincide."""
    return (min(2, layers - 1), layers // 2, max(0, layers - 3))


def some_tokens(vocabulary: int) -> torch.Tensor:
    """d2t [draft vocabulary] that leaves every fourth token out."""
    ids = torch.tensor([i for i in range(vocabulary) if i % 4 != 3])
    return ids - torch.arange(len(ids))


def _eagle3(target: Any, given: dict[str, Any]) -> Checkpoint:
    layers = _layers(target, given.pop("num_hidden_layers", 1)) | given.pop("layers", {})
    d2t = some_tokens(target.vocab_size)
    options = Eagle3Options(
        **{
            "taps": spread_taps(target.num_hidden_layers),
            "target_hidden": target.hidden_size,
            "draft_vocabulary": len(d2t),
            "target_vocabulary": target.vocab_size,
            **given,
        }
    )
    head = Eagle3(AutoConfig.for_model(**layers), options)
    if head.d2t is not None:
        head.register_buffer("d2t", d2t)
    flags = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
    config = {
        "speculators_model_type": "eagle3",
        "transformer_layer_config": layers,
        "draft_vocab_size": options.draft_vocabulary,
        "eagle_aux_hidden_state_layer_ids": list(options.taps),
        **{flag: getattr(options, flag) for flag in flags},
    }
    return head, config


def _eagle(target: Any, given: dict[str, Any]) -> Checkpoint:
    layers = _layers(target, 1)
    head = Eagle(
        AutoConfig.for_model(**layers), given.get("bias", True), given.get("own_embedding")
    )
    return head, {"architectures": ["LlamaForCausalLM"], **layers}


def _medusa(target: Any, given: dict[str, Any]) -> Checkpoint:
    options = MedusaOptions(
        **{
            "hidden": target.hidden_size,
            "heads": 3,
            "layers": 1,
            "draft_vocabulary": target.vocab_size,
            "target_vocabulary": target.vocab_size,
            **given,
        }
    )
    head = Medusa(options)
    if head.d2t is not None:
        head.register_buffer("d2t", some_tokens(target.vocab_size))
    return head, {"medusa_num_heads": options.heads, "medusa_num_layers": options.layers}


def _dspark(target: Any, given: dict[str, Any]) -> Checkpoint:
    layers = _layers(target, 2) | {"model_type": "qwen3"} | given.pop("layers", {})
    d2t = some_tokens(target.vocab_size)
    options = DSparkOptions(
        **{
            "taps": spread_taps(target.num_hidden_layers),
            "target_hidden": target.hidden_size,
            "draft_vocabulary": len(d2t),
            "target_vocabulary": target.vocab_size,
            "block": 5,
            "mask_token": target.vocab_size - 1,
            "from_anchor": True,
            "markov_rank": 8,
            "confidence": True,
            "own_output": True,
            **given,
        }
    )
    head = DSpark(AutoConfig.for_model(**layers), options)
    if head.d2t is not None:
        head.register_buffer("d2t", d2t)
    config = {
        "speculators_model_type": "dspark" if options.markov_rank else "dflash",
        "transformer_layer_config": layers,
        "draft_vocab_size": options.draft_vocabulary,
        "block_size": options.block,
        "mask_token_id": options.mask_token,
        "aux_hidden_state_layer_ids": list(options.taps),
        "sample_from_anchor": options.from_anchor,
        "markov_rank": options.markov_rank,
        "markov_head_type": options.markov_type,
        "enable_confidence_head": options.confidence,
        "confidence_head_with_markov": options.confidence_with_markov,
    }
    return head, config


def _mtp(target: Any, given: dict[str, Any]) -> Checkpoint:
    with torch.device("meta"):  # the head asks it for the class of its layers, no more
        model = AutoModelForCausalLM.from_config(target)
    head = Mtp(Target.of(model), given.get("embedding_first", True), blind_start=False)
    layers = {key: value for key, value in target.to_dict().items() if key != "architectures"}
    return head, {"speculators_model_type": "mtp", "transformer_layer_config": layers}


MAKERS: dict[str, Callable[[Any, dict[str, Any]], Checkpoint]] = {
    "eagle3": _eagle3,
    "eagle": _eagle,
    "medusa": _medusa,
    "dspark": _dspark,
    "mtp": _mtp,
}
