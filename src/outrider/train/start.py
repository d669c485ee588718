"""A drafter before its first lesson."""

from typing import Any

import torch
from torch import nn

from outrider.core.errors import ConfigError
from outrider.drafters.registry import drafter_class
from outrider.heads.files import Files
from outrider.heads.formats import kind_of
from outrider.heads.head import Head, Target
from outrider.heads.untrained import MAKERS
from outrider.model.loading import LoadedModel
from outrider.train.batch import Vocabulary

DEFAULTS: dict[str, dict[str, Any]] = {
    "medusa": {"heads": 4, "layers": 1, "own_outputs": False, "shared_output": True},
    "eagle3": {"own_embedding": False},
    "dspark": {"block": 7, "markov_rank": 64, "own_output": True, "confidence": True},
}


NORMED = {"fc_norm": True, "norm_before_residual": True}  # of eagle3: what it reads is normed first


def new_head(
    kind: str, model: Any, words: Vocabulary, normed: bool = False
) -> tuple[Head, dict[str, Any]]:
    """The network and its config.json. Its output layer starts as the target's, for the tokens
    that it knows; the rest as such layers start."""
    target = Target.of(model)
    config = model.config.get_text_config()
    options = dict(DEFAULTS[kind])
    options["draft_vocabulary"] = len(words.ids)
    if normed:
        options |= NORMED
    if kind == "dspark":
        options["mask_token"] = _unused(words, target.vocabulary)
    head, written = MAKERS[kind](config, options)
    for name, parameter in head.named_parameters():
        if "norm" in name:
            nn.init.ones_(parameter)
        elif parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.02)
        else:
            nn.init.zeros_(parameter)
    if kind == "dspark":  # at first nothing depends on the token before
        nn.init.zeros_(head.markov_head.markov_w2.weight)  # type: ignore[union-attr, arg-type]
    if kind == "medusa":  # at first every head says what the target says
        for name, parameter in head.named_parameters():
            if "linear" in name:
                nn.init.zeros_(parameter)
    if head.d2t is not None:
        head.register_buffer("d2t", words.d2t.cpu())
    if head.lm_head is not None:
        with torch.no_grad():
            output = model.get_output_embeddings().weight
            head.lm_head.weight.copy_(output[words.ids].float().cpu())
    return head, written


def learned_head(
    kind: str, name: str, loaded: LoadedModel
) -> tuple[Head, dict[str, Any], Vocabulary]:
    """A drafter that was trained before, its config.json, and the tokens that it knows."""
    files = Files.of(name, sure=True)
    if kind_of(files) != kind:
        raise ConfigError(f"--start {name} is no {kind} drafter; give the folder of one")
    target = Target.of(loaded.model)
    read: Any = drafter_class(kind).read  # type: ignore[attr-defined]
    head: Head = read(files, target, torch.float32, loaded.device, loaded.context_length)
    if head.state_dict().keys() != files.shapes.keys():
        raise ConfigError(
            f"--start {name} was not made by `outrider train`: its tensors have other names, which "
            "would be lost"
        )
    words = Vocabulary(head.ids(target.vocabulary), target.vocabulary)
    return head.requires_grad_(True), files.config, words


def _unused(words: Vocabulary, vocabulary: int) -> int:
    """A token for places that are still open: one that is never written, where there is one."""
    rare = (words.place < 0).nonzero()[:, 0]
    return int(rare[-1]) if len(rare) else vocabulary - 1
