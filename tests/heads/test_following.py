"""Drafts that follow each other on the device: the same texts, no slot lost, and the drafter has
read what it would have read by the host's hand."""

from typing import Any

import numpy as np
import pytest
import torch
from tests.engine.helpers import Ask, Models, make_llm, random_prompt, run, same_results
from tests.heads import followed
from tests.heads.followed import Oracle, make_followed
from tests.heads.looped import use_plain_kernels
from tests.heads.untrained import Heads

from outrider.core.params import SamplingParams
from outrider.core.request import Request
from outrider.core.tree import TokenTree
from outrider.drafters import device_loop
from outrider.drafters.following import _as_checked
from outrider.engine.llm import LLM
from outrider.sampling import guess

RIGHT = [0, 2, 1, 4, 0, 3, 1]


def ask(i: int, length: int, **options: Any) -> Ask:
    """Every other one at temperature 0; their seeds tell them apart."""
    params = SamplingParams(
        temperature=0.9 * (i % 2), seed=100 + i, max_tokens=length, ignore_eos=True, **options
    )
    return random_prompt(i, 3 + 5 * (i % 4)), params


def asked(count: int, length: int) -> list[Ask]:
    return [ask(i, length) for i in range(count)]


def expect(
    models: Models, texts: list[Ask], monkeypatch: pytest.MonkeyPatch, right: list[int] = RIGHT
) -> list[Any]:
    """What plain decoding writes; from now on guesses are right by turns."""
    use_plain_kernels(monkeypatch)
    plain = run(make_llm(models.target), texts)
    known = {p.seed: r.outputs[0].token_ids for (_, p), r in zip(texts, plain, strict=True)}
    monkeypatch.setattr(device_loop, "guess_and_move_on", Oracle(known, right))
    return plain


def check_what_was_read(llm: LLM) -> list[int]:
    """Before every draft that the host asks for, have the drafter read the whole text once more:
    that must change nothing. How much had been read each time."""
    drafter: Any = llm.engine.drafter
    propose, lengths = drafter.propose, []

    def checked(batch: list[Request], budgets: list[int]) -> list[TokenTree]:
        for request in batch:
            valid = drafter.entries.valid(request, first=1)
            slots = request.slots[1:valid].tolist()
            before = drafter.memory.layers[0].keys[slots].clone()
            drafter.entries._written[slots] = 0
            drafter._read_up_to([(request, valid)])
            torch.testing.assert_close(drafter.memory.layers[0].keys[slots], before)
            lengths.append(valid)
        return propose(batch, budgets)

    drafter.propose = checked
    return lengths


def held(results: list[Any]) -> int:
    return sum(result.speculation.accepted for result in results)


