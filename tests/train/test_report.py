"""What a run says at its end, and what it does where nothing was said."""

import json
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.train.test_writing import asked, some_texts

from outrider.core.errors import ConfigError
from outrider.train.defaults import ON_CPU, ON_GPU, filled, scale_for
from outrider.train.loop import LEARNING_RATES, Judgement
from outrider.train.report import write_report
from outrider.train.texts import Written

PNG = b"\x89PNG\r\n\x1a\n"


def judgements() -> list[Judgement]:
    return [
        Judgement(10, 2.5, [0.25, 0.125, 0.0], lessons=3.0, seconds=4.0),
        Judgement(20, 1.5, [0.5, 0.5], lessons=None, seconds=100.0),
    ]


def written(folder: Path) -> list[str]:
    notes: list[str] = []
    settings = asked(folder, target="my|model", steps=20)
    write_report(settings, Written(some_texts(40), 50, 30.0), judgements(), 2, notes.append)
    return notes


def test_the_report_has_figures_a_picture_and_a_page(tmp_path: Path) -> None:
    assert written(tmp_path) == []
    found = json.loads((tmp_path / "report.json").read_text())
    assert found["steps"] == 20 and found["texts"] == 40 and found["machine"]["processes"] == 2
    assert found["data"]["tokens"] == 800 and found["data"]["tokens that the target wrote"] == 720
    assert found["data"]["texts held out"] == 2 and found["data"]["prompts used"] == 50
    assert found["seconds"] == {"writing texts": 30.0, "lessons": 100.0}
    assert [each["length"] for each in found["held out"]] == [1.28125, 1.75]
    page = (tmp_path / "report.md").read_text()
    assert "![" in page and "(report.png)" in page
    assert "| 10 | 3.000 | 2.500 | 25% | 12% | 0% | 1.28 |" in page
    assert "| 20 |  | 1.500 | 50% | 50% |  | 1.75 |" in page
    assert "| lessons | 2 min |" in page and "| target | my\\|model |" in page
    assert (tmp_path / "report.png").read_bytes().startswith(PNG)
    assert not list(tmp_path.glob("*.partial"))


def test_without_matplotlib_there_is_a_page_without_a_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    (note,) = written(tmp_path)
    assert "pip install 'outrider[bench]'" in note
    assert "report.png" not in (tmp_path / "report.md").read_text()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["report.json", "report.md"]


def test_a_larger_target_is_asked_for_less() -> None:
    for table, on_gpu in ((ON_GPU, True), (ON_CPU, False)):
        scales = [scale_for(int(size), on_gpu) for size in (1e8, 4e8, 1.5e9, 4e9, 1e10, 1e11)]
        assert set(scales) == set(table.values())
        for before, after in pairwise(scales):
            assert all(now <= then for then, now in zip(before, after, strict=True))


def test_what_was_said_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("outrider.train.defaults.parameters_of", lambda target: int(1e10))
    given: dict[str, Any] = {
        "kind": "eagle3", "target": "x", "out": tmp_path, "data": ("self",), "longest": 9,
        "temperature": 0.0, "seed": 0, "device": "cpu", "dtype": "auto", "texts": None,
        "steps": None, "texts_per_step": None, "vocabulary": None, "layers": None, "start": None,
        "normed": False, "learning_rate": None,
    }  # fmt: skip
    scale = scale_for(int(1e10), on_gpu=False)
    found = filled(**given)
    assert (found.texts, found.steps, found.texts_per_step) == scale[:3]
    assert found.learning_rate == scale.rate * LEARNING_RATES["eagle3"]
    assert found.vocabulary == 16384
    said = {"texts": 7, "steps": 8, "texts_per_step": 9, "learning_rate": 0.5, "vocabulary": 10}
    found = filled(**given | said)
    assert all(getattr(found, key) == value for key, value in said.items())
    assert filled(**given | {"kind": "distill"}).vocabulary is None
    with pytest.raises(ConfigError, match="above 0"):
        filled(**given | {"learning_rate": 0.0})
    with pytest.raises(ConfigError, match="--layers is for distill"):
        filled(**given | {"layers": 2})
    assert filled(**given | {"start": "drafter"}).start == "drafter"
    with pytest.raises(ConfigError, match="leave out --vocabulary"):
        filled(**given | {"start": "drafter", "vocabulary": 10})
    with pytest.raises(ConfigError, match="--normed is for eagle3"):
        filled(**given | {"kind": "dspark", "normed": True})
