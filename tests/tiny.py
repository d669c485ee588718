"""Tiny random checkpoints of many families, and a tiny tokenizer, for tests without a network."""

import json
import random
from pathlib import Path
from typing import Any

import torch
from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM
from transformers import PreTrainedTokenizerFast as FastTokenizer
from transformers.utils import logging

logging.disable_progress_bar()

VOCAB = 320  # 4 special tokens, 256 bytes, 40 merges, and 20 ids without a text (padding)
EOS = 0  # <|eos|>, the tokenizer's first special token
SPECIAL = ("<|eos|>", "<|user|>", "<|assistant|>", "<|end|>")

# Names that nearly all families share; a family's own entry overrides or drops (None) them.
COMMON: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    # Large weights: logits are far from flat, so greedy texts vary and ties are rare.
    "initializer_range": 0.4,
    "bos_token_id": EOS,
    "eos_token_id": EOS,
    "pad_token_id": EOS,
}
MOE: dict[str, Any] = {"num_experts_per_tok": 2}


def _drop(*names: str) -> dict[str, None]:
    return dict.fromkeys(names)


FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"sliding_window": 8},
    "qwen2": {},
    "qwen3": {"head_dim": 8},
    "gemma2": {
        "head_dim": 8,
        "query_pre_attn_scalar": 8,
        "sliding_window": 8,
        "attn_logit_softcapping": 5.0,  # low enough to bend the scores of so small a model
        "final_logit_softcapping": 10.0,
    },
    "gemma3_text": {
        "num_hidden_layers": 4,
        "head_dim": 8,
        "query_pre_attn_scalar": 8,
        "sliding_window": 8,
        "layer_types": [
            "sliding_attention",
            "full_attention",
            "sliding_attention",
            "full_attention",
        ],
    },
    "phi3": {},
    "gpt2": {
        **_drop("hidden_size", "intermediate_size", "num_key_value_heads"),
        "n_embd": 32,
        "n_layer": 2,
        "n_head": 4,
        "n_positions": 512,
        "num_hidden_layers": None,
        "num_attention_heads": None,
        "max_position_embeddings": None,
    },
    "opt": {
        "ffn_dim": 64,
        "word_embed_proj_dim": 32,
        "init_std": 0.4,
        **_drop("intermediate_size", "num_key_value_heads", "initializer_range"),
    },
    "gpt_neox": {"num_key_value_heads": None},
    "olmo2": {},
    "granite": {"attention_multiplier": 0.35, "logits_scaling": 2.0, "embedding_multiplier": 3.0},
    "mixtral": {**MOE, "num_local_experts": 4},
    "qwen3_moe": {**MOE, "num_experts": 4, "moe_intermediate_size": 32, "head_dim": 8},
    "gpt_oss": {**MOE, "num_local_experts": 4, "head_dim": 8, "sliding_window": 8},
    "stablelm": {},
    "falcon": {
        "new_decoder_architecture": False,
        **_drop("intermediate_size", "num_key_value_heads"),
    },
    "bloom": {
        "n_layer": 2,
        "n_head": 4,
        **_drop(
            "intermediate_size",
            "num_hidden_layers",
            "num_attention_heads",
            "num_key_value_heads",
            "max_position_embeddings",
        ),
    },
    "gptj": {
        **_drop("hidden_size", "intermediate_size", "num_key_value_heads"),
        "n_embd": 32,
        "n_layer": 2,
        "n_head": 4,
        "n_positions": 512,
        "rotary_dim": 4,
        "num_hidden_layers": None,
        "num_attention_heads": None,
        "max_position_embeddings": None,
    },
    "mamba": {"state_size": 4, **_drop("num_attention_heads", "num_key_value_heads")},
    "t5": {
        "d_model": 32,
        "d_kv": 8,
        "d_ff": 64,
        "num_layers": 2,
        "num_heads": 4,
        "decoder_start_token_id": EOS,
        **_drop(
            "hidden_size",
            "intermediate_size",
            "num_hidden_layers",
            "num_attention_heads",
            "num_key_value_heads",
            "max_position_embeddings",
            "initializer_range",
        ),
    },
}


def tiny_config(family: str, **overrides: Any) -> Any:
    """The configuration of a tiny model; an override of None drops the key."""
    merged = {**COMMON, **FAMILIES[family], **overrides}
    options = {key: value for key, value in merged.items() if value is not None}
    return AutoConfig.for_model(family, **options)


