import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.bench.helpers import MACHINE, PROMPTS, Silent, a_run, spec, tiny_model, tiny_options

import outrider
from outrider.bench import session as sessions
from outrider.bench.cells import Run
from outrider.bench.plan import Measurement
from outrider.bench.results import FILE, PREVIOUS, Results, make_room, read_results
from outrider.bench.runner import Engines
from outrider.bench.session import Session
from outrider.bench.texts import Texts
from outrider.bench.workloads import Prompt
from outrider.core.errors import ConfigError, ModelError

NGRAM = "ngram:prompt_lookup_min=1"
KEYS = {
    "schema", "created", "outrider", "versions", "hardware", "arguments", "seed", "pass_cost",
    "cells", "skipped", "peers", "best_fixed",
}  # fmt: skip
CELL_KEYS = {
    "system", "category", "drafter", "batch_size", "temperature", "max_tokens", "requests",
    "tokens", "samples", "tokens_per_second", "tokens_per_second_low", "tokens_per_second_high",
    "ratio", "ratio_low", "ratio_high", "mean_acceptance_length", "accepted_per_position",
    "drafts", "drafted", "accepted", "steps", "time_to_first_token", "inter_token_latency",
    "phases", "peak_memory_bytes", "drafting_share", "precision_reached",
}  # fmt: skip


def names(results: dict[str, Any]) -> set[tuple[Any, ...]]:
    keys = ("system", "category", "drafter", "batch_size", "temperature")
    return {(*(cell[key] for key in keys), len(cell["samples"])) for cell in results["cells"]}


def test_every_run_is_on_disk_at_once(tmp_path: Path) -> None:
    results = Results.new(tiny_options(), PROMPTS, MACHINE, tmp_path / "new")
    for repeat in range(2):
        results.add([a_run("none", "chat", repeat, 10.0)])
        results.add([a_run("none", "code", repeat, 10.0)])
        data = read_results(tmp_path / "new" / FILE)
        assert data["schema"] == 1 and data["outrider"] == outrider.__version__
        assert data["arguments"]["batch_sizes"] == [1, 3] and data["hardware"]["cpu"] == "abacus"
        assert set(data) >= KEYS
        assert [len(cell["samples"]) for cell in data["cells"]] == [repeat + 1] * 3
        assert all(set(cell) >= CELL_KEYS for cell in data["cells"])
    assert [path.name for path in (tmp_path / "new").iterdir()] == [FILE]


