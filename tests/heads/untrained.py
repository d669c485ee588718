"""Heads with random weights for the tests' target, in several variants."""

from pathlib import Path
from typing import Any

from transformers import AutoConfig

from outrider.heads.untrained import write_untrained

QWEN3 = {  # another family and another width than the target's
    "model_type": "qwen3",
    "hidden_size": 48,
    "head_dim": 16,
    "num_key_value_heads": 1,
    "rope_theta": 500.0,
}
# name -> kind of head and its options
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "eagle3": ("eagle3", {}),
    "eagle3 normed": (
        "eagle3",
        {"norm_before_residual": True, "norm_before_fc": True, "own_embedding": False},
    ),
    "eagle3.1": ("eagle3", {"fc_norm": True, "norm_output": True, "taps": (0, 1)}),
    "eagle3 deep": ("eagle3", {"num_hidden_layers": 2, "layers": QWEN3, "draft_vocabulary": 320}),
    "eagle": ("eagle", {}),
    "eagle without bias": ("eagle", {"bias": False, "own_embedding": 320}),
    "medusa": ("medusa", {}),
    "medusa shared": ("medusa", {"own_outputs": False, "layers": 2, "heads": 4}),
    "medusa reduced": (
        "medusa",
        {"own_outputs": False, "shared_output": True, "bias": False, "draft_vocabulary": 240},
    ),
    "dspark": ("dspark", {}),
    "dspark gated": (
        "dspark",
        {"markov_type": "gated", "confidence": False, "own_embedding": True},
    ),
    "dspark rnn": ("dspark", {"markov_type": "rnn"}),
    "dspark rnn shifted": ("dspark", {"markov_type": "rnn", "from_anchor": False}),
    "mtp": ("mtp", {}),
    "dflash": (
        "dspark",
        {
            "from_anchor": False,
            "markov_rank": 0,
            "confidence": False,
            "own_output": False,
            "draft_vocabulary": 320,
            "layers": {"head_dim": 16, "num_key_value_heads": 1},
        },
    ),
}


class Heads:
    """Folders of checkpoints, each made once."""

    def __init__(self, target: str, folder: Path) -> None:
        self.config, self.folder = AutoConfig.from_pretrained(target), folder

    def __getitem__(self, variant: str) -> str:
        folder = self.folder / variant.replace(" ", "_")
        if not folder.exists():
            kind, options = VARIANTS[variant]
            write_untrained(kind, self.config, folder, seed=2, **options)
        return str(folder)