def make_tiny(family: str, folder: Path, *, seed: int = 0, **overrides: Any) -> Path:
    """Saves a random float32 checkpoint, the same for the same seed, and returns its folder."""
    config = tiny_config(family, **overrides)
    auto = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = auto.from_config(config, dtype=torch.float32)
        _stir(model)
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    return folder


def _stir(model: torch.nn.Module) -> None:
    """Random values where initialisation leaves zeros or ones (biases, norms, sinks).

    A fault that drops or misplaces such a parameter would be invisible otherwise.
    """
    for parameter in model.parameters():
        if parameter.numel() and parameter.unique().numel() == 1:
            parameter.data += 0.2 * torch.randn_like(parameter)


TEXT = """The outrider rides ahead of the party and reports what it finds. The party rides on.
One two three, one two three; the rider rides ahead, and ahead of the rider rides the report.
def ride(ahead):
    return ahead + 1
"""

CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def make_tokenizer(folder: Path) -> FastTokenizer:
    """Saves a byte-level BPE tokenizer, with end token and chat template; any text round-trips."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB - 20,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([TEXT], trainer)
    fast = FastTokenizer(tokenizer_object=tokenizer, eos_token=SPECIAL[0])
    fast.chat_template = CHAT_TEMPLATE
    folder.mkdir(parents=True, exist_ok=True)
    fast.save_pretrained(folder)
    return fast


def edit_json(path: Path, **changes: Any) -> None:
    """Changes keys of a saved configuration; a test's way to damage one."""
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


# ---- tokenizers of other kinds, and a model with other token ids ----


def make_spaced_tokenizer(folder: Path) -> FastTokenizer:
    """Saves one like Llama's: `▁` for a space, `<0xNN>` for what has no token, `<s>` before it."""
    learned = Tokenizer(models.BPE())
    spaced = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    learned.normalizer = normalizers.Sequence(spaced)
    learned.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    trainer = trainers.BpeTrainer(vocab_size=110, special_tokens=["<unk>"], show_progress=False)
    learned.train_from_iterator([TEXT.replace("\n", "")], trainer)
    model = json.loads(learned.to_str())["model"]
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += [piece for piece in model["vocab"] if piece != "<unk>"]
    tokenizer = Tokenizer(
        models.BPE(
            {piece: i for i, piece in enumerate(pieces)},
            [tuple(pair) for pair in model["merges"]],
            byte_fallback=True,
            unk_token="<unk>",
            fuse_unk=True,
        )
    )
    tokenizer.normalizer = learned.normalizer
    undone = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*undone, decoders.Strip(" ", 1, 0)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    return _save(tokenizer, folder, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def make_byte_tokenizer(folder: Path) -> FastTokenizer:
    """Saves one in which every byte is a token, in no particular order."""
    signs = sorted(pre_tokenizers.ByteLevel.alphabet())
    random.Random(0).shuffle(signs)
    pieces = ["<|stop|>", *signs]
    tokenizer = Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return _save(tokenizer, folder, eos_token="<|stop|>")


def _save(tokenizer: Tokenizer, folder: Path, **marks: str) -> FastTokenizer:
    fast = FastTokenizer(tokenizer_object=tokenizer, **marks)
    folder.mkdir(parents=True, exist_ok=True)
    fast.save_pretrained(folder)
    return fast


def make_permuted(source: Path, folder: Path, *, seed: int = 0) -> Path:
    """The same model and tokenizer under other token ids."""
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    old = model.get_input_embeddings().weight.shape[0]
    new_id = list(range(old))
    random.Random(seed).shuffle(new_id)
    for layer in (model.get_input_embeddings(), model.get_output_embeddings()):
        layer.weight.data[new_id] = layer.weight.data.clone()
    model.save_pretrained(folder)
    text = json.loads((source / "tokenizer.json").read_text())
    text["model"]["vocab"] = {piece: new_id[i] for piece, i in text["model"]["vocab"].items()}
    for token in text["added_tokens"]:
        token["id"] = new_id[token["id"]]
    for token in ((text["post_processor"] or {}).get("special_tokens") or {}).values():
        token["ids"] = [new_id[i] for i in token["ids"]]
    (folder / "tokenizer.json").write_text(json.dumps(text))
    settings = (source / "tokenizer_config.json").read_text()
    (folder / "tokenizer_config.json").write_text(settings)
    return folder
