"""States that a drafter asked for, kept by slot."""

from array import array
from pathlib import Path

import torch
from tests.tiny import make_tiny
from torch import Tensor

from outrider.model.features import Features
from outrider.model.loading import load_model
from outrider.model.runner import Runner
from outrider.model.segment import Segment


def test_states_are_kept_side_by_side_and_projected_when_they_are_read() -> None:
    calls: list[int] = []

    def project(states: Tensor) -> Tensor:
        calls.append(len(states))
        return states[:, 2:7] * 3

    features = Features((0, "final", 0), project)
    features.allocate(8, {0: 3, 4: 7, "final": 3}, torch.zeros(0))
    assert features.store.shape == (9, 9) and features.width == 5
    calls.clear()
    states, slots = torch.arange(12.0).view(4, 3), torch.tensor([5, 1, 8, 2])
    features.write(0, states, slots)
    features.write("final", states + 50, slots)
    features.write(4, states + 70, slots)  # somebody else's
    assert not calls
    expected = torch.cat([states[:, 2:], states + 50, states[:, :1]], 1) * 3
    assert torch.equal(features.at([1, 5]), expected[[1, 0]])
    assert calls == [2]


@torch.inference_mode()
def test_a_pass_projects_nothing(tmp_path: Path) -> None:
    make_tiny("llama", tmp_path)
    runner = Runner(load_model(str(tmp_path), dtype="float32", device="cpu"))
    calls: list[int] = []

    def project(states: Tensor) -> Tensor:
        calls.append(len(states))
        return states[:, :5]

    features = runner.tap((0, "final"), project)
    runner.allocate(20)
    calls.clear()
    runner.forward([Segment.chain([3, 4, 5], array("q", [7, 8, 9]), array("q"), logits_from=0)])
    assert not calls
    embedded = runner.model.get_input_embeddings()(torch.tensor([3, 5]))
    assert torch.equal(features.at([7, 9]), embedded[:, :5]) and calls == [2]
    assert runner.bytes_per_slot == runner.taps.elements_per_slot * 4 + _kv_bytes(runner)


def _kv_bytes(runner: Runner) -> int:
    sizes = ((call.kv_heads, call.head_size, call.value_head_size) for call in runner.layers)
    return sum(4 * heads * (size + value) for heads, size, value in sizes)
