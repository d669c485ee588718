"""Runs on a tiny model: what was asked, what was counted; nothing about how long it took."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.bench.helpers import PROMPTS, measurement, tiny_model, tiny_options

from outrider.bench import conversation
from outrider.bench.conversation import Conversation, Floor, conversations
from outrider.bench.options import parse_drafters
from outrider.bench.plan import Measurement
from outrider.bench.runner import Engines, fitting, in_turns, pass_cost, phases
from outrider.bench.workloads import Prompt
from outrider.core.errors import ConfigError, OutriderError
from outrider.core.params import SamplingParams

CHAT = [prompt for prompt in PROMPTS if prompt.category == "chat"]


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Engines:
    return Engines.load(tiny_options(tiny_model(tmp_path_factory.mktemp("bench") / "tiny")))


NGRAM = "ngram:prompt_lookup_min=1"


def test_a_batch_is_filled_with_copies() -> None:
    assert [(c.prompt.id, c.copy) for c in conversations(CHAT, 1)] == [("a1", 0), ("a2", 0)]
    talks = conversations(CHAT, 5)
    wanted = [("a1", 0), ("a2", 0), ("a1", 1), ("a2", 1), ("a1", 2)]
    assert [(c.prompt.id, c.copy) for c in talks] == wanted
    talks[0].ask()
    talks[2].ask()
    assert talks[0].messages[0]["content"] == CHAT[0].turns[0]
    assert talks[2].messages[0]["content"] == f"(2) {CHAT[0].turns[0]}"
    assert len({talk.seed(0) for talk in talks}) == 5
    assert talks[0].seed(0) == Conversation(CHAT[0]).seed(0) != talks[0].seed(1)


@pytest.mark.parametrize("drafter", ["none", NGRAM])
@pytest.mark.parametrize("batch_size", [1, 3])
def test_a_run(engines: Engines, drafter: str, batch_size: int) -> None:
    finished: list[int] = []
    asked = measurement(drafter, "chat", batch_size)
    (run,) = engines.measure([asked], PROMPTS, 6, 0, lambda: finished.append(1))
    assert [run.key] == asked.keys
    # a1 has two turns; the third request of a batch of three is a copy of it.
    assert (run.requests, len(finished)) == ((3, 2) if batch_size == 1 else (5, 3))
    assert run.requests <= run.tokens <= 6 * run.requests
    assert run.decode_tokens == run.tokens - run.requests
    assert run.steps <= run.decode_tokens <= run.steps + run.accepted
    assert run.drafted >= run.accepted == sum(run.accepted_per_position)
    assert (drafter == "none") == (run.drafts == 0)
    assert set(run.phases) >= {"draft", "forward", "verify", "rest"}
    assert all(seconds >= 0 for seconds in run.phases.values())
    assert sum(run.phases.values()) <= run.seconds
    assert run.peak_memory_bytes and run.peak_cuda_bytes is None
    assert 0 < run.time_to_first_token < run.seconds
    assert engines.llms[drafter].engine.idle


def test_all_drafters_are_asked_for_the_same_text(engines: Engines) -> None:
    for temperature in (0.0, 1.0):
        texts = []
        for llm in engines.llms.values():
            talks = conversations(CHAT, 3)
            in_turns([Floor(llm, 3, temperature, 6, seed=1).turns(talks, lambda: None)])
            texts.append([talk.messages for talk in talks])
        assert texts[0] == texts[1]
        roles = [message["role"] for message in texts[0][0]]
        assert roles == ["user", "assistant", "user", "assistant"]
        assert texts[0][0][2]["content"] == "and then?"


ROUNDS = [
    Prompt("a/1", "round-1", ("one two three, one two",)),
    Prompt("b/1", "round-1", ("ride ahead and come back",)),
    Prompt("a/2", "round-2", ("one two three, one two",)),
]


def test_a_measurement_starts_cold_and_its_categories_follow_each_other(
    engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second round finds the first one's prefixes; the next measurement finds nothing."""
    engine = engines.llms[NGRAM].engine
    events: list[str | int | None] = []
    forget, leave = engine.forget, engine._leave

    def forgetting() -> None:
        events.append("forget")
        forget()

    def leaving(sequence: Any) -> None:
        events.append(sequence.cached_tokens)
        leave(sequence)

    monkeypatch.setattr(engine, "forget", forgetting)
    monkeypatch.setattr(engine, "_leave", leaving)
    for _ in range(2):
        asked = Measurement(NGRAM, ("round-1", "round-2"), 1, 0.0, 0)
        runs = engines.measure([asked], ROUNDS, 4, 0)
        assert [run.key for run in runs] == asked.keys
        assert [run.requests for run in runs] == [2, 1]
        assert [run.seconds >= sum(run.phases.values()) > 0 for run in runs] == [True, True]
    event, first, _, again = events[:4]
    assert event == "forget" and first == 0 and isinstance(again, int) and again > 0
    assert events == events[:4] * 2


