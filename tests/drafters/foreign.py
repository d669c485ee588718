"""Tiny pairs of target and draft model with different tokenizers."""

from functools import cache
from pathlib import Path
from typing import Any

import torch
from tests.engine.helpers import make_llm, perturbed
from tests.tiny import (
    make_byte_tokenizer,
    make_permuted,
    make_spaced_tokenizer,
    make_tiny,
    make_tokenizer,
)
from transformers import AutoModelForCausalLM

from outrider.core.params import SamplingParams
from outrider.engine.llm import LLM

MAKERS = {"bpe": make_tokenizer, "spaced": make_spaced_tokenizer, "byte": make_byte_tokenizer}
KINDS = tuple(MAKERS)
WAYS = ("intersection", "strings")
TALE = (
    "The rider rides ahead 😀 of the party. Он едет вперёд; 天気がいい。\n    return größer + 1\n"
)
PROMPTS = ["The rider rides", "über 天気 и 😀", "def ride(ahead):\n    return\t", "\x00 👩‍👩‍👧 ﬁn"]


def make_pairable(kind: str, folder: Path, steps: int = 0, **overrides: Any) -> Path:
    """A tiny model with its own kind of tokenizer; with `steps` it knows the tale by heart."""
    tokenizer = MAKERS[kind](folder)
    marks = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    size = {"vocab_size": len(tokenizer), "pad_token_id": None, **marks, **overrides}
    if not steps:
        return make_tiny("llama", folder, seed=len(kind), **size)
    make_tiny("llama", folder, num_hidden_layers=1, **{**size, "initializer_range": 0.1})
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ids = torch.tensor([tokenizer(TALE)["input_ids"]])
    learner = torch.optim.AdamW(model.parameters(), lr=2e-2)
    for _ in range(steps):
        model(ids, labels=ids).loss.backward()
        learner.step()
        learner.zero_grad()
    model.save_pretrained(folder)
    return folder


def make_all(folder: Path) -> None:
    """By name: `bpe` is random, `bpe_same` the same under other ids, `bpe_near` nearly the same,
    `bpe_tale` knows a text."""
    for kind in KINDS:
        make_pairable(kind, folder / kind)
        make_permuted(folder / kind, folder / f"{kind}_same")
        perturbed(folder / f"{kind}_same", folder / f"{kind}_near", 0.05)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            text = (folder / f"{kind}_same" / name).read_text()
            (folder / f"{kind}_near" / name).write_text(text)
        make_pairable(kind, folder / f"{kind}_tale", steps=30)


def pair(
    folder: Path,
    target: str,
    draft: str,
    way: str | None = None,
    k: int | None = 3,
    engine: dict[str, Any] | None = None,
    **options: Any,
) -> LLM:
    config = {"model": str(folder / draft), "num_speculative_tokens": k, "translation": way}
    return make_llm(str(folder / target), config | options, **engine or {})


@cache
def plain(folder: Path) -> LLM:
    """The target without speculation."""
    return make_llm(str(folder))


def drafter_of(llm: LLM) -> Any:
    return llm.engine.drafter


def check(llm: LLM) -> None:
    """Nothing of those who left is held."""
    texts = drafter_of(llm).texts
    texts.kv.check()
    assert not texts._shadows
    assert not texts._views
    assert all(not node.locks for node in texts.kv.tree.nodes())


def prompts(llm: LLM, temperature: float, tokens: int = 16) -> list[Any]:
    tokenizer: Any = llm.engine.loaded.tokenizer
    options = {"max_tokens": tokens, "temperature": temperature, "ignore_eos": True}
    return [
        (tokenizer(text)["input_ids"], SamplingParams(seed=i, **options))
        for i, text in enumerate(PROMPTS)
    ]
