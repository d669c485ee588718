"""Out of memory: passes shrink and go on, and the words say what helps."""

from typing import Any

import pytest
import torch
from tests.engine.helpers import Models, make_llm, mixed_requests, run, same_results

from outrider.core.errors import ModelError, OutriderError
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