def test_phases_that_the_engine_names() -> None:
    before = {"step": 1.0, "forward": 1.0}
    after = {"step": 11.0, "forward": 6.0, "verify": 1.0, "policy": 0.5}
    assert phases(before, after) == {
        "draft": 0, "forward": 5, "verify": 1, "policy": 0.5, "rest": 3.5,
    }  # fmt: skip
    with_model = phases({}, {"step": 10.0, "draft": 4.0, "draft_model": 3.0, "forward": 5.0})
    assert with_model == {"draft": 1, "forward": 5, "verify": 0, "draft_model": 3, "rest": 1}


def test_drafters_are_measured_side_by_side(
    engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps of each in turn, and nobody's clock runs meanwhile."""
    time, steps = [0.0], []
    monkeypatch.setattr(conversation, "perf_counter", lambda: time[0])
    for name, seconds in (("none", 1.0), (NGRAM, 100.0)):
        engine = engines.llms[name].engine

        def step(name: str = name, seconds: float = seconds, own: Any = engine.step) -> Any:
            steps.append(name)
            time[0] += seconds
            return own()

        monkeypatch.setattr(engine, "step", step)
    together = [measurement(name, "chat", 3) for name in ("none", NGRAM)]
    plain, fast = engines.measure(together, PROMPTS, 6, 0)
    assert [plain.key, fast.key] == [key for each in together for key in each.keys]
    assert steps[:6] == ["none", NGRAM, "none", NGRAM, "none", NGRAM]
    assert plain.seconds == steps.count("none") and fast.seconds == 100 * steps.count(NGRAM)
    assert plain.time_to_first_token < 10 < 100 <= fast.time_to_first_token


def test_it_is_the_turn_of_who_has_written_least() -> None:
    turns = []

    def writer(name: str, *written: int) -> Iterator[int]:
        for count in written:
            turns.append(name)
            yield count

    in_turns([writer("slow", 0, 1, 2, 3, 4, 5, 6), writer("fast", 0, 3, 6)])
    assert "".join(name[0] for name in turns) == "sfsfssfsss"


def test_interrupting_one_of_two_leaves_both_engines_idle(engines: Engines) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    together = [measurement(name, "chat", 3) for name in ("none", NGRAM)]
    with pytest.raises(KeyboardInterrupt):
        engines.measure(together, CHAT, 6, 0, interrupt)
    for llm in engines.llms.values():
        assert llm.engine.idle
        llm.engine.kv.check()


def test_interrupting_a_run_leaves_the_engine_idle(engines: Engines) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        engines.measure([measurement("none", "chat", 3)], CHAT, 6, 0, interrupt)
    assert engines.base.engine.idle
    engines.base.engine.kv.check()


def test_a_failing_request_is_named(engines: Engines, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engines.base.engine
    add = engine.add

    def broken(prompt: list[int], params: SamplingParams, **rest: Any) -> str:
        request_id = add(prompt, params, **rest)
        engine.jobs[request_id].error = "no token is allowed"
        return request_id

    monkeypatch.setattr(engine, "add", broken)
    with pytest.raises(OutriderError, match=r"prompt 'a\d' failed: no token is allowed"):
        engines.measure([measurement("none", "chat", 1)], CHAT, 3, 0)
    assert engine.idle


def test_the_cost_of_a_pass(engines: Engines) -> None:
    costs = pass_cost(engines.base)
    assert [cost["rows"] for cost in costs] == [1, 2, 4, 8, 16, 32]
    assert all(cost["milliseconds"] > 0 for cost in costs)
    engines.base.engine.kv.check()


def test_a_small_context(tmp_path: Path) -> None:
    """What does not fit is left out or ends early, and the rest is measured."""
    model = tiny_model(tmp_path / "short", max_position_embeddings=48)
    options = tiny_options(model, drafters=parse_drafters([]), batch_sizes=(1,))
    short = Engines.load(options)
    long = Prompt("long", "chat", ("word " * 200,))
    grows = Prompt("grows", "chat", ("ride " * 4, "on " * 60))
    kept, problems = fitting(short.base, [long, grows])
    assert kept == [grows]
    assert len(problems) == 1 and problems[0].startswith("prompt 'long' left out: the prompt has")
    assert short.measure([measurement("none", "chat", 1)], kept, 6, 0)[0].requests == 1
    assert [cost["rows"] for cost in pass_cost(short.base)] == [1]
    with pytest.raises(ConfigError, match="no prompt fits the model; first prompt 'long'"):
        fitting(short.base, [long])


def test_a_model_without_a_chat_template(tmp_path: Path) -> None:
    model = tiny_model(tmp_path / "base")
    (tmp_path / "base" / "chat_template.jinja").unlink()
    base = Engines.load(tiny_options(model, drafters=parse_drafters([])))
    assert base.base.tokenizer.chat_template is None
    assert base.measure([measurement("none", "chat", 1)], CHAT, 3, 0)[0].requests == 3
