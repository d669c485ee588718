"""Passes that start before the tokens of the pass before are known: the engine's side of it.

On a GPU the device hands a pass's choices to the next one. Here a double does the same on a CPU, so
that slots, ends, aborts and preemption are tested without one.
"""

import random
from dataclasses import replace
from itertools import pairwise
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import pytest
from tests.engine.eager_graphs import EagerGraphs
from tests.engine.helpers import (
    Ask,
    Models,
    make_llm,
    mixed_requests,
    random_prompt,
    run,
    same_results,
)
from torch import Tensor

from outrider import verify
from outrider.core.params import SamplingParams
from outrider.engine.llm import LLM
from outrider.engine.policy.cost import Measured, PassCost
from outrider.engine.policy.timing import FIRST, Timing
from outrider.engine.scheduler import LONGEST_WAIT, WRITES_PER_READ
from outrider.model.flight import Flight
from outrider.model.segment import Segment
from outrider.sampling.counts import Counts
from outrider.sampling.process import process
from outrider.sampling.rows import Row


def make_ahead(models: Models, drafter: Any = None, **options: Any) -> tuple[LLM, EagerGraphs]:
    llm = make_llm(models.target, drafter, **options)
    graphs = EagerGraphs(llm.engine.runner)
    llm.engine.runner.graphs = graphs  # type: ignore[assignment]
    llm.engine.scheduler.replayed_rows = llm.engine.runner.replayed_rows
    return llm, graphs


def greedy(count: int, **options: Any) -> list[Ask]:
    return [
        (random_prompt(i, 3 + 5 * (i % 5)), SamplingParams(temperature=0, seed=i, **options))
        for i in range(count)
    ]


@pytest.mark.parametrize("drafter", [None, "auto", {"method": "ngram"}])
@pytest.mark.parametrize("count", [1, 9])
def test_the_text_is_that_of_waiting(models: Models, drafter: Any, count: int) -> None:
    asked = greedy(count, max_tokens=24)
    llm, graphs = make_ahead(models, drafter)
    results = run(llm, asked)
    assert graphs.ahead > 5 and (graphs.went_on > 5 or drafter is not None)
    same_results(llm, asked, results, run(make_llm(models.target), asked))
    llm.engine.kv.check()


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_prompts_are_read_in_passes_of_their_own(models: Models, temperature: float) -> None:
    """Some beside texts being written; their first tokens are the pass's, too."""
    llm, graphs = make_ahead(models, "auto", max_num_seqs=3)
    llm.engine.scheduler.replayed_rows = 0  # so that prompts do not take turns with other texts
    asked = [
        (random_prompt(i, 8 + i), SamplingParams(temperature=temperature, seed=i, max_tokens=5 + i))
        for i in range(8)
    ]
    results = run(llm, asked)
    assert graphs.apart > 4
    same_results(llm, asked, results, run(make_llm(models.target), asked))
    llm.engine.kv.check()


@pytest.mark.parametrize("length", [None, 8])
def test_drafts_do_not_make_a_pass_too_large_to_be_replayed(models: Models, length: Any) -> None:
    llm, graphs = make_ahead(models, {"model": models.target, "num_speculative_tokens": length})
    graphs.most_rows = llm.engine.scheduler.replayed_rows = 12
    llm.engine.policy.draft_always()
    asked = greedy(5, max_tokens=24, ignore_eos=True)
    same_results(llm, asked, run(llm, asked), run(make_llm(models.target), asked))
    assert 5 < graphs.largest <= 12


