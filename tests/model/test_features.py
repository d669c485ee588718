"""States that a drafter asked for, kept by slot."""

from array import array
from pathlib import Path

import pytest
import torch
from tests.tiny import make_tiny
from torch import Tensor

from outrider.model.features import Features
from outrider.model.loading import load_model
from outrider.model.runner import Runner
from outrider.model.segment import Segment


def make_features(late: bool, calls: list[int]) -> Features:
    def project(states: Tensor) -> Tensor:
        calls.append(len(states))
        return states[:, :2] * 3

    features = Features((0, "final"), project)
    features.elements(torch.zeros(1, 6))
    features._late = late
    features.store = torch.zeros(9, 6 if late else 2)
    calls.clear()
    return features


@pytest.mark.parametrize("late", [False, True])
def test_what_is_read_is_projected_now_or_then(late: bool) -> None:
    calls: list[int] = []
    features = make_features(late, calls)
    states = torch.arange(12.0).view(4, 3)
    features.write({0: states, "final": states + 50}, torch.tensor([5, 1, 8, 2]))
    assert calls == ([] if late else [4])
    assert torch.equal(features.at([1, 5]), 3 * states[[1, 0], :2])
    assert calls == ([2] if late else [4])
    assert features.width == 2


@torch.inference_mode()
def test_on_a_cpu_a_pass_projects_nothing(tmp_path: Path) -> None:
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
    assert features.at([7, 9]).shape == (2, 5) and calls == [2]
    assert runner.bytes_per_slot == runner.taps.elements_per_slot(
        torch.float32, runner.device
    ) * 4 + _kv_bytes(runner)


def _kv_bytes(runner: Runner) -> int:
    sizes = ((call.kv_heads, call.head_size, call.value_head_size) for call in runner.layers)
    return sum(4 * heads * (size + value) for heads, size, value in sizes)
