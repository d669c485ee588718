from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cli.fake import FakeLLM

import outrider
from outrider.cli import main
from outrider.model import zoo

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[FakeLLM]:
    """The fake LLMs that commands have built; `LLM` builds such ones in this test."""
    built: list[FakeLLM] = []

    def build(model: str, speculative_config: Any = None, **options: Any) -> FakeLLM:
        built.append(FakeLLM(model, speculative_config, options))
        return built[-1]

    monkeypatch.setitem(outrider.__dict__, "LLM", build)
    monkeypatch.setattr(zoo, "pull", lambda name: Path(name))  # no download
    return built


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the command line in this process: (exit code, stdout, stderr)."""

    def call(*argv: str) -> tuple[int, str, str]:
        code = main.run(list(argv))
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call
