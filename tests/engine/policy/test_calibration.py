"""What is measured at start, and what is kept of it."""

import json
from array import array
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.engine.helpers import Models, make_llm
from tests.tiny import make_tiny

from outrider.core.params import SamplingParams
from outrider.core.request import Request
from outrider.engine.policy import calibration
from outrider.engine.policy.cost import (
    Crowd,
    Measured,
)
from outrider.model.loading import load_model
from outrider.model.runner import SCRAP, Runner


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path))
    return tmp_path / "calibration"


def test_calibration_is_kept_and_found_again(
    models: Models, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[Measured] = []
    measure = calibration.measure

    steady = [True]

    def counted(*args: Any) -> tuple[Measured, bool]:
        measured.append(measure(*args)[0])
        return measured[-1], steady[0]

    monkeypatch.setattr(calibration, "measure", counted)
    first = make_llm(models.target, "ngram")
    assert len(measured) == 1
    assert len(measured[0].rows) >= 3
    assert all(seconds > 0 for seconds in measured[0].seconds)
    first.engine.kv.check()
    again = make_llm(models.target, "ngram")
    assert len(measured) == 1
    assert again.engine.policy.cost.measured == measured[0]
    make_llm(models.target, {"method": "ngram", "num_speculative_tokens": 3})  # needs none
    assert len(measured) == 1
    (file,) = cache.glob("*.json")
    file.write_text("broken")
    make_llm(models.target, "ngram")
    assert len(measured) == 2
    assert json.loads(file.read_text()) == asdict(measured[1])
    file.unlink()
    steady[0] = False  # what a busy machine shows is used, but not kept
    busy = make_llm(models.target, "ngram")
    assert busy.engine.policy.cost.measured == measured[2]
    assert not file.exists()


def test_another_precision_is_another_calibration(
    models: Models, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibration, "STEADY", 1e9)  # whatever else this machine does
    make_llm(models.target, "ngram")
    make_llm(models.target, "ngram", dtype="bfloat16")
    assert len(list(cache.glob("*.json"))) == 2


def test_calibrations_of_other_versions_and_other_layers_are_not_believed(
    models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = make_llm(models.target, None).engine.runner
    files = {calibration._file(runner, {})}
    monkeypatch.setattr(calibration, "VERSION", "9.9")
    files.add(calibration._file(runner, {}))
    head = runner.model.get_output_embeddings()
    head.__class__ = type("OtherLinear", (type(head),), {})
    files.add(calibration._file(runner, {}))
    assert len(files) == 3


def test_a_cache_that_cannot_be_written_is_no_obstacle(
    models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    file.write_text("")
    monkeypatch.setenv("OUTRIDER_CACHE", str(file / "below"))
    make_llm(models.target, "ngram")


def test_a_small_pool_is_calibrated_with_what_there_is(models: Models, cache: Path) -> None:
    llm = make_llm(models.target, "ngram", kv_cache_tokens=24)
    assert llm.engine.policy.cost.measured.rows == [1, 2, 3, 4, 8, 16]
    llm.engine.kv.check()


def test_a_pool_that_is_in_use_is_calibrated_like_one_that_is_not(
    models: Models, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request may ask for a drafter that wants to know what passes take, when none is free."""
    monkeypatch.setattr(calibration, "STEADY", 1e9)  # whatever else this machine does
    llm = make_llm(models.target, None, kv_cache_tokens=24)
    engine = llm.engine
    hoarder = Request("hoarder", [5], SamplingParams(), seed=0)
    engine.kv.open(hoarder)
    assert engine.kv.reserve(hoarder, engine.kv.total)
    keys = [layer.module.outrider_kv.keys for layer in engine.runner.layers]
    for layer in keys:
        layer.fill_(7.0)
    assert engine.policy.cost.measured.rows == [1, 2, 3, 4, 8, 16]
    assert all((layer[SCRAP + 1 :] == 7.0).all() for layer in keys)  # what others wrote stays
    engine.kv.close(hoarder)
    engine.kv.check()
    assert not list(cache.rglob("*.json"))  # keys of one slot are read more quickly than others


def test_crowds_are_measured_where_slots_suffice(
    models: Models, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what a small pool has shown is not taken for all that can be known."""
    monkeypatch.setattr(calibration, "STEADY", 1e9)  # whatever else this machine does

    def crowds(slots: int, **options: Any) -> list[Crowd]:
        llm = make_llm(models.target, "ngram", kv_cache_tokens=slots, **options)
        return llm.engine.policy.cost.measured.crowds

    assert crowds(24) == []
    assert [crowd.texts for crowd in crowds(2048)] == [8]
    found = crowds(4300)
    assert [crowd.texts for crowd in found] == [8, 32]
    assert [crowd.rows for crowd in found] == [list(rows) for _, rows in calibration.CROWDS]
    assert crowds(4300) == found  # from the cache
    assert crowds(4300, reproducible=True) == []  # rows are rows there
    assert [crowd.texts for crowd in crowds(4300, max_num_seqs=8)] == [8]  # nobody has more
    assert crowds(4300, max_num_seqs=1) == []


def test_segments_use_each_slot_once() -> None:
    slots = array("q", range(10, 30))
    segments = calibration._segments([2, 3], 4, slots)
    used = [slot for segment in segments for slot in (*segment.context, *segment.slots)]
    assert used == list(range(10, 23))


def test_calibration_stays_within_the_positions_a_model_has(tmp_path: Path) -> None:
    """GPT-2 looks its positions up: beyond the last, a GPU's pass would be the process's last."""
    runner = Runner(load_model(str(make_tiny("gpt2", tmp_path)), dtype="float32", device="cpu"))
    runner.allocate(2000)
    measured, _ = calibration.measure(runner, array("q", range(1, 2001)), 64)
    assert measured.context < 512


@pytest.mark.parametrize("ahead", [True, False])
def test_passes_that_run_ahead_are_measured_in_a_row(
    monkeypatch: pytest.MonkeyPatch, ahead: bool
) -> None:
    """By a clock on which a launch takes a second, and the wait at the end three."""
    now = [0.0]

    class Double:
        runs_ahead = ahead
        launches = 0

        def launch(self, segments: Any) -> Any:
            self.launches += 1
            now[0] += 1.0
            return self

        @property
        def logits(self) -> torch.Tensor:
            now[0] += 3.0
            return torch.zeros(1, 2)

    monkeypatch.setattr(calibration, "perf_counter", lambda: now[0])
    runner: Any = Double()
    seconds = calibration._timed(runner, [])
    assert runner.launches == (calibration.IN_A_ROW if ahead else 1)
    assert seconds == pytest.approx(1.0 + 3.0 / runner.launches)