def test_a_failed_write_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = Results.new(tiny_options(), PROMPTS, MACHINE, tmp_path)
    results.add([a_run("none", "chat", 0, 10.0)])
    before = (tmp_path / FILE).read_bytes()

    def full(self: Path, text: str, **options: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(ConfigError, match=r"cannot write .*No space left"):
        results.add([a_run("none", "code", 0, 10.0)])
    assert (tmp_path / FILE).read_bytes() == before


def test_peers_stay_when_cells_are_summed_up_again(tmp_path: Path) -> None:
    results = Results.new(tiny_options(), PROMPTS, MACHINE, tmp_path)
    results.ask_peers(["transformers", "vllm"])
    cell = {"system": "transformers", "category": "chat", "versions": {"python": "2", "t": "5"}}
    results.add_peer([cell], [{"system": "vllm", "reason": "not installed"}])
    results.add([a_run("none", "chat", 0, 10.0)])
    again = Results.resume(tiny_options(), PROMPTS, MACHINE, tmp_path)
    assert cell in again.data["cells"] and again.peers_done == {"transformers"}
    assert again.data["versions"] == {"python": "3", "python (peer)": "2", "t": "5"}
    assert again.data["peers"] == ["transformers", "vllm"] and len(again.data["skipped"]) == 1
    again.add_peer([{"system": "vllm", "category": "chat"}], [])
    assert again.peers_done == {"transformers", "vllm"} and again.data["skipped"] == []


@pytest.mark.parametrize(
    ("options", "prompts", "machine", "part"),
    [
        ({"max_tokens": 7}, PROMPTS, MACHINE, "other arguments (max_tokens: 6 there, 7 now)"),
        ({}, PROMPTS[1:], MACHINE, "other prompts_sha256"),
        ({}, PROMPTS, {**MACHINE, "hardware": {"cpu": "slide rule"}}, "other hardware (cpu:"),
    ],
)
def test_resuming_demands_the_same(
    tmp_path: Path, options: Any, prompts: Any, machine: Any, part: str
) -> None:
    Results.new(tiny_options(), PROMPTS, MACHINE, tmp_path).save()
    with pytest.raises(ConfigError) as caught:
        Results.resume(tiny_options(**options), prompts, machine, tmp_path)
    assert part in str(caught.value)


@pytest.mark.parametrize(
    ("content", "part"),
    [
        ("{", "is not JSON"),
        ("[]", "has no cells"),
        ('{"cells": [], "schema": 9}', "schema 9"),
    ],
)
def test_files_that_are_no_results(tmp_path: Path, content: str, part: str) -> None:
    (tmp_path / FILE).write_text(content)
    with pytest.raises(ConfigError, match=part):
        read_results(tmp_path / FILE)


def test_damaged_runs(tmp_path: Path) -> None:
    results = Results.new(tiny_options(), PROMPTS, MACHINE, tmp_path)
    results.save()
    results.data["runs"] = [{"drafter": "none"}]
    (tmp_path / FILE).write_text(json.dumps(results.data))
    with pytest.raises(ConfigError, match="runs are damaged"):
        Results.resume(tiny_options(), PROMPTS, MACHINE, tmp_path)


def test_the_last_results_are_kept(tmp_path: Path) -> None:
    make_room(tmp_path)
    (tmp_path / FILE).write_text("old")
    make_room(tmp_path)
    assert (tmp_path / PREVIOUS).read_text() == "old" and not (tmp_path / FILE).exists()


def test_resuming_after_an_interruption_gives_the_same_cells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = tiny_options(tiny_model(tmp_path / "tiny"), max_tokens=3)
    whole = Session(options, tmp_path / "whole", Silent()).run(PROMPTS)
    assert len(whole.runs) == 2 * 2 * 2 * 2
    measure, measured = Engines.measure, []

    def interrupted(self: Engines, *arguments: Any, **more: Any) -> list[Run]:
        if len(measured) == 7:
            raise KeyboardInterrupt
        measured.append(measure(self, *arguments, **more))
        return measured[-1]

    monkeypatch.setattr(Engines, "measure", interrupted)
    broken = Session(options, tmp_path / "cut", Silent())
    with pytest.raises(KeyboardInterrupt):
        broken.run(PROMPTS)
    assert broken.results is not None
    kept = read_results(tmp_path / "cut" / FILE)
    warm_ups = 4  # two drafters, two batch sizes
    assert len(kept["runs"]) == 2 * (7 - warm_ups) and kept["pass_cost"]
    monkeypatch.setattr(Engines, "measure", measure)
    display = Silent()
    resumed = Session(options, tmp_path / "cut", display, resume=True).run(PROMPTS)
    assert names(resumed.data) == names(whole.data) and resumed.data["runs"][:6] == kept["runs"]
    assert resumed.data["pass_cost"] == kept["pass_cost"]
    assert [run.tokens for run in resumed.runs] == [run.tokens for run in whole.runs]
    assert display.totals[-1] == display.advanced > 0 and not display.estimated
    assert display.totals == [display.advanced] * 2  # both repeats were known from the start
    # Nothing is left to do the next time.
    again = Session(options, tmp_path / "cut", Silent(), resume=True).run(PROMPTS)
    assert again.data == resumed.data


class MadeUp:
    """Stands in for `Engines.measure`: as fast as the dice say, and all at once."""

    def __init__(self, noise: dict[str, float]) -> None:
        self.noise = noise  # by category, of the drafter
        self.dice = random.Random(1)
        self.breaks_at: int | None = None  # a repeat

    def __call__(
        self,
        together: list[Measurement],
        prompts: list[Prompt],
        max_tokens: int,
        seed: int,
        finished_one: Callable[[], None] = lambda: None,
        texts: Texts | None = None,
    ) -> list[Run]:
        if together[0].repeat == self.breaks_at:
            raise KeyboardInterrupt
        runs = []
        for asked, name in [(each, name) for each in together for name in each.categories]:
            noise = 0.001 if asked.drafter == "none" else self.noise.get(name, 0.001)
            speed = 20 * self.dice.lognormvariate(0, noise)
            runs.append(a_run(asked.drafter, name, asked.repeat, speed))
            for _ in [prompt for prompt in prompts if prompt.category == name]:
                finished_one()
        return runs


def test_a_session_measures_until_it_is_precise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_up = MadeUp({"chat": 0.05})
    monkeypatch.setattr(Engines, "measure", lambda self, *given: made_up(*given))
    model = tiny_model(tmp_path / "tiny")
    given: dict[str, Any] = {"repeat": 2, "batch_sizes": (1,), "precision": 0.03}
    options, out, display = tiny_options(model, **given), tmp_path / "out", Silent()
    made_up.breaks_at = 8
    with pytest.raises(KeyboardInterrupt):
        Session(options, out, display).run(PROMPTS)
    kept = read_results(out / FILE)
    assert max(run["repeat"] for run in kept["runs"]) == 7 and display.estimated
    least = 6 * 2 * 3  # repeats, drafters, prompts
    assert display.totals[:6] == [least] * 6 and display.totals[6] > least
    assert display.notes[0].startswith("repeat 7: ") and "not precise enough" in display.notes[0]

    made_up.breaks_at = None
    data = Session(options, out, Silent(), resume=True).run(PROMPTS).data
    assert data["runs"][: len(kept["runs"])] == kept["runs"]
    cells = {(cell["category"], cell["drafter"]): cell for cell in data["cells"]}
    assert cells["chat", "none"]["precision_reached"] is None
    chat, code = cells["chat", NGRAM], cells["code", NGRAM]
    assert chat["precision_reached"] and code["precision_reached"]
    assert 8 <= len(chat["samples"]) < 20 and 6 <= len(code["samples"]) < len(chat["samples"])
    assert (chat["ratio_high"] - chat["ratio_low"]) / 2 <= 0.03 * chat["ratio"]

    # A benchmark that is over can be made more precise; what was measured stays.
    sharper = tiny_options(model, **{**given, "precision": 0.02, "max_repeat": 40})
    more = Session(sharper, out, Silent(), resume=True).run(PROMPTS).data
    assert more["runs"][: len(data["runs"])] == data["runs"]
    assert len(more["runs"]) > len(data["runs"]) and more["arguments"]["precision"] == 0.02


def test_auto_against_the_best_fixed_is_written_down(tmp_path: Path) -> None:
    specs = tuple(spec(name) for name in ("none", "auto", "ngram:k=2", "ngram:k=4"))
    results = Results.new(tiny_options(drafters=specs), PROMPTS, MACHINE, tmp_path)
    for name, speed in (("none", 10.0), ("auto", 18.0), ("ngram:k=2", 15.0), ("ngram:k=4", 20.0)):
        results.add([a_run(name, category, 0, speed) for category in ("chat", "code")])
    entries = read_results(tmp_path / FILE)["best_fixed"]
    assert [(e["category"], e["best"]) for e in entries] == [
        (category, "ngram:k=4") for category in ("chat", "code", "overall")
    ]
    assert entries[0]["ratio"] == pytest.approx(0.9) and entries[0]["ratio_low"] is None


def test_peers_are_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def run_peers(peers: list[str], prompts: Any, options: Any) -> Any:
        asked.append((peers, options.max_tokens, options.repeats, options.timeout))
        if peers == ["vllm"]:
            return [], [{"system": "vllm", "reason": "not installed"}]
        if peers == ["openvino"]:
            raise ModelError("the chat template is missing")
        return [{"system": peers[0], "category": "overall"}], []

    monkeypatch.setattr(sessions, "run_peers", run_peers)
    options = tiny_options(tiny_model(tmp_path / "tiny"), max_tokens=2, repeat=1, batch_sizes=(1,))
    display = Silent()
    peers = ["transformers", "vllm", "openvino"]
    Session(options, tmp_path, display, peers=peers, peer_timeout=5).run(PROMPTS)
    assert asked == [([name], 2, 1, 5) for name in peers]
    assert display.notes == [
        "vllm skipped: not installed",
        "openvino skipped: the chat template is missing",
    ]
    Session(options, tmp_path, display, resume=True, peers=peers).run(PROMPTS)
    assert [names for names, *_ in asked[3:]] == [["vllm"], ["openvino"]]  # not there before
    data = read_results(tmp_path / FILE)
    assert data["dtype"] == "float32" and data["peers"] == peers and len(data["skipped"]) == 2
