"""The demo over a fake model: the four ways of decoding, the table, and its exit code."""

from typing import Any

import pytest
from tests.cli.fake import SCRIPT, FakeLLM

import outrider
from outrider.cli import demo


def test_identical_texts_exit_with_0(
    made: list[FakeLLM], capsys: pytest.CaptureFixture[str]
) -> None:
    assert demo.main() == 0
    out = capsys.readouterr().out
    ways = [(llm.speculative_config, llm.options["reproducible"]) for llm in made]
    assert ways == [(None, False), (demo.DRAFTER, False), (None, True), (demo.DRAFTER, True)]
    assert out.count("yes") == len(demo.CASES) and "2.50" in out and "peak memory" in out
    # The proof's texts are compared, not shown.
    assert out.count("The sky is €!") == 2 * len(demo.CASES)
    assert max(map(len, out.splitlines())) <= 100


def test_a_difference_exits_with_1(
    made: list[FakeLLM], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def build(model: str, config: Any, **options: Any) -> FakeLLM:
        return FakeLLM(model, config, options, SCRIPT[:2] if config else SCRIPT)

    monkeypatch.setitem(outrider.__dict__, "LLM", build)
    assert demo.main() == 1
    assert "no" in capsys.readouterr().out
