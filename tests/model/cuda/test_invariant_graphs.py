"""Batch-invariant graphs as a whole, without a GPU: what is captured is run again instead."""

import random
from array import array
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.tiny import VOCAB, make_tiny

from outrider.model.cuda import graphs as module
from outrider.model.cuda.flights import launch_in_blocks
from outrider.model.cuda.fused import FusedModel
from outrider.model.cuda.graphs import Graphs
from outrider.model.cuda.invariance import check_bits
from outrider.model.loading import load_model
from outrider.model.runner import Runner
from outrider.model.segment import Segment

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="real ones are tested there")


class Rerun:
    """Stands for a captured `Graph`."""

    def __init__(self, forward: Any, inputs: Any, previous: Any, work: Any, choose: Any, _: Any):
        self.inputs = inputs
        self.logits = torch.zeros(inputs.rows, VOCAB)
        self.choices = torch.zeros(inputs.rows, dtype=torch.int64)

        def run() -> None:
            logits = forward(inputs, previous, work)
            self.choices.copy_(choose(logits, inputs))
            self.logits.copy_(logits)
            previous[: inputs.rows].copy_(self.choices)

        self.replay = run


@pytest.fixture
def graphs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Graphs:
    event = SimpleNamespace(record=lambda: None, synchronize=lambda: None)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    monkeypatch.setattr(torch.cuda, "Event", lambda: event)
    monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
    monkeypatch.setattr(module, "Graph", Rerun)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
    make_tiny("llama", tmp_path, num_hidden_layers=1)
    runner = Runner(load_model(str(tmp_path), dtype="float32", device="cpu"))
    runner.allocate(300)
    for parameter in runner.model.parameters():
        parameter.data = parameter.data.contiguous()
    model = FusedModel(runner.loaded, runner.layers, 300, runner.taps, invariant=True)
    call = runner.layers[0]
    shape = (call.heads, call.kv_heads, call.value_head_size, VOCAB)
    return Graphs(model, *shape, lines=8, longest=300, device=torch.device("cpu"))


@pytest.mark.slow
@torch.inference_mode()
def test_the_probe_at_load_finds_nothing(graphs: Graphs) -> None:
    assert graphs.invariant and graphs.most_rows == 64
    check_bits(graphs)


@torch.inference_mode()
def test_what_is_too_much_for_one_pass_comes_in_several(graphs: Graphs) -> None:
    """A prompt and a tree beside it: at once, and cut elsewhere by hand."""
    rng = random.Random(1)
    tokens, places = rng.choices(range(VOCAB), k=75), array("q", range(1, 76))
    text = Segment.chain(tokens, places, array("q"), logits_from=70)
    tree = Segment([4, 5, 6, 7], [-1, 0, 0, 1], array("q", range(80, 84)), array("q"), 0)
    assert not graphs.fits([text, tree]) and graphs.fits_in_blocks([text, tree])
    flight = launch_in_blocks(graphs, [text, tree])
    assert flight.landed is not None and not flight.hands_on
    assert flight.landed() == flight.logits.argmax(-1).tolist()
    context = array("q")
    for start, end in ((0, 33), (33, 71), (71, 75)):
        slots = array("q", range(100 + start, 100 + end))
        part = Segment.chain(tokens[start:end], slots, context, logits_from=0)
        known = graphs.launch([part]).logits.clone()
        context = context + slots
    assert torch.equal(flight.logits[1:5], known)
    assert torch.equal(flight.logits[5:], graphs.launch([tree]).logits)
