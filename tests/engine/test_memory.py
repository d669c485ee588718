"""One budget for all models; out of memory, passes shrink and go on, and words say what helps."""

from typing import Any

import pytest
import torch
from tests.engine.helpers import Models, make_llm, mixed_requests, run, same_results

from outrider.core.errors import ModelError, OutriderError
from outrider.engine import memory as engine_memory
from outrider.engine.llm import LLM
from outrider.model.flight import Flight
from outrider.model.loading import load_model
from outrider.model.runner import Runner


def with_room_for(llm: LLM, rows: int) -> list[int]:
    """Passes over more rows than that break; the rows of those that did."""
    launch, broken = llm.engine.runner.launch, []

    def limited(segments: list[Any]) -> Flight:
        if (wanted := sum(map(len, segments))) > rows:
            broken.append(wanted)
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return launch(segments)

    llm.engine.runner.launch = limited  # type: ignore[method-assign]
    return broken


def test_nobody_is_lost_when_passes_do_not_fit(
    models: Models, caplog: pytest.LogCaptureFixture
) -> None:
    asked = mixed_requests(8)
    llm = make_llm(models.target, {"method": "draft_model", "model": models.noisy})
    broken = with_room_for(llm, rows=24)
    results = run(llm, asked)
    assert broken
    assert "memory_utilization" in caplog.text and "from now on" in caplog.text
    same_results(llm, asked, results, run(make_llm(models.target), asked))
    llm.engine.kv.check()


def test_a_pass_that_never_fits_is_an_error_with_a_remedy(models: Models) -> None:
    llm = make_llm(models.target)
    with_room_for(llm, rows=0)
    with pytest.raises(OutriderError, match=r"smallest pass.*max_num_seqs"):
        run(llm, mixed_requests(8)[:2])


def test_slots_that_do_not_fit_are_named(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = Runner(load_model(models.target, device="cpu", dtype="float32"))

    def full(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(runner, "_allocate", full)
    with pytest.raises(ModelError, match=r"50 KV slots.*GiB.*memory_utilization"):
        runner.allocate(50)


# ---- one budget for all models ----


class Device:
    """Stands for a GPU's queries: so much in all, less what engines have been given."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, total: int) -> None:
        self.total, self.engines, self.asked = total, [], 0
        self.passes: dict[str, int] = {}  # by the model's name
        monkeypatch.setattr(engine_memory, "free_memory", self.free)
        monkeypatch.setattr(engine_memory, "pass_bytes", self.of_pass)
        monkeypatch.setattr(engine_memory, "workspace_bytes", lambda *_: 1000)

    def free(self, device: torch.device) -> int:
        self.asked += 1
        return self.total - sum(each.memory.kv + 2000 for each in self.engines)

    def of_pass(self, runner: Runner, rows: int, longest: int) -> int:
        return self.passes.get(runner.loaded.name, 0)

    def load(self, model: str, drafter: Any = None, **options: Any) -> LLM:
        llm = make_llm(model, drafter, **{"kv_cache_tokens": None, **options})
        self.engines.append(llm)
        return llm


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    return Device(monkeypatch, total=4_000_000)


def test_target_and_draft_model_share_one_budget(models: Models, device: Device) -> None:
    draft = {"model": models.noisy, "num_speculative_tokens": 2}
    device.passes = {models.target: 30_000, models.noisy: 50_000}
    alone = device.load(models.target).memory
    device.engines.clear()
    both = device.load(models.target, draft).memory
    assert both.weights == 2 * alone.weights and both.bytes_per_slot == 2 * alone.bytes_per_slot
    assert (alone.workspace, both.workspace) == (1000, 2000)
    assert (alone.passes, both.passes) == (30_000, 50_000)  # they come one after the other
    for use in (alone, both):
        taken = use.kv + use.workspace + use.passes
        assert 2_000_000 - use.bytes_per_slot < taken <= 2_000_000
    assert device.asked == 2


@pytest.mark.parametrize("method", ["draft_model", "auto", "staged", "strings"])
def test_every_drafter_with_a_model_is_counted(models: Models, device: Device, method: str) -> None:
    config: dict[str, Any] = {"method": method, "model": models.noisy, "num_speculative_tokens": 2}
    if method == "strings":
        config |= {"method": "draft_model", "translation": "strings"}
    llm = device.load(models.target, config)
    assert [runner.loaded.name for runner in llm.engine.drafting.runners] == [models.noisy]
    assert llm.memory.weights == 2 * device.load(models.target).memory.weights
    assert run(llm, mixed_requests(4)[:1])[0].error is None


def test_slots_are_counted_once_all_weights_are_there(
    models: Models, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[str] = []

    def load(name: str, **options: Any) -> Any:
        assert not device.asked
        loaded.append(name)
        return load_model(name, **options)

    monkeypatch.setattr("outrider.engine.engine.load_model", load)
    monkeypatch.setattr("outrider.drafters.draft_model.load_model", load)
    device.load(models.target, {"model": models.noisy, "num_speculative_tokens": 2})
    assert loaded == [models.target, models.noisy] and device.asked == 1


def test_the_next_engine_takes_its_share_of_what_is_left(models: Models, device: Device) -> None:
    uses = [device.load(models.target).memory for _ in range(3)]
    assert uses[0].free == 4_000_000
    assert uses[0].kv > 1.8 * uses[1].kv > 3.2 * uses[2].kv > 0
    assert sum(use.kv + use.workspace for use in uses) < device.total


def test_no_room_beside_the_weights(
    models: Models, device: Device, caplog: pytest.LogCaptureFixture
) -> None:
    device.total = 1500
    with pytest.raises(ModelError, match=r"no memory is left for KV.*raise memory_utilization"):
        device.load(models.target)
    # A pass may keep half of the share from the slots, no more: the engine can make passes smaller.
    device.total = 100_000
    device.passes = {models.target: 60_000}
    use = device.load(models.target).memory
    assert use.passes == 25_000 and use.slots > 0
    assert "lower max_num_batched_tokens" in caplog.text


def test_a_number_of_slots_that_is_given_stands(models: Models, device: Device) -> None:
    device.total = 10
    assert device.load(models.target, kv_cache_tokens=50).memory.slots == 50
