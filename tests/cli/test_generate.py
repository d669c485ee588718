"""`outrider generate` over a fake model: what is printed where, and what is refused."""

import io
import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli import fake
from tests.cli.conftest import Run
from tests.cli.fake import SCRIPT, FakeLLM

from outrider.cli.render import Screen
from outrider.cli.stream import follow
from outrider.core.documents import Document

TEXT = "The sky is €!"
GREEN, RESET = "\x1b[32m", "\x1b[0m"


def test_plain_text_when_piped(made: list[FakeLLM], run: Run) -> None:
    code, out, err = run("generate", "Why?")
    assert (code, out) == (0, TEXT + "\n")
    assert re.fullmatch(
        r"6 tokens in \d+\.\d s · [\d.]+ tokens/s · "
        r"mean acceptance length 2\.50 \(3 of 8 drafted tokens kept\)\n",
        err,
    )
    [llm] = made
    assert (llm.model, llm.speculative_config) == ("smollm2-135m", "auto")
    assert llm.options == {
        "device": "auto",
        "dtype": "auto",
        "quantization": None,
        "reproducible": False,
    }
    assert llm.prompts == [[{"role": "user", "content": "Why?"}]]
    assert (llm.params[0].temperature, llm.params[0].max_tokens) == (0.0, 256)


def test_json_is_one_object(made: list[FakeLLM], run: Run) -> None:
    code, out, err = run("generate", "Why?", "--json", "--model", "some/model")
    assert (code, err, out.count("\n")) == (0, "", 1)
    found = json.loads(out)
    assert found.pop("seconds") > 0 and found.pop("tokens_per_second") > 0
    assert found == {
        "model": "some/model",
        "text": TEXT,
        "token_ids": list(range(6)),
        "finish_reason": "stop",
        "seed": 7,
        "speculation": {
            "drafter": "auto",
            "steps": 2,
            "drafted": 8,
            "accepted": 3,
            "mean_acceptance_length": 2.5,
        },
        "grounding": None,
    }


def test_drafted_tokens_are_coloured(made: list[FakeLLM], run: Run) -> None:
    _, out, err = run("generate", "Why?", "--color")
    # The € was completed by a drafted token; the space before it by the model's own.
    drafted = [f"{GREEN}{text}{RESET}" for text in (" sky", " is", "€")]
    assert out == f"The{drafted[0]}{drafted[1]} {drafted[2]}!\n"
    assert "auto" in err.splitlines()[0]


def test_explanations_follow_the_answer_where_they_are_asked_for(
    made: list[FakeLLM], run: Run
) -> None:
    code, out, err = run("generate", "Why?", "--explain")
    assert code == 0 and "rows" not in out
    assert " ".join(err.splitlines()[-1].split()) == "over 2 rows 75.00 ms pays from 0.50 tokens"
    assert "pays from" not in run("generate", "Why?")[2]
    _, out, _ = run("generate", "Why?", "--explain", "--json")
    assert json.loads(out)["explanation"]["pass_milliseconds"] == {"1": 50.0, "2": 75.0}


def test_options_reach_the_engine(made: list[FakeLLM], run: Run) -> None:
    options = "--drafter none --num-speculative-tokens 3 --temperature 0.5 --top-p 0.9 --top-k 4"
    options += " --min-p 0.1 --seed 5 --max-tokens 9 --stop a --stop b --system Be --device cpu"
    run("generate", "Why?", *options.split(), "--dtype", "float32", "--reproducible")
    [llm] = made
    [params] = llm.params
    assert llm.speculative_config == {"method": "none", "num_speculative_tokens": 3}
    assert llm.options == {
        "device": "cpu",
        "dtype": "float32",
        "quantization": None,
        "reproducible": True,
    }
    assert llm.prompts[0][0] == {"role": "system", "content": "Be"}
    given = (params.temperature, params.top_p, params.top_k, params.min_p, params.seed)
    assert given == (0.5, 0.9, 4, 0.1, 5)
    assert (params.max_tokens, params.stop_strings) == (9, ["a", "b"])


def test_speculative_config_is_passed_on(made: list[FakeLLM], run: Run) -> None:
    config = {"method": "draft_model", "model": "m", "num_speculative_tokens": 3}
    assert run("generate", "Why?", "--speculative-config", json.dumps(config))[0] == 0
    assert made[0].speculative_config == config


