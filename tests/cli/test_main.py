"""The dispatcher: quick, lazy, and one line for everything that goes wrong."""

import subprocess
import sys
from typing import Any

import pytest
from tests.cli.conftest import Run

import outrider
from outrider.cli import main
from outrider.core.errors import ModelError

HEAVY = """
import sys
from outrider.cli import main
code = main.run({argv!r})
loaded = [name for name in ("torch", "transformers", "numpy") if name in sys.modules]
assert not loaded, loaded
sys.exit(code)
"""


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)


@pytest.mark.parametrize(
    "argv", [["--version"], ["--help"], *([c, "--help"] for c in main.COMMANDS)]
)
def test_help_and_version_import_nothing_heavy(argv: list[str]) -> None:
    done = python(HEAVY.format(argv=argv))
    assert (done.returncode, done.stderr) == (0, "")
    expected = f"outrider {outrider.__version__}\n" if argv == ["--version"] else "outrider"
    assert expected in done.stdout


def test_importing_the_package_imports_nothing_heavy() -> None:
    done = python("import outrider, sys; assert 'torch' not in sys.modules; outrider.OutriderError")
    assert done.returncode == 0, done.stderr


def test_exports() -> None:
    assert set(outrider._EXPORTS) == set(outrider.__all__) <= set(dir(outrider))
    for name in outrider.__all__:
        assert getattr(outrider, name).__name__ == name
    with pytest.raises(AttributeError, match="Nothing"):
        outrider.Nothing  # noqa: B018


def test_every_command_has_examples(run: Run) -> None:
    for name in main.COMMANDS:
        code, out, _ = run(name, "--help")
        assert code == 0 and f" outrider {name}" in out and "Examples:" in out


def test_no_arguments_show_the_help(run: Run) -> None:
    code, out, err = run()
    assert (code, err) == (0, "") and all(name in out for name in main.COMMANDS)


@pytest.mark.parametrize(
    ("argv", "part"),
    [
        (["generat"], "Did you mean 'generate'"),
        (["--nonsense"], "--nonsense"),
        (["generate", "x", "--max-tokens", "many"], "--max-tokens"),
        (["generate", "x", "--temprature", "1"], "--temperature"),
        (["pull"], "NAME"),
    ],
)
def test_usage_errors_are_one_line(run: Run, argv: list[str], part: str) -> None:
    code, out, err = run(*argv)
    assert (code, out) == (2, "")
    assert err.startswith("outrider: ") and err.count("\n") == 1 and part in err


@pytest.mark.parametrize(
    ("error", "code", "err"),
    [
        (ModelError("two\n  lines"), 2, "outrider: two lines\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_failures(
    monkeypatch: pytest.MonkeyPatch, run: Run, error: BaseException, code: int, err: str
) -> None:
    def fail(*args: Any, **options: Any) -> None:
        raise error

    monkeypatch.setitem(outrider.__dict__, "LLM", fail)
    assert run("generate", "Hello", "--model", "any") == (code, "", err)


def test_a_closed_pipe_is_quiet() -> None:
    code = """
import sys
from outrider.cli import main, pull
from outrider.model import zoo
zoo.pull = lambda name: "x" * 1_000_000
sys.exit(main.run(["pull", "name"]))
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == b"" and process.wait() == 1
