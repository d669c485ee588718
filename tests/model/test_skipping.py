"""A pass that skips layers equals a model that never had them."""

import re
from array import array
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.tiny import VOCAB, make_tiny, tiny_config
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from outrider.core.errors import ModelError
from outrider.model.attention import LayerCall
from outrider.model.loading import load_model
from outrider.model.runner import Runner
from outrider.model.segment import Segment
from outrider.model.skipping import DecoderLayers

# Names of attention and layers differ, windows alternate, experts and soft caps occur.
FAMILIES = ["llama", "gemma2", "gemma3_text", "phi3", "gpt2", "opt", "gpt_neox", "mixtral"]
LAYERS = 4
SKIP = frozenset({1, 3})  # inner and last
SLOTS = 64
TEXTS = [[5, 9, 200, 31, 7, 7, 81, 12, 250, 3, 17], [8, 100, 4]]


def _depth(family: str, layers: int) -> dict[str, int]:
    return {"n_layer" if family == "gpt2" else "num_hidden_layers": layers}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    root = tmp_path_factory.mktemp("deep")

    def make(family: str) -> Path:
        types = {"layer_types": None} if family == "gemma3_text" else {}
        return make_tiny(family, root / family, seed=3, **_depth(family, LAYERS), **types)

    return cache(make)


def shallower(folder: Path, family: str) -> Any:
    """A model of the same family with fewer layers, and the weights of those that stay."""
    whole = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    kept = [layer for layer in range(LAYERS) if layer not in SKIP]
    types = getattr(whole.config, "layer_types", None)
    types = {"layer_types": [types[layer] for layer in kept]} if types else {}
    config = tiny_config(family, **_depth(family, len(kept)), **types)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    weights = {}
    for name, value in whole.state_dict().items():
        found = re.search(r"\.(layers|h)\.(\d+)\.", name)
        if found is None:
            weights[name] = value
        elif int(found[2]) in kept:
            place = kept.index(int(found[2]))
            weights[name[: found.start(2)] + str(place) + name[found.end(2) :]] = value
    model.load_state_dict(weights)
    return model


@torch.inference_mode()
def own_rows(model: Any) -> Tensor:
    """[rows of all texts, vocabulary]"""
    outputs = [model(input_ids=torch.tensor([text]), use_cache=False) for text in TEXTS]
    return torch.cat([output.logits[0] for output in outputs])


def segments() -> list[Segment]:
    slots, made = iter(range(1, SLOTS)), []
    for text in TEXTS:
        taken = array("q", [next(slots) for _ in text])
        made.append(Segment.chain(text, taken, array("q"), logits_from=0))
    return made


def make_runner(folder: Path, reproducible: bool = False) -> Runner:
    runner = Runner(load_model(str(folder), dtype="float32", device="cpu"), reproducible)
    runner.allocate(SLOTS)
    return runner


def error(got: Tensor, expected: Tensor) -> float:
    return float((got - expected).abs().max() / expected.abs().max())


@pytest.mark.parametrize(
    ("family", "reproducible"),
    [*((family, False) for family in FAMILIES), ("llama", True), ("gemma2", True), ("gpt2", True)],
)
def test_skipping_equals_a_model_without_these_layers(tiny, family, reproducible):
    runner = make_runner(tiny(family), reproducible)
    whole = AutoModelForCausalLM.from_pretrained(
        tiny(family), dtype=torch.float32, attn_implementation="eager"
    )
    without = own_rows(shallower(tiny(family), family))
    assert error(own_rows(whole.eval()), without) > 0.01
    assert error(runner.forward(segments(), SKIP), without) <= 1e-4
    # The next pass has all its layers again.
    assert error(runner.forward(segments()), own_rows(whole)) <= 1e-4


def test_a_skipped_layer_leaves_its_memory_alone(tiny):
    runner = make_runner(tiny("llama"))
    runner.forward(segments())
    memories = [layer.module.outrider_kv.keys[1:6] for layer in runner.layers]
    before = [keys.clone() for keys in memories]
    changed = [Segment.chain([77] * 5, array("q", range(1, 6)), array("q"), 0)]
    runner.forward(changed, SKIP)
    same = [torch.equal(a, b) for a, b in zip(before, memories, strict=True)]
    assert same == [layer in SKIP for layer in range(LAYERS)]


def test_layers_come_back_when_a_pass_breaks(tiny):
    runner = make_runner(tiny("llama"))
    expected = runner.forward(segments()).clone()
    bad = [Segment.chain([VOCAB + 9], array("q", [1]), array("q"), 0)]
    with pytest.raises(IndexError):
        runner.forward(bad, SKIP)
    assert torch.equal(runner.forward(segments()), expected)


# ---- layers of other forms ----


class Layer(nn.Module):
    """Adds one, and returns hidden states in the form it is told to."""

    def __init__(self, *beside: Any, as_tuple: bool = True) -> None:
        super().__init__()
        self.attention = nn.Identity()
        self.beside, self.as_tuple = beside, as_tuple

    def forward(self, hidden_states: Tensor, **_: Any) -> Any:
        return (hidden_states + 1, *self.beside) if self.as_tuple else hidden_states + 1


class Model(nn.Module):
    def __init__(self, layers: list[Layer], by_name: bool = False) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(layers)
        self.by_name = by_name

    def forward(self, input_ids: Tensor, **_: Any) -> Tensor:
        hidden = input_ids
        for layer in self.blocks:
            output = layer(hidden_states=hidden) if self.by_name else layer(hidden)
            if isinstance(output, tuple):
                assert len(output) == 1 + len(layer.beside)
                output = output[0]
            hidden = output
        return hidden


def decoder_layers(model: nn.Module, layers: list[Layer]) -> DecoderLayers:
    calls = [LayerCall(layer.attention, 1, 1, 1, 1, None, None) for layer in layers]
    return DecoderLayers(model, calls, torch.device("cpu"))


@pytest.mark.parametrize("by_name", [False, True])
@pytest.mark.parametrize("form", [{"as_tuple": False}, {}])
def test_hidden_states_pass_in_the_form_that_the_layer_returns(form, by_name):
    layers = [Layer(**form), Layer(None, **form), Layer(None, None, **form)]
    model = Model(layers, by_name)
    with decoder_layers(model, layers).without(frozenset({0, 2})):
        assert int(model(torch.tensor([5]))) == 6
    assert int(model(torch.tensor([5]))) == 8


def test_a_forward_that_was_replaced_before_is_put_back():
    layers = [Layer(as_tuple=False)]
    model = Model(layers)
    layers[0].forward = lambda hidden: hidden + 10
    with decoder_layers(model, layers).without(frozenset({0})):
        assert int(model(torch.tensor([5]))) == 5
    assert int(model(torch.tensor([5]))) == 15


def test_layers_that_return_more_than_hidden_states_are_refused():
    layers = [Layer(torch.zeros(1))]
    with pytest.raises(ModelError, match="Layer returns more than hidden states"):
        decoder_layers(Model(layers), layers)


def test_layers_that_are_in_no_list_are_refused():
    class Lone(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.only = Layer()

    model = Lone()
    with pytest.raises(ModelError, match=r"Lone: only\.attention is in no list of layers"):
        decoder_layers(model, [model.only])