def test_a_drafter_with_a_slash_is_files(made: list[FakeLLM], run: Run) -> None:
    run("generate", "Why?", "--drafter", "./drafter")
    run("generate", "Why?", "--drafter", "owner/name", "--num-speculative-tokens", "3")
    assert made[0].speculative_config == {"model": "./drafter"}
    assert made[1].speculative_config == {"model": "owner/name", "num_speculative_tokens": 3}


def test_prompt_files(made: list[FakeLLM], run: Run, tmp_path: Path) -> None:
    file = tmp_path / "prompt.txt"
    file.write_text("Grüße", encoding="utf-8-sig")
    run("generate", "--raw", "--file", str(file))
    run("generate", "Read:", "--raw", "--file", str(file))
    assert [llm.prompts for llm in made] == [["Grüße"], ["Read:\n\nGrüße"]]


def test_prompt_from_stdin(made: list[FakeLLM], run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("Grüße".encode())))
    run("generate", "--raw", "--file", "-")
    assert made[0].prompts == ["Grüße"]


def test_bad_input_is_one_line(made: list[FakeLLM], run: Run, tmp_path: Path) -> None:
    latin = tmp_path / "latin.txt"
    latin.write_bytes("Grüße".encode("latin-1"))
    blank, full = tmp_path / "blank.txt", tmp_path / "full.txt"
    blank.write_text(" \n")
    full.write_text("x")
    cases = {
        ("--file", str(latin)): "latin.txt is not UTF-8 text (byte 0xfc at offset 2)",
        ("--file", str(tmp_path / "none")): "No such file",
        ("--file", str(tmp_path)): "Is a directory",
        ("x", "--document", str(latin)): "latin.txt is not UTF-8 text (byte 0xfc at offset 2)",
        ("x", "--document", str(tmp_path / "none")): "No such file",
        ("x", "--document", str(blank)): "blank.txt holds no text",
        ("x", "--document", str(full), "--document", str(full)): "two of the name",
        (): "no prompt",
        ("",): "empty",
        ("\udcff",): "not valid UTF-8",
        ("x", "--temperature", "-1"): "temperature=-1.0",
        ("x", "--max-tokens", "0"): "max_tokens=0",
        ("x", "--top-p", "1.5"): "top_p=1.5",
        ("x", "--drafter", "ngrm"): "did you mean 'ngram'",
        ("x", "--model", "./missing"): "./missing",
        ("x", "--speculative-config", "{method"): "not JSON",
        ("x", "--speculative-config", "[1]"): "must be a JSON object",
        ("x", "--speculative-config", "{}", "--drafter", "ngram"): "stands alone",
        ("x", "--raw", "--system", "Be"): "leave out --raw",
    }
    for argv, part in cases.items():
        code, out, err = run("generate", *argv)
        assert (code, out) == (2, ""), argv
        assert err.startswith("outrider: ") and err.count("\n") == 1 and part in err, err


# ---- documents ----

RULES = "Rules\n\nThe hall is open from nine to five,\nand closed on Sundays and holidays.\n"
ANSWER = "Well, the hall is open from nine to five, and closed on Sundays and holidays."


@pytest.fixture
def rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    Path("rules.txt").write_text(RULES)
    monkeypatch.setenv("COLUMNS", "100")
    return "rules.txt"


@pytest.fixture
def quoting(monkeypatch: pytest.MonkeyPatch) -> None:
    script = [[(word.encode(), False)] for word in re.findall(r" ?\S+", ANSWER)]
    monkeypatch.setattr(fake, "SCRIPT", script)


def test_documents_stand_before_the_question(made: list[FakeLLM], run: Run, rules: str) -> None:
    assert run("generate", "When?", "--document", rules)[0] == 0
    [llm] = made
    asked = f"rules.txt:\n{RULES.strip()}\n\nWhen?"
    assert llm.prompts == [[{"role": "user", "content": asked}]]
    assert llm.params[0].document_list == (Document(RULES, "rules.txt"),)


def test_documents_that_do_not_fit_are_not_read(made: list[FakeLLM], run: Run, rules: str) -> None:
    Path("long.txt").write_text("word " * 600)
    code, _, err = run("generate", "When?", "--document", rules, "--document", "long.txt")
    [llm] = made
    assert llm.prompts == [[{"role": "user", "content": "When?"}]]
    assert [document.name for document in llm.params[0].document_list] == [rules, "long.txt"]
    assert code == 0 and err.startswith("the documents do not fit into the 400 tokens")


