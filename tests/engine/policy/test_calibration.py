"""What is measured at start, and what is kept of it."""

from array import array
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.engine.helpers import Models, make_llm
from tests.tiny import make_tiny

from outrider.core.params import SamplingParams
from outrider.core.request import Request
from outrider.engine.policy import calibration
from outrider.engine.policy.cost import Crowd, Measured
from outrider.model.loading import load_model
from outrider.model.runner import SCRAP, Runner


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path))
    return tmp_path / "calibration"


class Stopwatch:
    """Passes take what `times` says, in order; and how many rounds each start has looked at."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rounds: list[int] = []
        self.times = 1.0  # of all passes, in milliseconds for each row
        self.odd: dict[int, float] = {}  # of single ones, as a factor
        monkeypatch.setattr(calibration, "measure", self.measure)

    def measure(self, runner: Any, passes: Any, slots: Any, rounds: int) -> list[float]:
        self.rounds.append(rounds)
        return [
            0.001 * self.times * sum(rows) * self.odd.get(number, 1.0)
            for number, (rows, _) in enumerate(passes.values())
        ]


@pytest.fixture
def stopwatch(monkeypatch: pytest.MonkeyPatch) -> Stopwatch:
    return Stopwatch(monkeypatch)


def test_calibration_is_kept_and_looked_at_until_nothing_is_faster(
    models: Models, cache: Path, stopwatch: Stopwatch
) -> None:
    def start() -> Measured:
        return make_llm(models.target, "ngram").engine.policy.cost.measured

    first = start()
    make_llm(models.target, {"method": "ngram", "num_speculative_tokens": 3})  # needs none
    assert stopwatch.rounds == [calibration.ROUNDS]
    assert len(first.rows) >= 3
    few = [calibration.MORE_ROUNDS]
    stopwatch.times = 0.99  # hardly faster
    starts = [start() for _ in range(5)]
    assert stopwatch.rounds == [calibration.ROUNDS, *few * calibration.SETTLED]
    assert starts[-1] == starts[0] != first  # though little, it is known better
    (file,) = cache.glob("*.json")
    file.write_text("broken")
    start()
    assert stopwatch.rounds[4:] == [calibration.ROUNDS]


def test_the_fastest_pass_of_all_starts_counts(
    models: Models, cache: Path, stopwatch: Stopwatch
) -> None:
    """What disturbs a start disturbs some passes and spares others, and looking goes on."""

    def start(times: float, odd: dict[int, float]) -> Measured:
        stopwatch.times, stopwatch.odd = times, odd
        return make_llm(models.target, "ngram").engine.policy.cost.measured

    start(1.0, {2: 3.0})
    start(1.0, {1: 2.0, 2: 3.0})
    second = start(1.4, {2: 0.5})
    milliseconds = [1000 * seconds for seconds in second.seconds[:4]]
    assert milliseconds == pytest.approx([1.0, 2.0, 3 * 1.4 * 0.5, 4.0])
    for _ in range(calibration.SETTLED + 2):
        start(1.5, {})
    more = 1 + 1 + calibration.SETTLED  # after the first; the one that was faster starts anew
    assert stopwatch.rounds == [calibration.ROUNDS] + [calibration.MORE_ROUNDS] * more


def test_of_all_rounds_the_fastest_pass_counts(
    models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    took = iter([9.0, 8.0, 1.0, 3.0, 2.0, 2.0])
    monkeypatch.setattr(calibration, "_timed", lambda runner, segments: next(took))
    runner: Any = None
    passes: Any = {1: ([1], 4), 2: ([2], 4)}
    slots = array("q", range(1, 20))
    assert calibration.measure(runner, passes, slots, 3) == [1.0, 2.0]
    took = iter([9.0, 8.0, 1.0, 3.0, 2.0, 2.0])
    monkeypatch.setattr(calibration, "PATIENCE", 0.0)
    assert calibration.measure(runner, passes, slots, 3) == [9.0, 8.0]


def test_what_takes_long_is_measured_at_one_start(
    models: Models, cache: Path, stopwatch: Stopwatch
) -> None:
    """A large model would have every start wait; and in a long pass little is disturbed."""
    stopwatch.times = 1000.0
    found = [make_llm(models.target, "ngram").engine.policy.cost.measured for _ in range(3)]
    assert stopwatch.rounds == [calibration.ROUNDS]
    assert found[0] == found[1] == found[2]


def test_another_precision_is_another_calibration(models: Models, cache: Path) -> None:
    make_llm(models.target, "ngram")
    make_llm(models.target, "ngram", dtype="bfloat16")
    assert len(list(cache.glob("*.json"))) == 2


def test_calibrations_of_other_versions_and_other_layers_are_not_believed(
    models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = make_llm(models.target, None).engine.runner
    files = {calibration.file_of(runner, {})}
    monkeypatch.setattr(calibration, "VERSION", "9.9")
    files.add(calibration.file_of(runner, {}))
    head = runner.model.get_output_embeddings()
    head.__class__ = type("OtherLinear", (type(head),), {})
    files.add(calibration.file_of(runner, {}))
    assert len(files) == 3


def test_a_cache_that_cannot_be_written_is_no_obstacle(
    models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    file.write_text("")
    monkeypatch.setenv("OUTRIDER_CACHE", str(file / "below"))
    make_llm(models.target, "ngram")


def test_a_small_pool_is_calibrated_with_what_there_is(models: Models, cache: Path) -> None:
    llm = make_llm(models.target, "ngram", kv_cache_tokens=24)
    assert llm.engine.policy.cost.measured.rows == [1, 2, 3, 4, 8, 16]
    llm.engine.kv.check()


def test_a_pool_that_is_in_use_is_calibrated_like_one_that_is_not(
    models: Models, cache: Path
) -> None:
    """A request may ask for a drafter that wants to know what passes take, when none is free."""
    llm = make_llm(models.target, None, kv_cache_tokens=24)
    engine = llm.engine
    hoarder = Request("hoarder", [5], SamplingParams(), seed=0)
    engine.kv.open(hoarder)
    assert engine.kv.reserve(hoarder, engine.kv.total)
    keys = [layer.module.outrider_kv.keys for layer in engine.runner.layers]
    for layer in keys:
        layer.fill_(7.0)
    assert engine.policy.cost.measured.rows == [1, 2, 3, 4, 8, 16]
    assert all((layer[SCRAP + 1 :] == 7.0).all() for layer in keys)  # what others wrote stays
    engine.kv.close(hoarder)
    engine.kv.check()
    assert not list(cache.rglob("*.json"))  # keys of one slot are read more quickly than others


def test_nobody_waits_for_what_is_known_to_be_measured_again(
    models: Models, cache: Path, stopwatch: Stopwatch
) -> None:
    slots = calibration.SLOTS + 100
    make_llm(models.target, "ngram", kv_cache_tokens=slots)
    engine = make_llm(models.target, None, kv_cache_tokens=slots).engine
    engine.add([5, 6, 7], SamplingParams(max_tokens=20, ignore_eos=True))
    engine.step()
    assert engine.policy.cost.measured.rows
    assert stopwatch.rounds == [calibration.ROUNDS]  # though the next start would look again
    make_llm(models.target, "ngram", kv_cache_tokens=slots)
    assert stopwatch.rounds == [calibration.ROUNDS, calibration.MORE_ROUNDS]


def test_crowds_are_measured_where_slots_suffice(
    models: Models, cache: Path, stopwatch: Stopwatch
) -> None:
    """And what a small pool has shown is not taken for all that can be known."""

    def crowds(slots: int, **options: Any) -> list[Crowd]:
        llm = make_llm(models.target, "ngram", kv_cache_tokens=slots, **options)
        return llm.engine.policy.cost.measured.crowds

    assert crowds(24) == []
    assert [crowd.texts for crowd in crowds(2048)] == [8]
    found = crowds(4300)
    assert [crowd.texts for crowd in found] == [8, 32]
    assert [crowd.rows for crowd in found] == [list(rows) for _, rows in calibration.CROWDS]
    assert crowds(4300) == found  # from the cache
    assert crowds(4300, reproducible=True) == []  # rows are rows there
    assert [crowd.texts for crowd in crowds(4300, max_num_seqs=8)] == [8]  # nobody has more
    assert crowds(4300, max_num_seqs=1) == []


def test_segments_use_each_slot_once() -> None:
    slots = array("q", range(10, 30))
    segments = calibration._segments([2, 3], 4, slots)
    used = [slot for segment in segments for slot in (*segment.context, *segment.slots)]
    assert used == list(range(10, 23))


def test_calibration_stays_within_the_positions_a_model_has(tmp_path: Path) -> None:
    """GPT-2 looks its positions up: beyond the last, a GPU's pass would be the process's last."""
    runner = Runner(load_model(str(make_tiny("gpt2", tmp_path)), dtype="float32", device="cpu"))
    runner.allocate(2000)
    slots = array("q", range(1, 2001))
    passes = calibration._passes(runner, slots, 64)
    assert all(max(rows) + context <= 512 for rows, context in passes.values())
    assert len(calibration.measure(runner, passes, slots, 1)) == len(passes)


@pytest.mark.parametrize("ahead", [True, False])
def test_passes_that_run_ahead_are_measured_in_a_row(
    monkeypatch: pytest.MonkeyPatch, ahead: bool
) -> None:
    """By a clock on which a launch takes a second, and the wait at the end three."""
    now = [0.0]

    class Double:
        runs_ahead = ahead
        launches = 0

        def launch(self, segments: Any) -> Any:
            self.launches += 1
            now[0] += 1.0
            return self

        @property
        def logits(self) -> torch.Tensor:
            now[0] += 3.0
            return torch.zeros(1, 2)

    monkeypatch.setattr(calibration, "perf_counter", lambda: now[0])
    runner: Any = Double()
    seconds = calibration._timed(runner, [])
    assert runner.launches == (calibration.IN_A_ROW if ahead else 1)
    assert seconds == pytest.approx(1.0 + 3.0 / runner.launches)