@pytest.mark.parametrize("options", [{}, {"top_k": 40, "logprobs": 2}])
def test_who_leaves_while_a_pass_with_drafts_is_under_way_changes_nothing_for_others(
    models: Models, options: dict[str, Any]
) -> None:
    """The pass begins before this step's text is told, so that anybody may end in between."""
    asked = [
        (random_prompt(i, 9), SamplingParams(temperature=i / 3, seed=i, max_tokens=30, **options))
        for i in range(5)
    ]
    config = {"model": models.noisy, "num_speculative_tokens": 3}
    llm, _ = make_ahead(models, config)
    engine, texts, begun = llm.engine, {}, 0
    for i, (prompt, params) in enumerate(asked):
        engine.add(prompt, params, f"{i}")
    for step in range(200):
        for delta in engine.step():
            if delta.result is not None:
                texts[delta.request_id] = delta.result.outputs[0]
        begun += engine._ahead is not None and any(map(len, engine._ahead.trees))
        if step in (4, 7):
            engine.abort("1" if step == 4 else "3")
    assert begun > 5 and engine.idle and engine._ahead is None
    engine.kv.check()
    plain = run(make_llm(models.target), asked)
    for i in (0, 2, 4):
        assert texts[f"{i}"].token_ids == plain[i].outputs[0].token_ids
        assert texts[f"{i}"].text == plain[i].outputs[0].text