def test_room_for_the_answer_is_kept(
    made: list[FakeLLM], run: Run, rules: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeLLM, "chat_prompt", lambda self, messages: [0] * 145)
    assert "do not fit" in run("generate", "When?", "--document", rules)[2]
    assert "do not fit" not in run("generate", "When?", "--document", rules, "--max-tokens=255")[2]


@pytest.mark.usefixtures("quoting")
def test_quotations_are_shown(made: list[FakeLLM], run: Run, rules: str) -> None:
    _, out, err = run("generate", "When?", "--document", rules)
    assert out == ANSWER + "\n"
    lines = err.splitlines()
    # The file breaks the line where the answer does not: two spans, one quotation.
    assert lines[1:3] == [
        "86% of the answer stands word for word in the documents:",
        '[1] "hall is open from nine to five, and closed on Sundays and holidays."  rules.txt:3-4',
    ]
    assert "tokens/s" in lines[3]


@pytest.mark.usefixtures("quoting")
def test_quotations_in_json(made: list[FakeLLM], run: Run, rules: str) -> None:
    found = json.loads(run("generate", "When?", "--document", rules, "--json")[1])
    spans = found["grounding"]
    assert [span["document"] for span in spans] == [rules, rules]
    for span in spans:
        quoted = RULES[span["document_start"] : span["document_end"]]
        assert quoted == ANSWER[span["start"] : span["end"]]


def test_an_answer_without_quotations(made: list[FakeLLM], run: Run, rules: str) -> None:
    _, out, err = run("generate", "When?", "--document", rules)
    assert out == TEXT + "\n" and "no words of the answer are quoted" in err


def test_ctrl_c_ends_the_line_and_the_request(
    made: list[FakeLLM], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(self: Screen, text: str, drafted: bool) -> None:
        write(self, text, drafted)
        raise KeyboardInterrupt

    write = Screen.write
    monkeypatch.setattr(Screen, "write", interrupt)
    assert run("generate", "Why?") == (130, "The\n", "")
    assert made[0].aborted == 1


def test_text_that_lags_behind_keeps_its_origin() -> None:
    """A stop string's possible start waits in the engine; the colours must not shift."""

    class Lagging(FakeLLM):
        def stream(self, prompt, params):  # type: ignore[no-untyped-def]
            held = ""
            for delta in super().stream(prompt, params):
                text, held = held + delta.text, ""
                if delta.result is None:
                    text, held = text[:-2], text[-2:]
                yield delta.__class__(**{**delta.__dict__, "text": text})

    from outrider import SamplingParams

    pieces: list[tuple[str, bool]] = []
    follow(Lagging("m"), "x", SamplingParams(), lambda *piece: pieces.append(piece))  # type: ignore[arg-type]
    by_char = [flag for text, flag in pieces for _ in text]
    direct = [
        flag for step in SCRIPT for token, flag in step for _ in token.decode("ascii", "ignore")
    ]
    direct.insert(-1, True)  # the €
    assert "".join(text for text, _ in pieces) == TEXT and by_char == direct


TERMINAL = """
import sys, outrider
from tests.cli.fake import FakeLLM
script = [[(b"a", False)], [(b"\\x1b[2J", True), (b"b\\r", True), (b"c", False)]]
outrider.__dict__["LLM"] = lambda model, config=None, **_: FakeLLM(model, config, script=script)
from outrider.cli import main
sys.exit(main.run(["generate", "x", "--model", "any"]))
"""


def on_a_terminal(env: dict[str, str]) -> str:
    """What a pseudo-terminal receives."""
    parent, child = pty.openpty()
    path = os.pathsep.join(["src", ".", os.environ.get("PYTHONPATH", "")])
    environ = {**os.environ, "TERM": "xterm", "PYTHONPATH": path, **env}
    subprocess.run([sys.executable, "-c", TERMINAL], stdout=child, stderr=child, env=environ)
    os.close(child)
    data = b""
    try:
        while chunk := os.read(parent, 4096):
            data += chunk
    except OSError:  # Linux says so when the other side is closed
        pass
    os.close(parent)
    return data.decode()


def test_terminal() -> None:
    shown = on_a_terminal({})
    assert f"a{GREEN}[2J{RESET}{GREEN}b{RESET}c\r\n" in shown, "control characters must be dropped"
    assert "auto" in shown and "mean acceptance length 3.00" in shown


def test_no_color_is_respected() -> None:
    shown = on_a_terminal({"NO_COLOR": "1"})
    assert GREEN not in shown and "a[2Jbc\r\n" in shown
