"""Prompts as graphs, in Triton's interpreter where there is no GPU: against the module."""

from array import array
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.heads.looped import NoCapture
from tests.model.cuda.passes import DEVICE
from tests.model.cuda.test_fused import prompt, runner_of, work_for
from torch import Tensor

from outrider.model.cuda.capture import Capture
from outrider.model.cuda.fused import FusedModel
from outrider.model.cuda.inputs import RowInputs
from outrider.model.cuda.prompts import AT_ONCE, Prompts
from outrider.model.cuda.whole_text import SIZES, size_for, sizes_for
from outrider.model.flight import Flight, joined
from outrider.model.runner import Runner
from outrider.model.segment import Segment

LENGTH = 75
SLOTS = 100  # of `runner_of`


def make_prompts(runner: Runner) -> Prompts:
    model = FusedModel(runner.loaded, runner.layers, positions=128, taps=runner.taps)
    assert model.plainly_causal or DEVICE.type == "cuda"  # there it is not float32's
    read, buffers = model.read_text, dict[int, Tensor]()

    def as_a_graph(inputs: RowInputs, *rest: Any) -> Tensor:
        """Every pass of a size writes its logits to the same place."""
        logits = read(inputs, *rest)
        return buffers.setdefault(inputs.rows, torch.empty_like(logits)).copy_(logits)

    model.read_text = as_a_graph  # type: ignore[method-assign]
    table = torch.zeros(2, LENGTH, dtype=torch.int32, device=DEVICE)
    cuda = Capture(DEVICE) if DEVICE.type == "cuda" else NoCapture()
    work = work_for(runner, model, 64)
    return Prompts(model, table, work, lambda logits, _: logits.argmax(1), cuda)  # type: ignore[arg-type]


def kv_of(runner: Runner) -> Tensor:
    """[layers, 2, slots, kv heads, size] without the scrap slot."""
    memories = [call.module.outrider_kv for call in runner.layers]
    return torch.stack([torch.stack([m.keys[1:], m.values[1:]]) for m in memories])


def last(text: Segment, before: int = 0) -> Segment:
    """What comes after so many tokens, of which the last one's logits are wanted."""
    rest = Segment.chain(text.tokens[before:], text.slots[before:], text.slots[:before], 0)
    rest.logits_from = len(rest) - 1
    return rest


@pytest.mark.parametrize("before", [0, 7])
@torch.inference_mode()
def test_a_prompt_is_read_as_by_the_module(before: int, tmp_path: Path) -> None:
    """Behind what is cached, too, which stays as it is; and so do the states that drafters read."""
    runner = runner_of("qwen2", tmp_path, (0, 1, "final"))
    for call in runner.layers:
        call.module.outrider_kv.keys.zero_(), call.module.outrider_kv.values.zero_()
    text = prompt(LENGTH, first=3, seed=1)
    expected = runner.forward([last(text)]).clone()
    features = runner.taps.features[0].store
    kv, states = kv_of(runner), features[3 : 3 + LENGTH].clone()
    cached = kv[:, :, 2 : 2 + before].clone()
    for call in runner.layers:  # what is to be read, is not there yet
        call.module.outrider_kv.keys[3 + before :] = 0
        call.module.outrider_kv.values[3 + before :] = 0
    features[3 + before :] = 0
    flight = make_prompts(runner)(last(text, before))
    assert flight.landed is not None and flight.landed() == expected.argmax(1).tolist()
    torch.testing.assert_close(flight.logits, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(kv_of(runner), kv, rtol=1e-4, atol=1e-4)
    assert torch.equal(kv_of(runner)[:, :, 2 : 2 + before], cached)
    torch.testing.assert_close(features[3 : 3 + LENGTH], states, rtol=1e-4, atol=1e-4)


@torch.inference_mode()
def test_prompts_of_one_step_do_not_see_each_other(tmp_path: Path) -> None:
    runner = runner_of("qwen2", tmp_path)
    runner.allocate(2 * LENGTH + 2)
    one, two = last(prompt(LENGTH, 1, seed=1)), last(prompt(LENGTH - 8, 1 + LENGTH, seed=2))
    expected = runner.forward([one, two]).clone()
    prompts = make_prompts(runner)
    flights = [prompts(one), prompts(two)]
    got = joined(flights, [0, 1], [1, 1])
    torch.testing.assert_close(got.logits, expected, rtol=1e-4, atol=1e-4)
    assert got.landed is not None and got.landed() == expected.argmax(1).tolist()
    goes_on = Segment.chain(one.tokens, one.slots, one.context, logits_from=LENGTH)
    assert prompts(goes_on).logits.shape == (0, runner.vocabulary)


def test_which_segments_are_prompts() -> None:
    slots = array("q", range(1, 2000))

    def chain(rows: int, before: int = 0) -> Segment:
        return Segment.chain([1] * rows, slots[before : before + rows], slots[:before], 0)

    assert size_for(chain(64)) is None  # a pass over few rows takes it
    assert size_for(chain(65)) == 96 and size_for(chain(97)) == 128
    assert size_for(chain(65, before=65)) == 192 and size_for(chain(65, before=66)) is None
    assert size_for(chain(SIZES[-1])) == SIZES[-1] and size_for(chain(SIZES[-1] + 1)) is None
    tree = chain(80)
    tree.parents[70] = 3
    assert size_for(tree) is None
    assert sizes_for(80) == [96] and sizes_for(97) == [128, 96]
    assert sizes_for(10**6) == list(reversed(SIZES))


def test_few_prompts_are_read_apart_and_many_together() -> None:
    text = last(prompt(LENGTH, 1, seed=1))
    short = prompt(4, 90, seed=2)
    among = Prompts.among
    some = object.__new__(Prompts)
    some._prompts = {96: None}  # type: ignore[dict-item]
    assert among(some, [short, text, short, text]) == [1, 3]
    assert among(some, [text] * AT_ONCE) == [*range(AT_ONCE)]
    assert among(some, [text] * (AT_ONCE + 1)) == []
    assert among(some, [prompt(LENGTH, 1, seed=1)]) == []  # all its logits are wanted
    assert among(some, [last(prompt(97, 1, seed=1))]) == []  # longer than any text was to be


def test_flights_are_joined_in_the_order_of_segments() -> None:
    def flight(first: int, rows: int, known: bool = True) -> Flight:
        tokens = list(range(first, first + rows))
        return Flight(torch.tensor(tokens)[:, None], (lambda: tokens) if known else None)

    whose, wanted = [2, 0, 2, 1, 2], [2, 1, 1, 0, 3]
    got = joined([flight(10, 1), flight(20, 0), flight(30, 6)], whose, wanted)
    assert got.logits[:, 0].tolist() == [30, 31, 10, 32, 33, 34, 35]
    assert got.landed is not None and got.landed() == [30, 31, 10, 32, 33, 34, 35]
    assert got.replayed and not got.hands_on
    assert joined([flight(1, 1), flight(2, 1, known=False)], [1, 0], [1, 1]).landed is None
    eager = Flight(torch.ones(1, 1), replayed=False)
    assert not joined([flight(1, 1), eager], [1, 0], [1, 1]).replayed
