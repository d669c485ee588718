"""`outrider bench` through the command line, on a tiny model."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.bench.helpers import tiny_model

from outrider.bench import report
from outrider.bench.command import read_options
from outrider.bench.options import parse_drafters
from outrider.bench.runner import Engines
from outrider.cli import main
from outrider.core.errors import ConfigError
from outrider.drafters import registry


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny_model(tmp_path_factory.mktemp("bench") / "tiny")


@pytest.fixture
def prompts(tmp_path: Path) -> str:
    file = tmp_path / "prompts.jsonl"
    good = {"id": 1, "category": "chat", "turns": ["one two three, one two", "go on"]}
    lines = [json.dumps(good), "broken", json.dumps({**good, "id": 2, "category": "code"})]
    file.write_text("\n".join(lines))
    return str(file)


def test_a_benchmark(
    model: str,
    prompts: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written: list[Any] = []

    def write_report(results: dict[str, Any], folder: Path) -> Path:
        written.append((results, folder))
        return folder / "report.html"

    monkeypatch.setattr(report, "write_report", write_report)
    out = tmp_path / "out"
    argv = ["bench", "--model", model, "--prompts", prompts, "--max-tokens", "4", "--out", str(out)]
    argv += ["--quick", "--batch-sizes", "1,2", "--drafters", "ngram,ngram:k=2"]
    assert main.run(argv) == 0
    printed = capsys.readouterr()
    data = json.loads((out / "results.json").read_text())
    assert written == [(data, out)]
    assert len(data["cells"]) == (2 + 1) * 3 * 2 and len(data["runs"]) == 2 * 3 * 2
    assert data["arguments"]["max_tokens"] == 4 and data["arguments"]["repeat"] == 1
    assert f"left out {prompts}:2: not JSON" in printed.err.replace("\n", "")
    assert "overall" in printed.out and "ngram:k=2" in printed.out
    assert "results.json" in printed.err and "report.html" in printed.err
    # The same arguments again, compared with themselves.
    assert main.run([*argv, "--resume"]) == 0
    path = str(out / "results.json")
    assert main.run(["bench", "--compare", path, path]) == 0
    assert "change" in capsys.readouterr().out
    assert main.run([*argv, "--resume", "--seed", "5"]) == 2
    assert "seed: 0 there, 5 now" in capsys.readouterr().err


def test_ctrl_c_keeps_what_was_measured(
    model: str,
    prompts: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    measure, calls = Engines.measure, []

    def interrupted(self: Engines, *arguments: Any, **more: Any) -> Any:
        calls.append(1)
        if len(calls) == 4:  # after two warm-ups and a run of both drafters
            raise KeyboardInterrupt
        return measure(self, *arguments, **more)

    monkeypatch.setattr(Engines, "measure", interrupted)
    argv = ["bench", "--model", model, "--prompts", prompts, "--max-tokens", "3"]
    argv += ["--out", str(tmp_path), "--batch-sizes", "1", "--drafters", "ngram"]
    assert main.run(argv) == 130
    err = capsys.readouterr().err
    assert "interrupted; 2 runs kept in" in err and "--resume" in err
    assert len(json.loads((tmp_path / "results.json").read_text())["runs"]) == 2


def test_without_matplotlib_the_figures_are_still_there(
    model: str,
    prompts: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(results: dict[str, Any], folder: Path) -> Path:
        raise ConfigError("the report needs matplotlib: pip install 'outrider[bench]'")

    monkeypatch.setattr(report, "write_report", refuse)
    argv = ["bench", "--model", model, "--prompts", prompts, "--max-tokens", "2", "--quick"]
    argv += ["--out", str(tmp_path), "--batch-sizes", "1", "--drafters", "none"]
    assert main.run(argv) == 0
    assert "no report: the report needs matplotlib" in capsys.readouterr().err
    assert (tmp_path / "results.json").exists()


@pytest.mark.parametrize(
    ("argv", "part"),
    [
        (["--drafters", "ngrm"], "did you mean 'ngram'"),
        (["--drafters", "ngram:k"], "must look like k=4"),
        (["--drafters", "ngram:kk=3"], "unknown option of drafter 'ngram': 'kk'"),
        (["--drafters", '{"method": '], "broken JSON"),
        (["--drafters", '{"method": "ngram"} none'], "comma"),
        (["--peers", "transformer"], "did you mean 'transformers'"),
        (["--batch-sizes", "1,0"], "--batch-sizes holds 0"),
        (["--batch-sizes", "1;8"], "--batch-sizes '1;8' must be whole numbers"),
        (["--temperatures", "nan"], "--temperatures holds nan"),
        (["--max-tokens", "0"], "--max-tokens 0"),
        (["--repeat", "0"], "--repeat 0"),
        (["--precision", "5"], "--precision 5 must lie between 0 and 1"),
        (["--max-repeat", "9"], "--max-repeat needs --precision"),
        (["--workload", "agent"], "did you mean 'agents'"),
        (["--seed", "-1"], "--seed -1"),
        (["--prompts", "/dev/null"], "it is empty"),
        (["--resume", "--out", "/nowhere"], "nothing to resume"),
        (["--compare", "/nowhere/a", "/nowhere/b"], "cannot read /nowhere/a"),
    ],
)
def test_bad_input_is_one_line(
    argv: list[str], part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(["bench", "--model", "./nowhere", *argv]) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.count("\n") == 1 and part in printed.err


def test_drafters() -> None:
    text = 'ngram, ngram:k=4:prompt_lookup_max=3 ,{"model": "/m/small", "method": "draft_model"},'
    specs = parse_drafters([text + "none", "ngram"])
    configs = {spec.label: spec.config for spec in specs}
    assert list(configs) == [
        "none",
        "ngram",
        "ngram:k=4:prompt_lookup_max=3",
        "draft_model:model=small",
    ]
    assert configs["ngram:k=4:prompt_lookup_max=3"] == {
        "method": "ngram",
        "num_speculative_tokens": 4,
        "prompt_lookup_max": 3,
    }
    assert configs["draft_model:model=small"]["model"] == "/m/small"
    twins = parse_drafters(["draft_model:model=/a/small,draft_model:model=/b/small"])
    assert [spec.label for spec in twins[1:]] == [
        "draft_model:model=small",
        "draft_model:model=/b/small",
    ]
    told = "Once upon a time " * 9
    texts = [{"method": "documents", "documents": [told + end]} for end in "ab"]
    short, whole = (spec.label for spec in parse_drafters([json.dumps(t) for t in texts])[1:])
    assert short == f"documents:documents=['{told[:38]}…"
    assert whole == f"documents:documents=['{told}b']"


def test_rounds_from_the_command_line(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["bench", "--model", model, "--workload", "agents", "--max-tokens", "2", "--quick"]
    argv += ["--out", str(tmp_path), "--batch-sizes", "1", "--drafters", "ngram"]
    assert main.run(argv) == 0
    data = json.loads((tmp_path / "results.json").read_text())
    assert data["categories"] == ["round-1", "round-2", "round-3"] and len(data["runs"]) == 6
    assert {cell["category"] for cell in data["cells"]} == {*data["categories"], "overall"}
    assert data["arguments"]["workload"] == "agents"


def test_the_drafter_that_is_measured_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.BUILT_IN, "auto", registry.BUILT_IN["ngram"])
    for names in (["auto", "ngram"], ["ngram"]):
        monkeypatch.setattr(registry, "drafter_names", lambda names=names: names)
        assert [spec.label for spec in read_options({}, quick=True).drafters] == ["none", names[0]]


def test_what_was_given_goes_before_quick() -> None:
    quick = read_options({"limit": None, "repeat": 4, "batch_sizes": None}, quick=True)
    assert (quick.limit, quick.repeat) == (1, 4)
    plain = read_options({"temperatures": "0,1,0"}, quick=False)
    assert plain.temperatures == (0.0, 1.0) and plain.limit is None and plain.repeat == 3
