"""Figures of memory: what is free, what a pass takes; on a CPU with fakes of a GPU's queries."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.tiny import make_tiny

from outrider.core.errors import ModelError
from outrider.model import footprint, memory
from outrider.model.footprint import pass_bytes, workspace_bytes
from outrider.model.loading import load_model
from outrider.model.memory import GIB, MemoryUse, free_memory, peak_bytes, slots_that_fit
from outrider.model.runner import Runner

GPU = torch.device("cuda")


class OnGpu:
    """A runner that says so; it still computes on the CPU."""

    device = GPU

    def __init__(self, runner: Runner) -> None:
        self.runner = runner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.runner, name)


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Runner:
    folder = make_tiny("llama", Path(tmp_path_factory.mktemp("footprint")))
    return Runner(load_model(str(folder), device="cpu", dtype="float32"))


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """torch's figures of a GPU, to be set by the test."""
    figures = {"free": 1000, "allocated": 300, "peak": 0}

    def reset(device: Any) -> None:
        figures["peak"] = figures["allocated"]

    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: figures.update(free=1200))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (figures["free"], 5000))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: figures["allocated"])
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: figures["peak"])
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", reset)
    return figures


def test_slots_take_what_the_rest_leaves_of_the_share() -> None:
    assert slots_that_fit(1000, 0.5, 100, 50, bytes_per_slot=10, useful=1000) == 35
    assert slots_that_fit(1000, 0.5, 100, 50, bytes_per_slot=10, useful=30) == 30
    assert slots_that_fit(1000, 1.0, 0, 0, bytes_per_slot=10, useful=1000) == 100


def test_a_share_that_leaves_no_slot_is_refused_with_its_figures() -> None:
    with pytest.raises(ModelError) as refused:
        slots_that_fit(8 * GIB, 0.25, GIB, GIB, bytes_per_slot=10, useful=10)
    for words in ("0.25 of the 8.00 GiB", "is 2.00 GiB", "takes 1.00 GiB", "max_model_len"):
        assert words in str(refused.value)


def test_free_memory_counts_what_torch_only_keeps(gpu: dict[str, int]) -> None:
    assert free_memory(GPU) == 1200
    assert free_memory(torch.device("cpu")) > 0


def test_the_host_says_what_is_available(monkeypatch: pytest.MonkeyPatch) -> None:
    said = "MemTotal: 9 kB\nMemAvailable: 3 kB\n"
    monkeypatch.setattr(memory.Path, "read_text", lambda self: said)
    assert free_memory(torch.device("cpu")) == 3 * 1024


def test_the_peak_of_a_call(gpu: dict[str, int]) -> None:
    gpu["peak"] = 4000  # of something earlier
    assert peak_bytes(GPU, lambda: gpu.update(peak=gpu["peak"] + 70)) == 70

    def too_much() -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    assert peak_bytes(GPU, too_much) == 1200


def test_the_largest_pass_is_really_run(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, int]] = []
    forward = runner.forward

    def watched(segments: list[Any]) -> Any:
        seen.extend((len(s), len(s.context)) for s in segments)
        return forward(segments)

    def run(device: torch.device, work: Callable[[], Any]) -> int:
        assert work().shape == (1, runner.vocabulary)  # one row of logits, as for a prompt
        return 77

    monkeypatch.setattr(runner, "forward", watched)
    monkeypatch.setattr(footprint, "peak_bytes", run)
    assert pass_bytes(OnGpu(runner), rows=16, longest=64) == 77  # type: ignore[arg-type]
    assert pass_bytes(OnGpu(runner), rows=16, longest=9) == 77  # type: ignore[arg-type]
    assert seen == [(16, 48), (9, 0)]
    assert not any(hasattr(layer.module, "outrider_kv") for layer in runner.layers)
    assert pass_bytes(runner, rows=16, longest=64) == 0 and len(seen) == 2


def test_graphs_are_counted_where_they_will_be_made(
    runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("triton")
    from outrider.model.cuda import fused

    one, two = (workspace_bytes(OnGpu(runner), 8, longest) for longest in (64, 128))  # type: ignore[arg-type]
    size = runner.layers[0].head_size
    assert two - one == 64 * (4 * 9 + 2 * 4 * size)  # table with the scrap line, rotations
    assert workspace_bytes(runner, 8, 64) == 0
    exact = OnGpu(runner)
    exact.reproducible = True  # smaller passes, if more room for each row's attention
    for obstacle, counted in ((None, True), ("no kernels for it", False)):
        monkeypatch.setattr(fused, "unfused_because", lambda _, why=obstacle: why)
        assert (workspace_bytes(exact, 8, 64) > 0) == counted  # type: ignore[arg-type]


def test_the_figures_in_words() -> None:
    use = MemoryUse("cuda:0", 40 * GIB, 0.5, 3 * GIB, GIB, 2 * GIB, 1024, 2**20)
    assert use.kv == GIB and use.to_dict()["kv"] == GIB
    assert str(use) == (
        "cuda:0: weights 3.00 GiB, KV 1.00 GiB (1048576 slots of 1024 bytes), workspace 1.00 GiB, "
        "passes 2.00 GiB; free beside the weights: 40.00 GiB"
    )