@pytest.mark.parametrize("variant", ["eagle3", "eagle3 deep", "eagle"])
def test_texts_are_the_same_and_the_drafter_keeps_up(
    models: Models, heads: Heads, variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [ask(i, length) for i, length in enumerate((40, 18, 40, 9))]
    plain = expect(models, texts, monkeypatch)
    llm, graphs = make_followed(
        models.target,
        {"model": heads[variant], "num_speculative_tokens": 4},
        max_num_seqs=3,
    )
    lengths = check_what_was_read(llm)
    results = run(llm, texts)
    same_results(llm, texts, results, plain)
    llm.engine.kv.check()
    assert graphs.followed > 8 and held(results) > 20
    assert max(lengths) > 25  # once the last prompt is read, drafts come from the host again


def test_a_lone_text_is_drafted_for_by_the_host_at_its_ends_only(
    models: Models, heads: Heads, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = asked(2, 60)[1:]
    plain = expect(models, texts, monkeypatch)
    llm, graphs = make_followed(
        models.target, {"model": heads["eagle3"], "num_speculative_tokens": 4}
    )
    lengths = check_what_was_read(llm)
    results = run(llm, texts)
    same_results(llm, texts, results, plain)
    assert len(lengths) < 6 < graphs.followed


def test_the_others_go_on_where_a_text_ends(
    models: Models, heads: Heads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it stops or is as long as it may be: its rows stay empty, and write no slot."""
    lengths = [18, 60, 31, 60, 60]
    known = run(make_llm(models.target), asked(5, 60))
    stop = known[4].outputs[0].token_ids[24]
    texts = [ask(i, n) for i, n in enumerate(lengths[:4])] + [ask(4, 60, stop_token_ids=[stop])]
    plain = expect(models, texts, monkeypatch)
    llm, graphs = make_followed(
        models.target, {"model": heads["eagle3"], "num_speculative_tokens": 4}
    )
    read = check_what_was_read(llm)
    results = run(llm, texts)
    same_results(llm, texts, results, plain)
    llm.engine.kv.check()
    assert graphs.empty > 5 and graphs.followed > 12
    assert len(read) < 25  # five texts at the start, and a few of them near the end


def test_through_ends_preemption_and_new_requests(
    models: Models, heads: Heads, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [ask(i, 8 + 7 * i) for i in range(7)]
    plain = expect(models, texts, monkeypatch)
    llm, graphs = make_followed(
        models.target,
        {"model": heads["eagle3"], "num_speculative_tokens": 4},
        kv_cache_tokens=90,
        max_num_seqs=4,
    )
    results = run(llm, texts)
    same_results(llm, texts, results, plain)
    llm.engine.kv.check()
    assert graphs.followed > 5 and llm.engine.scheduler.preemptions > 0


def test_a_text_stops_while_the_next_round_is_under_way(
    models: Models, heads: Heads, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = run(make_llm(models.target), asked(3, 40))
    stops = [result.outputs[0].token_ids[10 + 5 * i] for i, result in enumerate(plain)]
    texts = [ask(i, 40, stop_token_ids=[stop]) for i, stop in enumerate(stops)]
    plain = expect(models, texts, monkeypatch)
    llm, graphs = make_followed(
        models.target, {"model": heads["eagle3"], "num_speculative_tokens": 4}
    )
    results = run(llm, texts)
    same_results(llm, texts, results, plain)
    llm.engine.kv.check()
    assert graphs.followed > 3
    assert {result.outputs[0].finish_reason for result in results} == {"stop"}


@pytest.mark.parametrize("right", [[0], [4, 8, 2]])
@pytest.mark.parametrize("always", [False, True])
def test_the_policy_decides_and_changes_no_text(
    models: Models, heads: Heads, right: list[int], always: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = asked(4, 48)
    plain = expect(models, texts, monkeypatch, right)
    config = {"method": "auto", "drafters": ["suffix", {"model": heads["eagle3"], "tree": "chain"}]}
    llm, graphs = make_followed(models.target, config)
    if always:
        llm.engine.policy.draft_always()
    results = run(llm, texts)
    same_results(llm, texts, results, plain)
    llm.engine.kv.check()
    assert graphs.followed > 0


def test_as_many_guesses_hold_as_by_the_hosts_hand(
    models: Models, heads: Heads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where noise decides, even heads that have learned nothing are right."""
    use_plain_kernels(monkeypatch)
    texts = [
        (
            random_prompt(i, 5 + i),
            SamplingParams(temperature=(2, 20)[i % 2], seed=i, max_tokens=40, ignore_eos=True),
        )
        for i in range(3)
    ]
    accepted = []
    for follows in (True, False):
        config = {"model": heads["eagle3"], "num_speculative_tokens": 4}
        llm, graphs = make_followed(models.target, config)
        drafter: Any = llm.engine.drafter
        drafter.following = drafter.following if follows else None
        accepted.append([result.speculation.accepted for result in run(llm, texts)])
        assert (graphs.followed > 8) == follows
    assert sum(accepted[1]) > 40
    # At a text's end, chains of the device are not cut short.
    assert all(abs(a - b) <= 2 for a, b in zip(*accepted, strict=True))


def test_where_a_round_fails_the_host_goes_on_and_says_so(
    models: Models, heads: Heads, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    texts = asked(3, 30)
    plain = expect(models, texts, monkeypatch)
    config = {"model": heads["eagle3"], "num_speculative_tokens": 4}
    llm, graphs = make_followed(models.target, config)
    again = graphs.again

    def failing(rows: int, prepare: Any) -> Any:
        if graphs.followed == 3:
            raise RuntimeError("no more memory for graphs")
        return again(rows, prepare)

    graphs.again = failing  # type: ignore[method-assign]
    results = run(llm, texts)
    same_results(llm, texts, results, plain)
    llm.engine.kv.check()
    assert graphs.followed == 3 and llm.engine.drafter.following is None
    assert "eagle3 wait for the host from now on: no more memory" in caplog.text


def test_a_cached_prompt_that_joins_keeps_its_text(
    models: Models, heads: Heads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last token may get the slot that the cache has for it, when its first pass is committed:
    no round may have been told of the other one."""
    prompt = random_prompt(3, 12)
    texts = [
        (
            prompt,
            SamplingParams(temperature=0.9, seed=100 + i, max_tokens=20 + 9 * i, ignore_eos=True),
        )
        for i in range(5)
    ]
    plain = expect(models, texts, monkeypatch)
    config = {"method": "auto", "drafters": [{"model": heads["eagle3"], "tree": "chain"}]}
    llm, graphs = make_followed(models.target, config, max_num_seqs=2)
    llm.engine.policy.draft_always()
    results = run(llm, texts)
    same_results(llm, texts, results, plain)
    llm.engine.kv.check()
    assert graphs.followed > 8


def test_one_with_drafts_leaves_one_without(
    models: Models, heads: Heads, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = run(make_llm(models.target), [ask(1, 60)])[0].outputs[0].token_ids
    texts = [
        ask(1, 60, stop_token_ids=[first[25]]),
        ask(3, 60, speculation={"method": "suffix"}),
    ]
    plain = expect(models, texts, monkeypatch, right=[4])
    config = {"method": "auto", "drafters": ["suffix", {"model": heads["eagle3"], "tree": "chain"}]}
    llm, graphs = make_followed(models.target, config)
    monkeypatch.setattr(llm.engine.policy, "goes_on", lambda *_: True)
    results = run(llm, texts)
    same_results(llm, texts, results, plain)
    assert graphs.followed > 2 and results[1].speculation.drafted == 0


def test_what_the_host_had_drafted_is_learned_from_though_no_round_follows(
    models: Models, heads: Heads, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = asked(2, 30)
    expect(models, texts, monkeypatch, right=[4])
    config = {"method": "auto", "drafters": ["suffix", {"model": heads["eagle3"], "tree": "chain"}]}
    llm, graphs = make_followed(models.target, config)
    policy, lessons = llm.engine.policy, []
    policy.draft_always()
    learn = policy.learn
    monkeypatch.setattr(policy, "goes_on", lambda *_: False)
    monkeypatch.setattr(policy, "learn", lambda *a: lessons.append(a[1]) or learn(*a))
    run(llm, texts)
    assert graphs.followed == 0 and lessons.count("eagle3") > 5


def test_where_there_was_no_guess_the_chain_is_what_was_checked() -> None:
    found = np.array([[7.0, 0.5], [-1.0, 0.4], [17.0, 0.3]])
    assert _as_checked(found) == ([7, 0, 17], [0.5, 0.0, 0.3])


@pytest.mark.parametrize("largest_only", [False, True])
def test_a_round_guesses_what_passes_one_by_one_guess(
    models: Models, heads: Heads, largest_only: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Token by token, and nothing of the text is left for the drafter to read again; also where the
    pass has more rows than the loop would read by itself."""
    if largest_only:
        monkeypatch.setattr(followed, "bucket_of", lambda rows: 64)
    texts = asked(3, 40)
    expect(models, texts, monkeypatch)
    use_plain_kernels(monkeypatch)  # the head's own guesses, right or wrong
    monkeypatch.setattr(guess, "LIKELY", 1 << 20)  # pass by pass as exact as in a round
    config = {"model": heads["eagle3"], "num_speculative_tokens": 4}
    llm, _ = make_followed(models.target, config)
    engine, drafter, compared = llm.engine, llm.engine.drafter, []
    told = engine.drafting.followed

    def checked(leader: Any, spans: Any, slots: Any) -> None:
        told(leader, spans, slots)
        found = engine._ahead.guesses()  # type: ignore[union-attr]
        left = [s.request for s in spans if s.request in engine.drafting._plans]
        assert [drafter.backlog(request) for request in left] == [0] * len(left)
        loop, drafter.loop = drafter.loop, None  # type: ignore[attr-defined]
        expected = drafter.propose(left, [4] * len(left))
        drafter.loop = loop  # type: ignore[attr-defined]
        compared.extend((found[r].tokens, e.tokens) for r, e in zip(left, expected, strict=True))

    monkeypatch.setattr(engine.drafting, "followed", checked)
    run(llm, texts)
    assert len(compared) > 20 and all(got == due for got, due in compared)


@pytest.mark.parametrize(("spent", "asked_at_once"), [(1e-9, 4), (1.0, 1)])
def test_lookups_are_asked_for_as_many_texts_as_there_is_time_for(
    models: Models,
    heads: Heads,
    spent: float,
    asked_at_once: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While drafts follow each other, in turn: the host must keep up with the device."""
    texts = asked(4, 48)
    plain = expect(models, texts, monkeypatch, [4, 8, 2])
    config = {"method": "auto", "drafters": ["suffix", {"model": heads["eagle3"], "tree": "chain"}]}
    llm, graphs = make_followed(models.target, config)
    drafting = llm.engine.drafting
    drafting.policy.draft_always()  # a pass takes a second
    timing = drafting.policy.timings["suffix"]
    timing.per_request = spent
    monkeypatch.setattr(timing, "learn", lambda *_: None)  # no clock in this test
    look_up, looked = drafting._look_up, []

    def counted(batch: list[Request], *rest: Any, **late: Any) -> Any:
        if late:  # of a round to come
            looked.append([request.seed for request in batch])
        return look_up(batch, *rest, **late)

    drafting._look_up = counted  # type: ignore[method-assign]
    same_results(llm, texts, run(llm, texts), plain)
    assert graphs.followed > 4
    assert max(map(len, looked)) == asked_at_once
    assert {seed for seeds in looked for seed in seeds} == {params.seed for _, params in texts}


def test_rounds_of_any_shape_capture_nothing(
    models: Models, heads: Heads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Texts that end one after the other, with chains of many lengths in passes of as many rows."""
    chains = [(4, 4), (5, 3), (6, 2), (7, 1), (4, 4, 4), (5, 5, 2), (6, 4, 2)]
    batches = [
        [
            ask(10 * i + j, 24 + 9 * j, speculation={"num_speculative_tokens": guesses})
            for j, guesses in enumerate(lengths)
        ]
        for i, lengths in enumerate(chains)
    ]
    texts = [each for batch in batches for each in batch]
    plain = expect(models, texts, monkeypatch)
    config = {"model": heads["eagle3"], "num_speculative_tokens": 4}
    llm, graphs = make_followed(models.target, config)
    drafter: Any = llm.engine.drafter
    drafter.loop.prepare(7)
    prepared = drafter.prepared
    results = [result for batch in batches for result in run(llm, batch)]
    same_results(llm, texts, results, plain)
    assert graphs.followed > 50 and drafter.prepared == prepared
