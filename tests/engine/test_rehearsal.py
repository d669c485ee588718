"""What drafters take, seen at the first start."""

from pathlib import Path
from typing import Any

import pytest
from tests.engine.helpers import Models, make_llm

from outrider.core.params import SamplingParams
from outrider.engine import rehearsal
from outrider.engine.engine import Engine
from outrider.engine.llm import LLM
from outrider.engine.policy import calibration


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


def auto(models: Models, **options: Any) -> LLM:
    config = {"method": "auto", "drafters": ["suffix", {"model": models.noisy}]}
    return make_llm(models.target, config, **options)


def test_what_a_draft_takes_is_known_before_the_first_request(
    models: Models, cache: Path, rehearsed: list[str]
) -> None:
    llm = auto(models, max_num_seqs=8)
    timing = llm.engine.policy.timings["draft_model"]
    assert rehearsed == ["draft_model"]
    assert timing.known(1) and timing.known(8) and not timing.known(32) and not timing.young
    assert 0 < timing.level(1) < 1 and 0 < timing.per_row < timing.level(1)
    again = auto(models, max_num_seqs=8).engine.policy.timings["draft_model"]
    assert again == timing and rehearsed == ["draft_model"]


def test_nothing_else_is_left_of_it(models: Models, cache: Path) -> None:
    params = SamplingParams(temperature=0.8, seed=1, max_tokens=24, ignore_eos=True)
    written = []
    for _ in ("rehearsed", "from the cache"):
        llm = auto(models, max_num_seqs=8)
        engine = llm.engine
        assert engine.idle and engine.steps == 0 and not engine.seconds
        assert engine.kv.available == engine.kv.total
        assert not any(track.levels[0].count for track in engine.policy.tracks.values())
        assert not engine.drafting.crew.members[0]._finished  # type: ignore[attr-defined]
        written.append(llm.generate([[5, 6, 7]], params)[0].outputs[0].token_ids)
    assert written[0] == written[1]


def test_a_broken_file_is_replaced(models: Models, cache: Path, rehearsed: list[str]) -> None:
    auto(models, max_num_seqs=8)
    files = {file: file.read_text() for file in cache.glob("*.json")}
    for file in files:
        file.write_text('{"what": 1}')
    assert auto(models, max_num_seqs=8).engine.policy.timings["draft_model"].known(1)
    assert rehearsed == ["draft_model"] * 2
    assert all(file.read_text() != '{"what": 1}' for file in files)


@pytest.mark.parametrize(
    "config",
    [
        {"method": "auto", "drafters": ["suffix", "ngram"]},
        {"method": "draft_model", "model": None, "num_speculative_tokens": 3},
    ],
)
def test_lookups_and_fixed_lengths_need_none(
    models: Models, cache: Path, rehearsed: list[str], config: dict[str, Any]
) -> None:
    if "model" in config:
        config = {**config, "model": models.noisy}
    make_llm(models.target, config)
    assert not rehearsed


def test_where_it_takes_long_few_texts_are_enough(
    models: Models, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rehearsal, "LONG", 0.0)
    timing = auto(models, max_num_seqs=8).engine.policy.timings["draft_model"]
    assert timing.known(1) and not timing.known(8)
