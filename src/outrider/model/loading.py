"""Loading a model and its tokenizer, from wherever the name points."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from outrider.core.errors import ConfigError, ModelError, unknown_name
from outrider.model.gguf_file import read_gguf_config, read_gguf_model, read_gguf_tokenizer
from outrider.model.quantized import check_quantization, quantization_of, quantize
from outrider.model.quiet import quiet_transformers
from outrider.model.rotary import fix_rotary
from outrider.model.source import locate
from outrider.model.support import refuse_unsupported

__all__ = ["LoadedModel", "fix_rotary", "load_model", "refuse_unsupported"]

DTYPES = {
    "float32": torch.float32,
    "fp32": torch.float32,
    "bfloat16": torch.bfloat16,
    "bf16": torch.bfloat16,
    "float16": torch.float16,
    "fp16": torch.float16,
}
# Any of these means that the folder has a tokenizer at all.
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "spiece.model",
    "vocab.json",
    "vocab.txt",
    "tekken.json",
)
CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")


@dataclass(frozen=True)
class LoadedModel:
    model: PreTrainedModel  # a causal language model in eval mode, without gradients
    tokenizer: PreTrainedTokenizerBase | None  # None: prompts must be token ids
    name: str
    eos_ids: frozenset[int]
    context_length: int
    device: torch.device
    dtype: torch.dtype  # of activations and KV; of the weights, unless they are quantised
    quantization: str | None = None  # int8, int4, or the checkpoint's own method


def load_model(
    name: str,
    *,
    revision: str | None = None,
    dtype: str | torch.dtype = "auto",
    device: str = "auto",
    tokenizer: str | None = None,
    trust_remote_code: bool = False,
    quantization: str | None = None,
) -> LoadedModel:
    """`name` is a zoo name, a folder, a `.gguf` file or a hub id (`id` or `id@revision`)."""
    place = choose_device(device)
    check_quantization(quantization)
    in_int4 = quantization == "int4" and dtype == "auto"  # its kernels are made for bfloat16
    kind = torch.bfloat16 if in_int4 else choose_dtype(dtype, place)
    path = locate(name, revision, weights=False)
    config = _read_config(path, name, trust_remote_code)
    refuse_unsupported(config)
    context_length = _context_length(config, name)
    already = None if path.is_file() else quantization_of(config)  # a GGUF is unpacked
    if quantization and already:
        raise ConfigError(
            f"{name!r} is quantised already ({already}); leave out quantization={quantization!r}"
        )
    # A hub id's weights come only now: an architecture that is refused costs no download.
    path = locate(name, revision)
    # What is to be quantised goes to the device layer by layer.
    first = torch.device("cpu") if quantization else place
    model = _read_model(path, config, name, kind, first, trust_remote_code)
    model.eval().requires_grad_(False)
    if quantization:
        try:
            quantize(model, quantization, kind, place)
        except torch.OutOfMemoryError as error:
            raise _too_large(name, place) from error
    if already:
        kind = model.get_input_embeddings().weight.dtype  # some methods know only one
    words = _read_tokenizer(path, tokenizer, context_length, trust_remote_code)
    return LoadedModel(
        model=model,
        tokenizer=words,
        name=name,
        eos_ids=_eos_ids(getattr(model, "generation_config", None), config, words),
        context_length=context_length,
        device=place,
        dtype=kind,
        quantization=quantization or already,
    )


def parameters_of(name: str) -> int:
    """How many numbers a model has; its weights are not read."""
    config = _read_config(locate(name, weights=False), name, trust_remote_code=False)
    refuse_unsupported(config)
    with torch.device("meta"), quiet_transformers():
        model = AutoModelForCausalLM.from_config(config)
    return sum(parameter.numel() for parameter in model.parameters())


def choose_device(device: str) -> torch.device:
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
    except RuntimeError as error:
        raise ConfigError(f"device {device!r} is unknown; give 'auto', 'cpu' or 'cuda'") from error
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"device {device!r} was asked for, but torch sees no CUDA device here")
    return chosen


def choose_dtype(dtype: str | torch.dtype, device: torch.device) -> torch.dtype:
    """bfloat16 wherever the hardware computes in it; a CPU that only emulates it is slower."""
    if isinstance(dtype, torch.dtype):
        if dtype not in DTYPES.values():
            raise ConfigError(f"dtype {dtype} is not supported; give one of {', '.join(DTYPES)}")
        return dtype
    if dtype == "auto":
        fast = device.type != "cpu" or _cpu_has_bf16()
        return torch.bfloat16 if fast else torch.float32
    if dtype not in DTYPES:
        raise ConfigError(unknown_name("dtype", dtype, ["auto", *DTYPES]))
    return DTYPES[dtype]


def _cpu_has_bf16() -> bool:
    # torch 2.11 has only some of these, under private names; what is missing counts as absent.
    table: Mapping[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    if any(table.get(key) for key in ("avx512_bf16", "amx_bf16", "bf16", "sve_bf16")):
        return True
    helpers = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(getattr(torch.cpu, helper, bool)() for helper in helpers)


def _read_config(path: Path, name: str, trust_remote_code: bool) -> Any:
    if path.is_file():
        return read_gguf_config(path)
    with quiet_transformers():
        try:
            return AutoConfig.from_pretrained(
                path, local_files_only=True, trust_remote_code=trust_remote_code
            )
        except Exception as error:
            raise ModelError(
                f"the config.json of {name!r} cannot be read: {_line(error)}"
            ) from error


def _read_model(
    path: Path,
    config: Any,
    name: str,
    dtype: torch.dtype,
    device: torch.device,
    trust_remote_code: bool,
) -> PreTrainedModel:
    # With a map, weights go to the GPU one by one; without, they stay where the file maps them.
    device_map = None if device.type == "cpu" else {"": str(device)}
    if path.is_file():
        return read_gguf_model(path, config, dtype, device_map)
    if not any(path.glob("*.safetensors")):
        raise ModelError(f"{name!r} holds no *.safetensors weights; convert the checkpoint first")
    with quiet_transformers():
        try:
            model, info = AutoModelForCausalLM.from_pretrained(
                path,
                config=config,
                dtype=dtype,
                device_map=device_map,
                use_safetensors=True,
                local_files_only=True,
                trust_remote_code=trust_remote_code,
                output_loading_info=True,
            )
        except SafetensorError as error:
            raise ModelError(
                f"the weights of {name!r} are damaged or truncated; download them again "
                f"({_line(error)})"
            ) from error
        except torch.OutOfMemoryError as error:
            raise _too_large(name, device) from error
        except Exception as error:
            raise ModelError(f"{name!r} cannot be loaded: {_line(error)}") from error
    # transformers fills missing weights with noise and goes on: never what anybody wants here.
    if missing := sorted(info["missing_keys"]):
        raise ModelError(
            f"the weights of {name!r} are incomplete: {len(missing)} are missing, "
            f"such as {missing[0]}; download them again"
        )
    return model


def _too_large(name: str, device: torch.device) -> ModelError:
    free, total = (size / 2**30 for size in torch.cuda.mem_get_info(device))
    return ModelError(
        f"{name!r} does not fit on {device}: {free:.1f} of {total:.1f} GiB were left when it broke "
        "off; free memory there, or give device='cpu', a smaller model or quantization='int4'"
    )


def _read_tokenizer(
    path: Path, other: str | None, context_length: int, trust_remote_code: bool
) -> PreTrainedTokenizerBase | None:
    if other is not None:
        path = locate(other, weights=False)
    if path.is_file():
        return read_gguf_tokenizer(path, context_length)
    if not any((path / file).is_file() for file in TOKENIZER_FILES):
        if other is not None:
            raise ModelError(f"{other!r} holds no tokenizer")
        return None
    with quiet_transformers():
        try:
            return AutoTokenizer.from_pretrained(
                path, local_files_only=True, trust_remote_code=trust_remote_code
            )
        except Exception as error:
            raise ModelError(f"the tokenizer in {path} cannot be read: {_line(error)}") from error


def _eos_ids(*holders: Any) -> frozenset[int]:
    """Every id that any part of a checkpoint calls its end: they often name different ones."""
    ids: set[int] = set()
    for holder in holders:
        found = getattr(holder, "eos_token_id", None)
        ids.update([found] if isinstance(found, int) else found or [])
    return frozenset(ids)


def _context_length(config: Any, name: str) -> int:
    for key in CONTEXT_KEYS:
        if isinstance(length := getattr(config, key, None), int) and length > 0:
            return length
    raise ModelError(f"the configuration of {name!r} does not say how long a text may be")


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
