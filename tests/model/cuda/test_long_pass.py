"""Passes over many rows, in Triton's interpreter where there is no GPU: against the module."""

from array import array
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.heads.looped import NoCapture
from tests.model.cuda.passes import DEVICE
from tests.model.cuda.test_fused import prompt, runner_of, work_for

from outrider.model.cuda.capture import Capture
from outrider.model.cuda.choice import choose
from outrider.model.cuda.fused import FusedModel
from outrider.model.cuda.long_pass import LongPass
from outrider.model.cuda.truncation import CutMemory, find_cuts
from outrider.model.runner import Runner
from outrider.model.segment import Choosing, Segment

DRAWN = Choosing(temperature=5.0, seed=7, sample=1, position=4, top_k=20)


def long_pass_of(runner: Runner, rows: int, most_choices: int = 8) -> LongPass:
    model = FusedModel(runner.loaded, runner.layers, positions=128, taps=runner.taps)
    work = work_for(runner, model, rows)
    memory = CutMemory.of(most_choices, runner.vocabulary, DEVICE)

    def chosen(logits: torch.Tensor, inputs: Any) -> torch.Tensor:
        return choose(logits, find_cuts(logits, inputs, memory), inputs, work)

    table = torch.zeros(2, 8, dtype=torch.int32, device=DEVICE)
    cuda: Any = Capture(DEVICE) if DEVICE.type == "cuda" else NoCapture()
    call = runner.layers[0]
    return LongPass(model, call.heads // call.kv_heads, table, work, chosen, most_choices, cuda)


def rest_of(text: Segment, before: int) -> Segment:
    return Segment.chain(text.tokens[before:], text.slots[before:], text.slots[:before], 0)


@pytest.mark.parametrize("rows", [13, 70])  # by our own products, by torch's
@torch.inference_mode()
def test_prompts_go_through_the_same_layers(rows: int, tmp_path: Path) -> None:
    """A prompt, the rest of another behind what is cached, a text being written."""
    runner = runner_of("qwen2", tmp_path, (0, 1, "final"))
    runner.allocate(120)
    first, second, third = prompt(rows - 4, 1, 1), prompt(9, 80, 2), prompt(4, 95, 3)
    runner.forward([first, second, third])
    segments = [first, rest_of(second, 6), rest_of(third, 3)]
    segments[0].logits_from = rows - 9
    expected = runner.forward(segments).clone()
    states = runner.taps.features[0].store.clone()
    runner.taps.features[0].store.zero_()
    long_pass = long_pass_of(runner, rows)
    assert long_pass.takes(segments)
    flight = long_pass(segments)
    torch.testing.assert_close(flight.logits, expected, rtol=1e-4, atol=1e-4)
    assert flight.landed is None and not flight.replayed  # of some texts several rows are wanted
    got = runner.taps.features[0].store
    written = got.abs().flatten(1).any(1)
    assert int(written[1:].sum()) == rows
    torch.testing.assert_close(got[written], states[written], rtol=1e-4, atol=1e-4)
    alone = long_pass([segments[0]])  # by torch's attention
    torch.testing.assert_close(alone.logits, expected[:5], rtol=1e-4, atol=1e-4)


@torch.inference_mode()
def test_the_tokens_after_prompts_are_chosen_as_asked(tmp_path: Path) -> None:
    runner = runner_of("qwen2", tmp_path)
    texts = [prompt(9, 1, 1), prompt(5, 20, 2), prompt(6, 40, 3)]
    for text in texts:
        text.logits_from = len(text) - 1
    texts[1].choosing = DRAWN
    texts[2].logits_from = len(texts[2])  # it goes on in the next pass
    long_pass = long_pass_of(runner, 20)
    flight = long_pass(texts)
    assert flight.landed is not None and not flight.hands_on and len(flight.logits) == 2
    by_itself = long_pass([texts[1]])
    assert by_itself.landed is not None
    assert flight.landed() == [int(flight.logits[0].argmax()), *by_itself.landed()]
    assert flight.landed()[1] != int(flight.logits[1].argmax())
    goes_on = long_pass(texts[2:])
    assert goes_on.landed is not None and goes_on.landed() == []
    assert goes_on.logits.shape == (0, runner.vocabulary)
    few = long_pass_of(runner, 20, most_choices=1)(texts)
    assert few.landed is None  # more than it chooses: the host does


def test_trees_are_for_others(tmp_path: Path) -> None:
    runner = runner_of("qwen2", tmp_path)
    tree = Segment([5, 6, 7], [-1, 0, 0], array("q", [1, 2, 3]), array("q"), 0)
    assert not long_pass_of(runner, 3).takes([prompt(3, 10, 1), tree])
