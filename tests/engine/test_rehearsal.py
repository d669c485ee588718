"""What drafters take, seen at the first start."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.engine.helpers import Models, make_llm
from tests.tiny import make_tiny, make_tokenizer

from outrider.core.params import SamplingParams
from outrider.engine import rehearsal, sequence
from outrider.engine.engine import Engine
from outrider.engine.llm import LLM
from outrider.engine.policy import calibration
from outrider.engine.scheduler import Scheduler


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Empty; and passes are not measured, which takes longer than all else here."""
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path))
    monkeypatch.setattr(calibration, "measure", lambda _, passes, *rest: [0.001] * len(passes))
    return tmp_path / "calibration"


@pytest.fixture
def rehearsed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The drafters that have drafted for nobody."""
    names: list[str] = []
    draft = rehearsal._draft_for_nobody

    def noted(engine: Engine, drafter: str) -> None:
        names.append(drafter)
        draft(engine, drafter)

    monkeypatch.setattr(rehearsal, "_draft_for_nobody", noted)
    return names


def auto(models: Models, draft: dict[str, Any] | None = None, **options: Any) -> LLM:
    drafters = ["suffix", {"model": models.noisy, **(draft or {})}]
    return make_llm(models.target, {"method": "auto", "drafters": drafters}, **options)


def test_what_a_draft_takes_is_known_before_the_first_request(
    models: Models, cache: Path, rehearsed: list[str]
) -> None:
    llm = auto(models, max_num_seqs=8)
    timing = llm.engine.policy.timings["draft_model"]
    assert rehearsed == ["draft_model"]
    assert timing.known(1) and timing.known(8) and not timing.known(32)
    assert timing.young  # of the first calls in earnest the shortest counts
    assert 0 < timing.level(1) < 1 and 0 < timing.per_row < timing.level(1)
    again = auto(models, max_num_seqs=8).engine.policy.timings["draft_model"]
    assert again == timing and rehearsed == ["draft_model"]


def test_nothing_else_is_left_of_it(
    models: Models, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    preempted: list[str] = []
    preempt = Scheduler._preempt
    monkeypatch.setattr(
        Scheduler, "_preempt", lambda self, *job: preempted.append("") or preempt(self, *job)
    )
    # So small a pool has too little room for eight texts.
    for rehearsed in (True, False):
        engine = auto(models, max_num_seqs=8, kv_cache_tokens=120).engine
        assert engine.idle and engine.steps == 0 and not engine.seconds
        assert engine.scheduler.preemptions == engine.stopwatch.writing_steps == 0
        assert engine.policy.timings["draft_model"].known()
        assert bool(preempted) == rehearsed
        preempted.clear()
        assert engine.kv.available == engine.kv.total
        assert not any(track.levels[0].count for track in engine.policy.tracks.values())
        suffix: Any = engine.drafting.crew.members[0]
        assert not suffix._finished and len(suffix.archive) == 0


def test_a_broken_file_is_replaced(models: Models, cache: Path, rehearsed: list[str]) -> None:
    auto(models, max_num_seqs=8)
    files = {file: file.read_text() for file in cache.glob("*.json")}
    for file in files:
        file.write_text('{"what": 1}')
    assert auto(models, max_num_seqs=8).engine.policy.timings["draft_model"].known(1)
    assert rehearsed == ["draft_model"] * 2
    assert all(file.read_text() != '{"what": 1}' for file in files)


def test_lookups_and_fixed_lengths_need_none(
    models: Models, cache: Path, rehearsed: list[str]
) -> None:
    make_llm(models.target, {"method": "auto", "drafters": ["suffix", "ngram"]})
    make_llm(models.target, {"model": models.noisy, "num_speculative_tokens": 3})
    assert not rehearsed


def test_each_drafter_has_its_own_times(
    models: Models, cache: Path, rehearsed: list[str], tmp_path: Path
) -> None:
    """And where its model was read from does not matter."""
    moved = str(shutil.copytree(models.noisy, tmp_path / "moved"))
    for model in (models.noisy, moved):
        for tree in ("chain", [2, 1]):
            auto(models, {"model": model, "tree": tree})
    assert len(rehearsed) == 2
    deeper = make_tiny("llama", tmp_path / "deeper", num_hidden_layers=3)
    make_tokenizer(deeper)
    auto(models, {"model": str(deeper)})
    assert len(rehearsed) == 3
    drafters = ["early_exit", {"model": models.noisy, "tree": "chain"}]
    llm = make_llm(models.target, {"method": "auto", "drafters": drafters})
    assert rehearsed[3:] == ["early_exit"]
    timings = llm.engine.policy.timings
    assert all(timings[name].known() for name in ("early_exit", "draft_model"))


def test_where_it_takes_long_few_texts_are_enough(
    models: Models, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rehearsal, "LONG", 0.0)
    timing = auto(models, max_num_seqs=8).engine.policy.timings["draft_model"]
    assert timing.known(1) and not timing.known(8)


def test_a_small_engine_says_nothing_of_a_large_one(
    models: Models, cache: Path, rehearsed: list[str]
) -> None:
    for options in ({"max_model_len": 2}, {"kv_cache_tokens": 40}, {}):
        llm = auto(models, max_num_seqs=8, **options)
        llm.engine.kv.check()
        assert llm.engine.policy.timings["draft_model"].known() == bool(rehearsed)
    assert len(rehearsed) == 2
    assert len(list(cache.glob("*.json"))) == 4  # passes and drafters of two pools


def test_the_documents_of_the_engine_are_left_in_peace(
    models: Models, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_up: list[str] = []

    def ground(text: str, documents: Any) -> list[Any]:
        looked_up.append(text)
        return []

    monkeypatch.setattr(sequence, "ground", ground)
    llm = auto(models, documents=["A text that was read before."])
    assert not looked_up
    llm.generate([[5, 6, 7]], SamplingParams(max_tokens=4))
    assert len(looked_up) == 1
