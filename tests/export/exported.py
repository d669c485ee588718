"""Tiny drafters as `outrider train` writes them, and what `outrider export` makes of them."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.tiny import make_tiny
from transformers import AutoConfig

from outrider.export.run import export
from outrider.heads.untrained import write_untrained
from outrider.train.start import DEFAULTS

NAME = "target"
LAYERS = {"rope_theta": 300.0}
TRAINED: dict[str, Any] = {"taps": (1, 2, 4), "draft_vocabulary": 36}
BLOCK: dict[str, Any] = {**DEFAULTS["dspark"], **TRAINED, "block": 4, "markov_rank": 6}
FLASH: dict[str, Any] = {
    **BLOCK,
    "markov_rank": 0,
    "confidence": False,
    "from_anchor": False,
    "own_output": False,
    "draft_vocabulary": 48,
}
# name -> kind and options, in the speculators format
EXPORTED: dict[str, tuple[str, dict[str, Any]]] = {
    "exported_eagle3": ("eagle3", {**DEFAULTS["eagle3"], **TRAINED}),
    "exported_dspark": ("dspark", BLOCK),
    "exported_dflash": ("dspark", FLASH),
}


def write_target(folder: Path) -> Path:
    shape = {"num_hidden_layers": 6, "hidden_size": 16, "vocab_size": 48, "intermediate_size": 24}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    return make_tiny("llama", folder, **shape, **heads)


def write_exported(name: str, target: Path, folder: Path) -> None:
    kind, options = EXPORTED[name]
    with TemporaryDirectory() as place:
        config = AutoConfig.from_pretrained(target)
        drafter = write_untrained(kind, config, Path(place), layers=LAYERS, **options)
        export(str(drafter), folder, "speculators", str(target))
