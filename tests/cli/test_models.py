"""`outrider pull` and `outrider models`: stdout carries the result and nothing else."""

import json
from pathlib import Path

import pytest
from tests.cli.conftest import Run

from outrider.core.errors import ModelError
from outrider.model import zoo

FOLDER = Path("/cache/zoo/small")


@pytest.fixture
def small_zoo(monkeypatch: pytest.MonkeyPatch) -> None:
    def pull(name: str) -> Path:
        if name != "small":
            raise ModelError(f"unknown zoo model {name!r}")
        return FOLDER

    entries = [
        zoo.ZooEntry("small", "A small model", "MIT", 12_000_000, FOLDER),
        zoo.ZooEntry("other", "Another one", "Apache-2.0", 5_000_000, None),
    ]
    monkeypatch.setattr(zoo, "pull", pull)
    monkeypatch.setattr(zoo, "zoo_names", lambda: entries)


@pytest.mark.usefixtures("small_zoo")
def test_pull_prints_the_folder(run: Run) -> None:
    assert run("pull", "small") == (0, f"{FOLDER}\n", "")
    code, out, _ = run("pull", "small", "--json")
    assert code == 0 and json.loads(out) == {"path": str(FOLDER)}


@pytest.mark.usefixtures("small_zoo")
def test_pull_of_an_unknown_name(run: Run) -> None:
    assert run("pull", "smal") == (2, "", "outrider: unknown zoo model 'smal'\n")


@pytest.mark.usefixtures("small_zoo")
def test_models(run: Run) -> None:
    code, out, err = run("models")
    assert (code, err) == (0, "")
    lines = [line.split() for line in out.splitlines()]
    assert lines[1] == ["small", "A", "small", "model", "MIT", "12", "MB", "yes"]
    assert lines[2][-1] == "no"
    assert ".gguf" in out and "org/name" in out
    code, out, _ = run("models", "--json")
    assert [(entry["name"], entry["cached"]) for entry in json.loads(out)] == [
        ("small", str(FOLDER)),
        ("other", None),
    ]
