"""Logits are those of the `speculators` package, for files that it wrote itself and for files that
`outrider export` wrote and the package has read.

The package cannot be installed beside our transformers, so its answers are kept in files; see
speculators/make.py.
"""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.heads import reference as plain
from tests.heads.compared import checkpoint
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from outrider.heads.files import Files
from outrider.heads.formats import kind_of
from outrider.heads.head import Target
from outrider.heads.read_dspark import read_dspark
from outrider.heads.read_eagle3 import read_eagle3

FOLDER = Path(__file__).parent / "speculators"
HOW = (torch.float32, torch.device("cpu"), 2048)


def target_of(expected: dict[str, Tensor]) -> Target:
    config = SimpleNamespace(architectures=["LlamaForCausalLM"])
    embeddings = SimpleNamespace(weight=expected.get("embeddings"))
    output = SimpleNamespace(weight=None)
    if "output" in expected:
        output.weight = torch.nn.Parameter(expected["output"], requires_grad=False)
    model = SimpleNamespace(
        config=config,
        get_input_embeddings=lambda: embeddings,
        get_output_embeddings=lambda: output,
    )
    return Target(hidden=16, layers=6, vocabulary=48, model=model)


def attend_over(seen: Tensor, memory: dict[int, list[Tensor]] | None = None) -> Any:
    """Dense attention of rows over `memory` and themselves; seen [rows, keys] bool."""

    def attend(layer: int, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        if memory is not None:
            old_keys, old_values = memory[layer]
            keys, values = torch.cat([old_keys, keys]), torch.cat([old_values, values])
        q, k, v = (x.transpose(0, 1)[None] for x in (query, keys, values))
        mixed = scaled_dot_product_attention(q, k, v, attn_mask=seen, enable_gqa=True)
        return mixed[0].transpose(0, 1)

    return attend


@pytest.mark.parametrize("name", ["eagle3", "eagle3_normed", "eagle3_deep", "exported_eagle3"])
@torch.inference_mode()
def test_eagle3(name: str) -> None:
    files = Files.of(str(FOLDER / name))
    assert kind_of(files) == "eagle3"
    expected = load_file(FOLDER / name / "expected")
    head = read_eagle3(files, target_of(expected), *HOW)
    assert head.taps == (1, 2, 4)
    features = head.project(expected["states"])
    tokens = expected["tokens"].tolist()
    t, config = checkpoint(str(FOLDER / name))
    config["transformer_layer_config"]["rope_theta"] = 300.0
    for depth, logits in enumerate(expected["logits"]):  # [TOKENS - 1, draft vocabulary]
        for end in range(2, len(tokens) + 1 - depth):
            text, path = tokens[:end], tokens[end : end + depth]

            def step(features: Tensor, rows: Tensor) -> Tensor:
                seen = torch.ones(len(rows), len(rows)).tril().bool()
                return head(features, rows, torch.arange(len(rows)), attend_over(seen))

            state = plain.continued(step, features[: end - 1], text, path)
            torch.testing.assert_close(head.logits(state), logits[end - 2], rtol=1e-4, atol=1e-4)
            ours = plain.eagle3(t, config, expected["states"][: end - 1], text, path)
            torch.testing.assert_close(ours, logits[end - 2], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "name", ["dspark", "dspark_gated", "dspark_rnn", "exported_dspark", "exported_dflash"]
)
@torch.inference_mode()
def test_dspark(name: str) -> None:
    files = Files.of(str(FOLDER / name))
    assert kind_of(files) == "dspark"
    expected = load_file(FOLDER / name / "expected")
    target = target_of(expected)
    head = read_dspark(files, target, *HOW)
    head.borrow(target)
    features = head.project(expected["states"])
    tokens = expected["tokens"]
    t, config = checkpoint(str(FOLDER / name))
    config["transformer_layer_config"]["rope_theta"] = 300.0
    config.setdefault("markov_rank", 0)  # DFlash has none
    first = head.place_of(1)
    assert (first == 0) == (name not in ("dspark_gated", "exported_dflash"))
    for block, anchor in enumerate(expected["anchors"].tolist()):
        logits = expected["logits"][block]  # [4, draft vocabulary]
        kept = dict(enumerate(head.context(features[:anchor], torch.arange(anchor))))
        seen = torch.ones(4, anchor + 4).bool()
        states = head(tokens[anchor], torch.tensor(anchor), attend_over(seen, kept))
        before = tokens[anchor : anchor + 4 - first]
        guess = head.first_guess(states, head.output(states), tokens[anchor])
        for place in range(first, 4):
            if place > first:
                token = tokens[anchor + place - first]
                guess = head.guess(states[place], token, guess.memory)
            torch.testing.assert_close(guess.logits, logits[place], rtol=1e-4, atol=1e-4)
        if head.options.confidence:
            sure = expected["confidence"][block]  # [4]
            chance = head.confidence(states[first:], before)
            torch.testing.assert_close(chance, sure[first:], rtol=1e-4, atol=1e-4)
        text = tokens[: anchor + 1].tolist()
        for depth in range(4 - first):
            path = tokens[anchor + 1 : anchor + 1 + depth].tolist()
            borrowed = {"embed_tokens.weight": expected["embeddings"]}
            borrowed["lm_head.weight"] = expected.get("output")
            ours = plain.dspark(t, config, borrowed, expected["states"][:anchor], text, path)
            torch.testing.assert_close(ours, logits[first + depth], rtol=1e-4, atol=1e-4)