def test_a_drafter_that_fails_ahead_of_its_turn_fails_in_its_turn(
    models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm, _ = make_ahead(models, {"model": models.noisy, "num_speculative_tokens": 3})
    engine = llm.engine
    for i, (prompt, params) in enumerate(greedy(2, max_tokens=30, ignore_eos=True)):
        engine.add(prompt, params, f"{i}")
    for _ in range(4):
        engine.step()

    def broken(*_: Any) -> Any:
        raise RuntimeError("no idea")

    with monkeypatch.context() as patch:
        patch.setattr(engine.drafting, "propose", broken)
        assert engine._ahead is not None and engine._ahead.drafted
        assert engine.step(), "what the pass under way has written is told"
        with pytest.raises(RuntimeError, match="no idea"):
            engine.step()
    while not engine.idle:
        engine.step()
    engine.kv.check()


@pytest.mark.parametrize("count", [1, 3])
def test_what_lookups_find_too_late_makes_the_next_pass_wait(models: Models, count: int) -> None:
    """The second time, all can be copied: passes run ahead at first, and no more once that pays."""
    llm, graphs = make_ahead(models, "auto")
    llm.engine.policy.cost = PassCost(Measured([1, 64], [1.0, 1.0], context=256), fixed=True)
    asked = greedy(count, max_tokens=90, ignore_eos=True)
    run(llm, asked)
    first, results = graphs.ahead, run(llm, asked)
    tokens = sum(len(result.outputs[0].token_ids) for result in results)
    assert 0 < graphs.ahead - first < first / 2
    assert sum(result.speculation.accepted for result in results) > tokens / 2


def test_lookups_read_a_prompt_while_its_pass_is_under_way(models: Models) -> None:
    llm, _ = make_ahead(models, "auto")
    engine, told = llm.engine, []
    for member in engine.drafter.members:
        member.meanwhile = lambda prompts: told.append([r.position for r in prompts])  # type: ignore[method-assign]
    run(llm, greedy(3, max_tokens=9, ignore_eos=True))
    assert told[:2] == [[0, 0, 0]] * 2
    assert len(told) >= 9 and not any(told[2:])


def test_what_the_host_takes_to_launch_a_pass_is_not_the_devices_time(
    models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm, _ = make_ahead(models, {"model": models.target, "num_speculative_tokens": 3})
    engine, launched = llm.engine, {}
    launch, landed = engine.runner.launch, engine.stopwatch.landed
    begun = []

    def noting(segments: list[Segment]) -> Flight:
        flight = launch(segments)
        launched[flight] = perf_counter()
        return flight

    def heard(each: Any, tokens: int) -> None:
        if each.flight.landed is not None:
            begun.append(each.started >= launched[each.flight])
        landed(each, tokens)

    monkeypatch.setattr(engine.runner, "launch", noting)
    monkeypatch.setattr(engine.stopwatch, "landed", heard)
    run(llm, greedy(2, max_tokens=20, ignore_eos=True))
    assert len(begun) > 3 and all(begun)


@pytest.mark.parametrize("captures", [False, True])
def test_what_waits_for_a_capture_is_not_held_against_drafts(
    models: Models, monkeypatch: pytest.MonkeyPatch, captures: bool
) -> None:
    llm, graphs = make_ahead(models, "auto")
    engine, launch = llm.engine, graphs.launch
    engine.policy.cost = PassCost(Measured([1, 64], [1.0, 1.0], context=256), fixed=True)

    def capturing(segments: list[Segment]) -> Flight:
        graphs.captured += captures
        return launch(segments)

    monkeypatch.setattr(graphs, "launch", capturing)
    for _ in range(2):  # the second time, all can be copied
        run(llm, greedy(1, max_tokens=60, ignore_eos=True))
    assert bool(engine.policy.waited._seen) != captures


def test_texts_end_at_any_time(models: Models) -> None:
    """By length, by a stop token that nobody could foresee, by a stop string."""
    asked = greedy(12, max_tokens=40, stop_token_ids=[*range(20, 120)])
    asked += greedy(6, max_tokens=13, stop=["a", "ri"], ignore_eos=True)
    asked += [(prompt, SamplingParams(temperature=0, max_tokens=n)) for n in (1, 2, 3)
              for prompt, _ in asked[:2]]  # fmt: skip
    llm, graphs = make_ahead(models, max_num_seqs=5)
    results = run(llm, asked)
    assert graphs.ahead > 5
    same_results(llm, asked, results, run(make_llm(models.target), asked))
    assert llm.engine._ahead is None or llm.engine._ahead.still_wanted(llm.engine.scheduler) is None


def test_a_prompt_whose_slots_are_replaced_is_read_where_it_is(models: Models) -> None:
    """Requests compute the same end of a prompt at once: one set of slots is kept, the others are
    free again, and soon somebody else's."""
    prompt = random_prompt(3, 12)
    llm, graphs = make_ahead(models)
    run(llm, [(prompt[:-1], SamplingParams(temperature=0, max_tokens=1))])  # the end is missing
    asked = [(prompt, SamplingParams(temperature=1, seed=i, max_tokens=16, ignore_eos=True))
             for i in range(4)]  # fmt: skip
    results = run(llm, asked)
    assert graphs.went_on > 8
    same_results(llm, asked, results, run(make_llm(models.target), asked))
    llm.engine.kv.check()


def test_a_text_that_reaches_its_length_holds_nobody_up(models: Models) -> None:
    asked = [(random_prompt(i, 4), SamplingParams(temperature=0, max_tokens=n, ignore_eos=True))
             for i, n in enumerate((3, 5, 7, 20))]  # fmt: skip
    llm, graphs = make_ahead(models)
    results = run(llm, asked)
    assert graphs.ahead == graphs.launches - 1  # all but the first one after the prompts
    same_results(llm, asked, results, run(make_llm(models.target), asked))
    llm.engine.kv.check()


@pytest.mark.parametrize("options", [{}, {"top_k": 9, "top_p": 0.9, "min_p": 0.01}])
@pytest.mark.parametrize("drafter", [None, "auto"])
def test_noise_belongs_to_the_position_that_is_decided(
    models: Models, drafter: Any, options: dict[str, Any]
) -> None:
    params = [
        SamplingParams(temperature=0.5 + i / 4, seed=i, n=2, max_tokens=16, **options)
        for i in range(5)
    ]
    asked = [(random_prompt(i, 9), each) for i, each in enumerate(params)]
    llm, graphs = make_ahead(models, drafter)
    same_results(llm, asked, run(llm, asked), run(make_llm(models.target), asked))
    assert graphs.ahead > 5


def test_requests_that_need_the_host_make_all_wait(models: Models) -> None:
    """Penalties, logprobs and users' own processors are not for the device."""
    asked = mixed_requests(12)
    llm, _ = make_ahead(models)
    same_results(llm, asked, run(llm, asked), run(make_llm(models.target), asked))
    for options in ({"logprobs": 2}, {"repetition_penalty": 1.2}):
        alone, graphs = make_ahead(models)
        params = SamplingParams(temperature=1, seed=1, max_tokens=6, **options)
        run(alone, [(random_prompt(9, 12), params)])
        assert graphs.ahead == 0


def test_only_requests_that_need_the_host_have_their_logits_read(
    models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = greedy(2, max_tokens=8, ignore_eos=True)
    for i, options in enumerate(({"top_p": 0.8}, {"presence_penalty": 1.0})):
        params = SamplingParams(seed=i, max_tokens=8, ignore_eos=True, **options)
        asked.append((random_prompt(i, 11), params))
    llm, _ = make_ahead(models)
    on_host = []

    def watched(logits: Tensor, rows: list[Row], counts: Counts) -> Tensor:
        on_host.extend(row.request.params for row in rows)
        return process(logits, rows, counts)

    monkeypatch.setattr(verify, "process", watched)
    results = run(llm, asked)
    # The prompts' pass is none that a graph could replay, and chooses nothing.
    assert [p.presence_penalty for p in on_host[4:]] == [1.0] * 7
    same_results(llm, asked, results, run(make_llm(models.target), asked))


def test_cached_texts_make_way(models: Models) -> None:
    """Finished texts fill the pool in time; then every slot comes from one of them."""
    llm, graphs = make_ahead(models, kv_cache_tokens=120)
    for ask in greedy(8, max_tokens=20, ignore_eos=True):
        before = graphs.ahead
        run(llm, [ask])
        assert graphs.ahead - before > 10
    assert llm.engine.kv.available < 60
    llm.engine.kv.check()


@pytest.mark.parametrize("seed", range(4))
def test_requests_come_and_go_in_a_pool_that_is_too_small(models: Models, seed: int) -> None:
    rng = random.Random(seed)
    llm, graphs = make_ahead(models, "auto" if seed % 2 else None, kv_cache_tokens=90)
    engine = llm.engine
    asked = greedy(14, max_tokens=20, ignore_eos=True)
    truth = [r.outputs[0].token_ids for r in run(make_llm(models.target), asked)]
    done: dict[str, list[int]] = {}
    aborted: set[str] = set()
    waiting = list(enumerate(asked))
    while waiting or not engine.idle:
        for _ in range(rng.randint(0, 2)):
            if waiting:
                i, (prompt, params) = waiting.pop(0)
                engine.add(prompt, params, request_id=str(i))
        if rng.random() < 0.05 and engine.jobs:
            victim = rng.choice(list(engine.jobs))
            aborted.add(victim)
            engine.abort(victim)
        for delta in engine.step():
            done.setdefault(delta.request_id, []).extend(delta.token_ids)
    assert graphs.ahead > 0
    for i, expected in enumerate(truth):
        got = done.get(str(i), [])
        assert got == expected[: len(got)]
        assert str(i) in aborted or len(got) == len(expected)
    engine.kv.check()


def test_prompts_are_read_apart_from_texts_being_written(
    models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a pass over both would be no graph: no text waits long, and no prompt for ever."""
    llm, graphs = make_ahead(models, max_num_seqs=6)
    graphs.most_rows = llm.engine.scheduler.replayed_rows = 12
    passes: list[list[int]] = []
    launch = llm.engine.runner.launch

    def seen(segments: list[Segment]) -> Flight:
        passes.append([len(segment) for segment in segments])
        return replace(launch(segments), go_on=None)  # so that all passes come by here

    monkeypatch.setattr(llm.engine.runner, "launch", seen)
    asked = [
        (random_prompt(i, 9 + i % 4), SamplingParams(temperature=0, max_tokens=8 + 3 * i))
        for i in range(12)
    ]
    same_results(llm, asked, run(llm, asked), run(make_llm(models.target), asked))
    mixed = [rows for rows in passes if max(rows) > 1 and min(rows) == 1]
    assert all(sum(rows) <= 12 for rows in mixed)
    reading = [i for i, rows in enumerate(passes) if max(rows) > 1]
    assert len(reading) > 3
    between = [b - a for a, b in pairwise(reading)]
    assert WRITES_PER_READ + 1 in between


def test_passes_are_drafted_for_that_are_graphs_or_cut_into_them(models: Models) -> None:
    scheduler = make_llm(models.target).engine.scheduler
    scheduler.max_rows = 512

    def room(*rows: int) -> int:
        return scheduler.room([SimpleNamespace(rows=n) for n in rows])  # type: ignore[misc]

    assert room(1, 1) == 510 and room(1, 65) == 446  # without graphs
    scheduler.replayed_rows = 128
    assert room(1, 1) == 126 and room(1, 64) == 63
    assert room(1, 65) == 0 and room(*[1] * 130) == 0  # a prompt beside it; too many
    scheduler.in_blocks = True
    assert room(*[1] * 130) == 382


@pytest.mark.parametrize(
    ("writers", "prompts", "tokens", "wait"),
    [
        (4, 1, 100, WRITES_PER_READ),  # a quarter of the batch
        (64, 4, 100, WRITES_PER_READ),
        (64, 3, 100, LONGEST_WAIT),  # more of them would be as quickly read
        (64, 1, 1500, WRITES_PER_READ),  # fills a pass
    ],
)
def test_in_a_large_batch_short_prompts_gather(
    models: Models, writers: int, prompts: int, tokens: int, wait: int
) -> None:
    scheduler = make_llm(models.target, max_num_seqs=128).engine.scheduler
    scheduler.replayed_rows, scheduler.max_rows = 64, 2048

    def sequence(pending: int) -> Any:
        return SimpleNamespace(request=SimpleNamespace(pending=pending), ready=True)

    scheduler.running = [sequence(1) for _ in range(writers)]
    scheduler.waiting.extend(sequence(tokens) for _ in range(prompts))
    waited = 0
    while not scheduler.reads_next:
        scheduler.wrote()
        waited += 1
    assert waited == wait


def test_a_drafter_that_does_not_pay_is_not_waited_for_but_tried_now_and_then(
    models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = greedy(2, max_tokens=120, ignore_eos=True)
    llm, graphs = make_ahead(models, {"model": models.target})
    llm.engine.policy.timings["draft_model"] = Timing(None, {1: 1e3, 2: 1e3}, FIRST)  # seconds
    monkeypatch.setattr(Timing, "learn", lambda *_: None)  # a clock decides nothing here
    drafter, lengths = llm.engine.drafter, []
    propose = drafter.propose

    def noted(batch: list[Any], budgets: list[int]) -> Any:
        lengths.append([len(request.tokens) for request in batch])
        return propose(batch, budgets)

    monkeypatch.setattr(drafter, "propose", noted)
    monkeypatch.setattr("outrider.engine.stopwatch.HURRIED", 0.0)  # here nobody waits for a device
    results = run(llm, asked)
    same_results(llm, asked, results, run(make_llm(models.target), asked))
    assert graphs.ahead > 80
    assert 1 <= len(lengths) <= 4  # after 32 steps, after 64 more


@pytest.mark.parametrize(("always", "stopped"), [(False, False), (False, True), (True, True)])
def test_drafts_that_were_slower_by_the_clock_are_not_made(
    models: Models, monkeypatch: pytest.MonkeyPatch, always: bool, stopped: bool
) -> None:
    """Audits look at drafts, and not at speed."""
    llm, _ = make_ahead(models, {"model": models.target})
    policy, drafted = llm.engine.policy, []
    policy.cost = PassCost(Measured([1, 64], [1.0, 1.0], context=256), fixed=True)
    if always:
        policy.draft_always()
    monkeypatch.setattr(policy.proof, "stopped", lambda texts: stopped)
    monkeypatch.setattr(policy.proof, "refuses", lambda texts: stopped)
    propose = llm.engine.drafting.propose

    def noted(*asked: Any) -> Any:
        trees = propose(*asked)
        drafted.append(any(map(len, trees)))
        return trees

    monkeypatch.setattr(llm.engine.drafting, "propose", noted)
    run(llm, greedy(2, max_tokens=20, ignore_eos=True))
    assert any(drafted) is (always or not stopped)
