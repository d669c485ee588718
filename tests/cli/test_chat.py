"""`outrider chat`: history, commands, and Ctrl-C that stops only the answer."""

import os
import signal
from collections.abc import Callable

import pytest
from tests.cli.conftest import Run
from tests.cli.fake import FakeLLM

TEXT = "The sky is €!"
Typed = Callable[[list[object]], None]


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Typed:
    """Lines the user types; an exception is raised in the place of a line, then the input ends."""

    def type_lines(lines: list[object]) -> None:
        waiting = iter([*lines, EOFError()])

        def read(prompt: str = "") -> str:
            line = next(waiting)
            if isinstance(line, BaseException):
                raise line
            return str(line)

        monkeypatch.setattr("builtins.input", read)

    return type_lines


def said(llm: FakeLLM) -> list[list[str]]:
    return [[message["content"] for message in prompt] for prompt in llm.prompts]


def test_history_grows_and_reset_forgets(made: list[FakeLLM], run: Run, typed: Typed) -> None:
    typed(["one", "", "two", "/reset", "three", "/exit", "never"])
    code, out, err = run("chat", "--system", "Be brief.")
    assert (code, out) == (0, f"{TEXT}\n" * 3)
    assert said(made[0]) == [
        ["Be brief.", "one"],
        ["Be brief.", "one", TEXT, "two"],
        ["Be brief.", "three"],
    ]
    assert err.count("mean acceptance length") == 3


def test_commands(made: list[FakeLLM], run: Run, typed: Typed) -> None:
    typed(["/help", "/rest"])
    code, out, err = run("chat")
    assert (code, out) == (0, "")
    assert err.count("/reset  forget") == 2 and "unknown command /rest" in err


def test_ctrl_c_stops_the_answer_and_keeps_it(
    made: list[FakeLLM], run: Run, typed: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    def press(self: FakeLLM, step: int) -> None:
        if step == 1 and self.aborted == 0:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(FakeLLM, "before_step", press)
    before = signal.getsignal(signal.SIGINT)
    typed(["one", "two"])
    code, out, err = run("chat")
    # The step that ran when the key was pressed is finished, the next one is not begun.
    assert (code, out) == (0, f"The sky is \n{TEXT}\n")
    assert "interrupted" in err and made[0].aborted == 1
    assert said(made[0])[1] == ["one", "The sky is ", "two"]
    assert signal.getsignal(signal.SIGINT) is before


def test_ctrl_c_at_the_prompt_does_not_quit(made: list[FakeLLM], run: Run, typed: Typed) -> None:
    typed([KeyboardInterrupt(), "one"])
    code, out, err = run("chat")
    assert code == 0 and TEXT in out and "Ctrl-D or /exit quits" in err


def test_a_refused_turn_is_forgotten(made: list[FakeLLM], run: Run, typed: Typed) -> None:
    typed(["x" * 2000, "one"])
    code, out, err = run("chat")
    assert (code, out) == (0, TEXT + "\n")
    assert "longer than the context (/reset starts over)" in err
    assert said(made[0])[1] == ["one"]


def test_input_that_is_not_utf8(made: list[FakeLLM], run: Run, typed: Typed) -> None:
    typed([UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")])
    assert run("chat") == (2, "", "outrider: the input is not UTF-8 text\n")
