"""The command line over the real engine and a tiny random checkpoint."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.conftest import Run
from tests.tiny import make_tiny, make_tokenizer

from outrider import LLM, SamplingParams
from outrider.cli.stream import follow

PROMPT = "one two three, one two three; the rider rides ahead"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("tiny")
    make_tiny("llama", path)
    make_tokenizer(path)
    return str(path)


def generate(run: Run, folder: str, *argv: str) -> dict[str, object]:
    code, out, err = run(
        "generate", PROMPT, "--model", folder, "--json", "--max-tokens", "24", *argv
    )
    assert code == 0, err
    return json.loads(out)


def test_the_drafter_does_not_change_the_text(run: Run, folder: str) -> None:
    argv = ["--dtype", "float32", "--temperature", "0.8", "--seed", "3"]
    plain = generate(run, folder, *argv, "--drafter", "none")
    drafted = generate(run, folder, *argv, "--drafter", "ngram")
    config = {"method": "draft_model", "model": folder, "num_speculative_tokens": 3}
    modelled = generate(run, folder, *argv, "--speculative-config", json.dumps(config))
    assert plain["token_ids"] == drafted["token_ids"] == modelled["token_ids"]
    assert plain["text"] == drafted["text"] == modelled["text"]
    assert plain["speculation"] == {
        "drafter": "none",
        "steps": len(plain["token_ids"]) - 1,  # type: ignore[arg-type]
        "drafted": 0,
        "accepted": 0,
        "mean_acceptance_length": 1.0,
    }


def test_plain_output_is_the_text_of_the_json(run: Run, folder: str) -> None:
    found = generate(run, folder, "--raw")
    _, out, _ = run("generate", PROMPT, "--model", folder, "--max-tokens", "24", "--raw")
    assert out == f"{found['text']}\n"


@pytest.mark.parametrize("raw", [True, False])
def test_origins_cover_the_streamed_text(folder: str, raw: bool) -> None:
    config = {"method": "draft_model", "model": folder, "num_speculative_tokens": 4}
    llm = LLM(folder, config, dtype="float32")
    pieces: list[tuple[str, bool]] = []
    prompt = PROMPT if raw else llm.chat_prompt([{"role": "user", "content": PROMPT}])
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    answer = follow(llm, prompt, params, lambda *piece: pieces.append(piece))
    assert answer.result is not None
    output = answer.result.outputs[0]
    assert "".join(text for text, _ in pieces) == answer.text == output.text
    assert answer.token_ids == output.token_ids
    assert any(drafted for _, drafted in pieces) and not all(drafted for _, drafted in pieces)


def test_bad_input_is_one_line(run: Run, folder: str, tmp_path: Path) -> None:
    cases = {
        ("--drafter", "ngrm"): "ngram",
        ("--model", str(tmp_path / "missing")): "missing",
        ("--speculative-config", '{"method": "ngram", "lenght": 3}'): "lenght",
        ("--num-speculative-tokens", "-2"): "num_speculative_tokens",
        ("--device", "abacus"): "abacus",
        ("--dtype", "float3"): "float3",
        ("--raw", "--seed", "-1"): "seed",
    }
    for argv, part in cases.items():
        code, out, err = run("generate", "x", "--model", folder, *argv)
        assert (code, out) == (2, ""), argv
        assert err.startswith("outrider: ") and err.count("\n") == 1 and part in err, err


def test_a_prompt_longer_than_the_context(run: Run, folder: str) -> None:
    code, out, err = run("generate", "word " * 2000, "--model", folder)
    assert (code, out) == (2, "") and "512" in err and err.count("\n") == 1


def test_chat_survives_an_interrupted_answer(folder: str) -> None:
    """A real Ctrl-C while a real answer is written; the next turn still works."""
    command = [sys.executable, "-m", "outrider.cli.main", "chat", "--model", folder]
    process = subprocess.Popen(
        [*command, "--max-tokens", "150", "--drafter", "none"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": "src", "OMP_NUM_THREADS": "1"},
    )
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(b"one two three\n")
    process.stdin.flush()
    process.stdout.read(1)  # the answer has begun
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(b"again\n/exit\n", timeout=120)
    lines = err.decode().splitlines()
    assert process.returncode == 0, lines
    assert "interrupted" in lines[0] and "tokens/s" in lines[1] and "interrupted" not in lines[1]
