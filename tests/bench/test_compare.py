import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tests.bench.helpers import MACHINE, PROMPTS, a_run, tiny_options

from outrider.bench.compare import Figure, compare, verdict
from outrider.bench.results import Results
from outrider.core.errors import ConfigError


def results(folder: Path, speeds: dict[str, list[float]], **changes: Any) -> Path:
    found = Results.new(tiny_options(**changes), PROMPTS, MACHINE, folder)
    for drafter, samples in speeds.items():
        found.runs += [a_run(drafter, "chat", i, speed) for i, speed in enumerate(samples)]
    found.save()
    return found.path


def shown(first: Path, second: Path) -> str:
    text = io.StringIO()
    compare(first, second, Console(file=text, width=120, highlight=False))
    return text.getvalue()


@pytest.mark.parametrize(
    ("a", "b", "word"),
    [
        ((1.0, 0.9, 1.1), (1.3, 1.2, 1.4), "faster"),
        ((1.3, 1.2, 1.4), (1.0, 0.9, 1.1), "slower"),
        ((1.0, 0.9, 1.2), (1.3, 1.2, 1.4), "noise"),
        ((1.0, 0.9, 1.1), (1.3, None, None), "?"),
    ],
)
def test_verdicts(a: Any, b: Any, word: str) -> None:
    assert verdict(Figure(*a), Figure(*b)) == word


def test_what_changed_and_what_is_noise(tmp_path: Path) -> None:
    old = {"none": [10.0, 11.0, 10.5], "ngram": [20.0, 22.0, 21.0], "gone": [1.0]}
    new = {"none": [10.2, 10.9, 10.6], "ngram": [30.0, 33.0, 31.8], "fresh": [1.0]}
    text = shown(results(tmp_path / "a", old), results(tmp_path / "b", new))
    rows = {line.split()[1]: line.split() for line in text.splitlines() if "chat " in line[:5]}
    assert rows["none"][4:] == ["10.5", "10.6", "+1%", "noise"]
    assert rows["ngram"][4:8] == ["21.0", "31.8", "+51%", "faster"]
    assert rows["ngram"][8:] == ["2.00", "2.99", "faster"]
    assert "only in A: 1 cells, first system outrider, category chat, drafter gone" in text
    assert "only in B: 1 cells" in text and "different" not in text


def test_other_conditions_are_named(tmp_path: Path) -> None:
    first = results(tmp_path / "a", {"none": [10.0]})
    second = results(tmp_path / "b", {"none": [20.0]}, max_tokens=9)
    text = shown(first, second)
    assert "different arguments (max_tokens: 6 and 9)" in text
    assert "?" in next(line for line in text.splitlines() if "chat" in line)


def test_nothing_in_common(tmp_path: Path) -> None:
    text = shown(results(tmp_path / "a", {"x": [1.0]}), results(tmp_path / "b", {"y": [1.0]}))
    assert "no cell in common" in text


def test_no_results(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        shown(tmp_path / "missing", tmp_path / "missing")
