"""A tiny GGUF file, as llama.cpp would write it; apart, because not every machine has `gguf`."""

import json
from pathlib import Path
from typing import Any

import torch
from gguf import MODEL_ARCH, GGUFWriter, get_tensor_name_map
from safetensors.torch import load_file
from transformers import AutoConfig

from tests.tiny import CHAT_TEMPLATE, EOS, SPECIAL, VOCAB, make_tiny, make_tokenizer


def make_gguf(path: Path, *, seed: int = 0, split: str = "smollm") -> Path:
    """Writes the llama of `make_tiny` with its tokenizer as a float32 GGUF, as llama.cpp would.

    `path` is the file; the folder beside it, without the suffix, keeps the same model for
    comparison.
    """
    folder = make_tiny("llama", path.with_suffix(""), seed=seed)
    config = AutoConfig.from_pretrained(folder)
    writer = GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    _add_tokenizer(writer, folder, split)
    _add_weights(writer, load_file(folder / "model.safetensors"), config)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_tokenizer(writer: GGUFWriter, folder: Path, split: str) -> None:
    model = json.loads(make_tokenizer(folder).backend_tokenizer.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    special, normal, unused = 3, 1, 5
    types = [special if token in SPECIAL else normal for token in tokens]
    padding = VOCAB - len(tokens)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(split)
    writer.add_token_list(tokens + [f"[PAD{i}]" for i in range(padding)])
    writer.add_token_types(types + [unused] * padding)
    writer.add_token_merges([" ".join(merge) for merge in model["merges"]])
    writer.add_eos_token_id(EOS)
    writer.add_pad_token_id(EOS)
    writer.add_chat_template(CHAT_TEMPLATE)


def _add_weights(writer: GGUFWriter, state: dict[str, torch.Tensor], config: Any) -> None:
    names = get_tensor_name_map(MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, weight in state.items():
        if "q_proj" in name or "k_proj" in name:
            # llama.cpp rotates neighbouring dimensions, transformers the two halves of a head.
            heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
            rows, columns = weight.shape
            weight = weight.view(heads, 2, rows // heads // 2, columns).transpose(1, 2)
            weight = weight.reshape(rows, columns)
        stem = names.get_name(name.removesuffix(".weight"))
        writer.add_tensor(f"{stem}.weight", weight.contiguous().numpy())
