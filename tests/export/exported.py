"""Tiny drafters as `outrider train` writes them, and what `outrider export` makes of them."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from tests.tiny import make_tiny
from transformers import AutoConfig, AutoModelForCausalLM

from outrider.export.run import export
from outrider.heads.untrained import write_untrained
from outrider.train.batch import Vocabulary
from outrider.train.loop import write
from outrider.train.start import DEFAULTS, new_head

NAME = "target"
VOCABULARY = 48
LAYERS = {"rope_theta": 300.0}
TRAINED: dict[str, Any] = {"taps": (1, 2, 4), "draft_vocabulary": 36}
BLOCK: dict[str, Any] = {**DEFAULTS["dspark"], **TRAINED, "block": 4, "markov_rank": 6}
FLASH: dict[str, Any] = {
    **BLOCK,
    "markov_rank": 0,
    "confidence": False,
    "from_anchor": False,
    "own_output": False,
    "draft_vocabulary": VOCABULARY,
}
# name -> kind and options, in the speculators format
EXPORTED: dict[str, tuple[str, dict[str, Any]]] = {
    "exported_eagle3": ("eagle3", {**DEFAULTS["eagle3"], **TRAINED}),
    "exported_dspark": ("dspark", BLOCK),
    "exported_dflash": ("dspark", FLASH),
}


def write_target(folder: Path) -> Path:
    shape = {"num_hidden_layers": 6, "hidden_size": 16, "intermediate_size": 24}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    return make_tiny("llama", folder, vocab_size=VOCABULARY, **shape, **heads)


def write_exported(name: str, target: Path, folder: Path) -> None:
    kind, options = EXPORTED[name]
    with TemporaryDirectory() as place:
        drafter = untrained(kind, target, Path(place), layers=LAYERS, **options)
        export(str(drafter), folder, "speculators", str(target))


def untrained(kind: str, target: Path, folder: Path, **options: Any) -> Path:
    return write_untrained(kind, AutoConfig.from_pretrained(target), folder, **options)


def trained(kind: str, target: Path, folder: Path, known: int) -> Path:
    """What a training run leaves, with `known` tokens; its weights are random everywhere."""
    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
    ids = torch.arange(VOCABULARY)[-known:]
    torch.manual_seed(1)
    head, config = new_head(kind, model, Vocabulary(ids, VOCABULARY))
    for name, parameter in head.named_parameters():
        low, high = (0.5, 1.5) if "norm" in name else (-0.6, 0.6)
        torch.nn.init.uniform_(parameter, low, high)
    folder.mkdir(parents=True)
    write(head, config, folder)
    (folder / "report.json").write_text(json.dumps({"target": str(target), "kind": kind}))
    return folder
