"""Drafters that come with the package: their files, and who gets them."""

import tomllib
from fnmatch import fnmatch
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from outrider.drafters.auto import AutoDrafter
from outrider.drafters.registry import parse_config
from outrider.heads.files import Files
from outrider.heads.formats import kind_of
from outrider.heads.shipped import FOLDER, shipped_for
from outrider.model.zoo import ZOO

MIB = 1 << 20
NAMES = [folder.name for folder in FOLDER.iterdir() if (folder / "config.json").exists()]


def test_the_default_model_has_one() -> None:
    assert NAMES == ["smollm2-135m"]
    assert set(NAMES) <= set(ZOO)


@pytest.mark.parametrize("name", NAMES)
def test_its_files_are_small_documented_and_packed(name: str) -> None:
    files = [file for file in (FOLDER / name).iterdir() if file.is_file()]
    sizes = [file.stat().st_size for file in files]
    assert max(sizes) <= 16 * MIB and sum(sizes) <= 32 * MIB
    assert kind_of(Files.of(str(FOLDER / name))) == "eagle3"
    assert "outrider train eagle3" in (FOLDER / name / "README.md").read_text()
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    packed = project["tool"]["setuptools"]["package-data"]["outrider.heads.shipped"]
    for file in files:
        assert any(fnmatch(f"{name}/{file.name}", pattern) for pattern in packed), file.name


def test_only_the_model_itself_gets_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another model in a folder of the same name is another model."""
    (tmp_path / "smollm2-135m").mkdir()
    monkeypatch.chdir(tmp_path)
    assert shipped_for("smollm2-135m") == str(FOLDER / "smollm2-135m")
    for other in ("./smollm2-135m", str(tmp_path / "smollm2-135m"), "", ".", "..", "org/model"):
        assert shipped_for(other) is None


def members(model: str, config: Any) -> list[tuple[str, Any]]:
    drafter = AutoDrafter.__new__(AutoDrafter)
    drafter.config = parse_config(config)
    target: Any = SimpleNamespace(name=model)
    return [(each.method, each.options.get("model")) for each in drafter._configs(target)]


def test_auto_takes_it_where_nothing_else_was_named() -> None:
    shipped = shipped_for("smollm2-135m")
    lookups = [("suffix", None), ("documents", None)]
    assert members("smollm2-135m", "auto") == [*lookups, ("draft_model", shipped)]
    assert members("./smollm2-135m", "auto") == lookups
    other = {"method": "auto", "model": "./mine"}
    assert members("smollm2-135m", other) == [*lookups, ("draft_model", "./mine")]
    assert members("smollm2-135m", {"method": "auto", "drafters": ["ngram"]}) == [("ngram", None)]
