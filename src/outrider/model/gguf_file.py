"""Reading a GGUF file: weights, configuration and tokenizer, through transformers."""

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from tokenizers import pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from outrider.core.errors import ModelError
from outrider.model.quiet import quiet_transformers

# Vocabularies whose merges were learned with every digit split off first. A GGUF names its split
# in `tokenizer.ggml.pre`; transformers knows many of the names but reads these as plain GPT-2,
# which joins spaces and newlines before a number differently.
SPLITS_DIGITS = {"smollm", "starcoder", "refact", "command-r", "codeshell"}


def check_gguf(path: Path) -> None:
    """Refuses what is plainly no single GGUF file, before the slow readers start."""
    if re.search(r"-\d{5}-of-\d{5}\.gguf$", path.name):
        raise ModelError(
            f"{path} is one part of a split GGUF; join the parts with llama.cpp's gguf-split first"
        )
    with path.open("rb") as file:
        magic = file.read(4)
    if magic != b"GGUF":
        raise ModelError(f"{path} is not a GGUF file (it starts with {magic!r}); download it again")
    if find_spec("gguf") is None:  # transformers would say so of a file that seems damaged then
        raise ModelError(f"{path} needs the package that reads GGUF files: pip install gguf")


def read_gguf_config(path: Path) -> Any:
    """The transformers configuration that the file's metadata describe."""
    check_gguf(path)
    with quiet_transformers():
        try:
            return AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
        except Exception as error:
            raise _damaged(path, error) from error


def read_gguf_model(
    path: Path, config: Any, dtype: torch.dtype, device_map: dict[str, str] | None = None
) -> Any:
    """The model with its weights unpacked to `dtype`, which looks as if it never was a GGUF."""
    with quiet_transformers():
        try:
            model = AutoModelForCausalLM.from_pretrained(
                path.parent,
                gguf_file=path.name,
                config=config,
                dtype=dtype,
                device_map=device_map,
                **_unpack_all(),
            )
        except Exception as error:
            raise _damaged(path, error) from error
    # The weights are dense now: with these left, transformers would refuse to save the model.
    model.hf_quantizer = None
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    return model


def read_gguf_tokenizer(path: Path, context_length: int) -> Any:
    with quiet_transformers():
        try:
            tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
            split = _split_name(path)
        except Exception as error:
            raise _damaged(path, error) from error
    if split in SPLITS_DIGITS:
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False),
            ]
        )
    tokenizer.model_max_length = context_length
    return tokenizer


def _split_name(path: Path) -> str | None:
    """`tokenizer.ggml.pre`, found by its raw bytes: gguf's own reader takes seconds for a
    vocabulary. Layout after the key: type (u32, 8 is a string), length (u64), the text."""
    key = b"tokenizer.ggml.pre" + (8).to_bytes(4, "little")
    with path.open("rb") as file:
        head = file.read(64 << 20)  # metadata come first; vocabularies are a few MiB
    at = head.find(key)
    if at < 0:
        return None
    at += len(key)
    length = int.from_bytes(head[at : at + 8], "little")
    return head[at + 8 : at + 8 + length].decode(errors="replace")


def _unpack_all() -> dict[str, Any]:
    """Newer transformers can leave weights in GGUF blocks behind special modules; we need plain
    ones. Older ones always unpack and know no such option."""
    try:
        from transformers import GgufConfig
    except ImportError:
        return {}
    return {"quantization_config": GgufConfig(dequantize=True)}


def _damaged(path: Path, error: Exception) -> ModelError:
    reason = " ".join(str(error).split())[:200] or type(error).__name__
    if "not supported" in reason:
        return ModelError(f"{path} cannot be loaded: {reason}")
    return ModelError(f"{path} is damaged or truncated; download it again ({reason})")
