"""Trained drafters whose every draft row is held against the plain reference."""

import json
from collections.abc import Callable
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from tests.drafters.compared import Comparing
from tests.engine.helpers import make_llm, reference, registered
from tests.heads import reference as plain
from tests.tiny import VOCAB
from torch import Tensor

from outrider.core.request import Request
from outrider.drafters.registry import drafter_class
from outrider.engine.llm import LLM

Row = Callable[..., Tensor]  # target, folder, tokens, path -> [vocabulary]


@cache
def checkpoint(folder: str) -> tuple[plain.Tensors, dict[str, Any]]:
    config = json.loads((Path(folder) / "config.json").read_text())
    return load_file(Path(folder) / "model.safetensors"), config


def states_of(target: str, tokens: list[int], taps: list[Any]) -> Tensor:
    """[tokens, taps * hidden size], by transformers itself."""
    return _states_of(target, tuple(tokens), tuple(taps))


@lru_cache(64)  # all rows of a draft ask for the same
@torch.inference_mode()
def _states_of(target: str, tokens: tuple[int, ...], taps: tuple[Any, ...]) -> Tensor:
    found = reference(target)(torch.tensor([tokens]), use_cache=False, output_hidden_states=True)
    return torch.cat([found.hidden_states[-1 if tap == "final" else tap][0] for tap in taps], -1)


def eagle3_row(target: str, folder: str, tokens: list[int], path: list[int]) -> Tensor:
    t, config = checkpoint(folder)
    states = states_of(target, tokens[:-1], config["eagle_aux_hidden_state_layer_ids"])
    logits = plain.eagle3(borrowed(target) | t, config, states, tokens, path)
    return plain.over_target(logits, t.get("d2t"), VOCAB)


def eagle_row(target: str, folder: str, tokens: list[int], path: list[int]) -> Tensor:
    t, config = checkpoint(folder)
    states = states_of(target, tokens[:-1], ["final"])
    own = borrowed(target)
    return plain.eagle(
        {"embed_tokens.weight": own["embed_tokens.weight"]} | t,
        config, own["lm_head.weight"], states, tokens, path,
    )  # fmt: skip


def medusa_row(target: str, folder: str, tokens: list[int], path: list[int]) -> Tensor:
    t, _ = checkpoint(folder)
    states = states_of(target, tokens[:-1], ["final"])
    output = t.get("lm_head.weight", borrowed(target)["lm_head.weight"])
    return plain.over_target(plain.medusa(t, output, states, path), t.get("d2t"), VOCAB)


def dspark_row(target: str, folder: str, tokens: list[int], path: list[int]) -> Tensor:
    t, config = checkpoint(folder)
    states = states_of(target, tokens[:-1], config["aux_hidden_state_layer_ids"])
    logits = plain.dspark(t, config, borrowed(target), states, tokens, path)
    return plain.over_target(logits, t.get("d2t"), VOCAB)


def mtp_row(target: str, folder: str, tokens: list[int], path: list[int], **style: bool) -> Tensor:
    t, config = checkpoint(folder)
    layers = config["transformer_layer_config"] | {"rope_theta": 10000.0}
    states = states_of(target, tokens[:-1], ["final"])
    return plain.mtp(t, layers, borrowed(target), states, tokens, path, **style)


def borrowed(target: str) -> plain.Tensors:
    model = reference(target)
    return {
        "embed_tokens.weight": model.get_input_embeddings().weight.detach(),
        "lm_head.weight": model.get_output_embeddings().weight.detach(),
    }


# kind of head -> what its logits after a text and a drafted path should be
ROWS: dict[str, Row] = {
    "eagle3": eagle3_row,
    "eagle": eagle_row,
    "medusa": medusa_row,
    "dspark": dspark_row,
    "mtp": mtp_row,
}


def make_comparing(
    kind: str, target: str, folder: str | None, length: int, row: Row | None = None, **options: Any
) -> LLM:
    """An engine with such a drafter; `draft` among the options are further ones of the drafter.
    Without a folder, the drafter is the target's own and held against `row`."""
    expected = row or ROWS[kind]

    class Compared(Comparing, drafter_class(kind)):  # type: ignore[misc]
        name = "comparing"

        def fresh(self, request: Request, path: list[int]) -> Tensor:
            return expected(target, folder or "", list(request.tokens), path)

    draft = {"method": "comparing", "model": folder, "num_speculative_tokens": length}
    draft |= options.pop("draft", {})
    with registered(Compared):
        return make_llm(target, draft, **options)
