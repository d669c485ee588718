"""Requests come, stop, stream, share, wait, are preempted, aborted or refused."""

from typing import Any

import pytest
import torch
from tests.engine.helpers import (
    Ask,
    Models,
    Trees,
    drafting,
    finish,
    make_llm,
    random_prompt,
    run,
    run_alone,
    same_results,
)
from tests.tiny import VOCAB, make_tiny, make_tokenizer

from outrider.core.errors import ConfigError, InvalidRequest
from outrider.core.outputs import RequestOutput
from outrider.core.params import SamplingParams
from outrider.engine.llm import LLM
from outrider.model.flight import Flight

PROMPT = random_prompt(11, 9)


def perfect(models: Models, length: int = 8, **options: Any) -> LLM:
    """Every draft is right, so that whatever ends a text ends it inside a draft."""
    return make_llm(
        models.target, {"model": models.target, "num_speculative_tokens": length}, **options
    )


def one(llm: LLM, prompt: Any = None, **params: Any) -> RequestOutput:
    settings = SamplingParams(**{"seed": 5, "max_tokens": 24, **params})
    return llm.generate(PROMPT if prompt is None else prompt, settings, use_tqdm=False)[0]


def cached_slots(llm: LLM) -> int:
    return sum(len(node.slots) for node in llm.engine.kv.tree.nodes())


# ---- where a text ends ----


def test_a_stop_id_inside_a_draft_cuts_there(models: Models, plain: LLM) -> None:
    whole = one(plain, ignore_eos=True, logprobs=0).outputs[0]
    at = next(i for i in range(5, 24) if whole.token_ids[i] not in whole.token_ids[:i])
    llm = perfect(models)
    stop = {"stop_token_ids": [whole.token_ids[at], VOCAB - 1], "ignore_eos": True, "logprobs": 0}
    output = one(llm, **stop).outputs[0]
    assert output.token_ids == whole.token_ids[: at + 1]
    assert (output.finish_reason, output.stop_reason) == ("stop", whole.token_ids[at])
    assert output.from_draft[-1]
    assert len(output.logprobs) == len(output.from_draft) == at + 1
    assert output.text == one(plain, **stop).outputs[0].text
    assert cached_slots(llm) == len(PROMPT) + at + 1  # nothing of what was drafted behind it
    assert cached_slots(llm) + llm.engine.kv.available == llm.engine.kv.total


def test_a_stop_string_inside_a_draft_cuts_there(models: Models, plain: LLM) -> None:
    printable = dict.fromkeys(range(70, 96), 100.0)  # one character each, so no half ones
    options: dict[str, Any] = {"logit_bias": printable, "temperature": 1.5, "logprobs": 0}
    whole = one(plain, **options).outputs[0]
    stop = whole.text[6:9]
    at = whole.text.index(stop) + 3  # one token per character
    llm = perfect(models)
    output = one(llm, stop=[stop, "never"], **options).outputs[0]
    assert output.text == whole.text[: at - 3]
    assert output.token_ids == whole.token_ids[:at]
    assert (output.finish_reason, output.stop_reason) == ("stop", stop)
    assert len(output.logprobs) == at
    assert cached_slots(llm) <= len(PROMPT) + at
    kept = one(llm, stop=[stop], include_stop_str_in_output=True, **options).outputs[0]
    assert kept.text == whole.text[:at]


@pytest.mark.parametrize("name", ["none", "draft_model", "trees"])
def test_the_end_token_ends_the_text_and_is_not_shown(models: Models, name: str) -> None:
    llm = make_llm(models.target, drafting(models, name, 6))
    output = one(llm, logit_bias={0: 5.0}).outputs[0]
    assert output.token_ids.index(0) == len(output.token_ids) - 1
    assert (output.finish_reason, output.stop_reason) == ("stop", 0)
    assert "<|eos|>" not in output.text


@pytest.mark.parametrize("limit", [1, 2, 5, 9, 10, 11])
def test_max_tokens_is_met_exactly(models: Models, limit: int) -> None:
    result = one(perfect(models), max_tokens=limit, ignore_eos=True)
    assert len(result.outputs[0].token_ids) == limit
    assert result.outputs[0].finish_reason == "length"
    assert result.speculation.drafted <= limit


@pytest.mark.parametrize("by", ["max_model_len", "kv_cache_tokens"])
def test_the_context_ends_exactly(models: Models, by: str) -> None:
    llm = perfect(models, **{by: 20})
    result = one(llm, max_tokens=None, ignore_eos=True)
    assert len(PROMPT) + len(result.outputs[0].token_ids) == 20
    assert result.outputs[0].finish_reason == "length"


@pytest.mark.parametrize("name", ["none", "draft_model", "trees"])
def test_min_tokens_come_before_the_end(models: Models, name: str) -> None:
    llm = make_llm(models.target, drafting(models, name, 4))
    bias = {0: 100.0}
    assert one(llm, logit_bias=bias).outputs[0].token_ids == [0]
    output = one(llm, logit_bias=bias, min_tokens=7).outputs[0]
    assert output.token_ids.index(0) == len(output.token_ids) - 1 == 7


# ---- n, streams, the cache ----


def test_samples_share_the_prompt_and_differ(models: Models) -> None:
    llm = make_llm(models.target, drafting(models, "draft_model", 3))
    seen = _rows(llm)
    result = one(llm, n=4, max_tokens=8, ignore_eos=True)
    assert [output.index for output in result.outputs] == [0, 1, 2, 3]
    assert len({tuple(output.token_ids) for output in result.outputs}) == 4
    assert result.num_cached_tokens == len(PROMPT) - 1
    assert sum(rows for rows in seen if rows > 8) == len(PROMPT)  # read once, not four times


@pytest.mark.parametrize("rows", [8, 9])
def test_a_prompt_read_in_parts_is_shared_too(models: Models, rows: int) -> None:
    """Also where the last part is a single row."""
    llm = make_llm(models.target, max_num_batched_tokens=rows)
    assert one(llm, n=2, max_tokens=4).num_cached_tokens == len(PROMPT) - 1


def _rows(llm: LLM) -> list[int]:
    """Rows of each sequence in each pass from now on."""
    seen: list[int] = []
    launch = llm.engine.runner.launch

    def watched(segments: list[Any]) -> Flight:
        seen.extend(len(segment) for segment in segments)
        return launch(segments)

    llm.engine.runner.launch = watched  # type: ignore[method-assign]
    return seen


@pytest.mark.parametrize("name", ["none", "draft_model", "trees"])
def test_deltas_add_up_to_the_result(
    models: Models, asked: list[Ask], expected: list[RequestOutput], name: str
) -> None:
    llm = make_llm(models.target, drafting(models, name, 4))
    for i in (0, 6, 8, 11, 12):
        deltas = list(llm.stream(*asked[i]))
        result = deltas[-1].result
        assert result is not None and all(delta.result is None for delta in deltas[:-1])
        same_results(llm, [asked[i]], [result], [expected[i]])
        for output in result.outputs:
            mine = [delta for delta in deltas if delta.index == output.index]
            assert "".join(delta.text for delta in mine) == output.text
            assert [t for delta in mine for t in delta.token_ids] == output.token_ids
            assert [d for delta in mine for d in delta.from_draft] == output.from_draft
            assert [delta.finish_reason for delta in mine[:-1]] == [None] * (len(mine) - 1)


def test_who_does_not_read_along_is_told_the_end_alone(models: Models, plain: LLM) -> None:
    llm = perfect(models, 2)
    params = SamplingParams(seed=3, max_tokens=12, n=2)
    llm.engine.add(PROMPT, params, "silent", streamed=False)
    llm.engine.add(PROMPT, params, "streamed")
    deltas = []
    while not llm.engine.idle:
        deltas += llm.engine.step()
    silent = [delta for delta in deltas if delta.request_id == "silent"]
    assert len(deltas) - len(silent) > len(silent) == 2
    [result] = [delta.result for delta in silent if delta.result]
    for delta in silent:
        output = result.outputs[delta.index]
        assert (delta.token_ids, delta.text) == (output.token_ids, output.text)
    same_results(llm, [(PROMPT, params)], [result], run(plain, [(PROMPT, params)]))


def test_closing_a_stream_aborts_its_request_only(models: Models, plain: LLM) -> None:
    llm = perfect(models, 2)
    first = llm.stream(PROMPT, SamplingParams(seed=1, max_tokens=20))
    second = llm.stream(PROMPT[::-1], SamplingParams(seed=2, max_tokens=20))
    next(first), next(second), next(first)
    assert len(llm.engine.jobs) == 2
    first.close()
    assert len(llm.engine.jobs) == 1
    *_, last = second
    assert llm.engine.idle
    ask = (PROMPT[::-1], SamplingParams(seed=2, max_tokens=20))
    same_results(llm, [ask], [last.result], run(plain, [ask]))


def test_a_stream_whose_request_somebody_aborts_ends(plain: LLM) -> None:
    stream = plain.stream(PROMPT, SamplingParams(seed=1, max_tokens=20))
    request_id = next(stream).request_id
    plain.engine.abort(request_id)
    assert list(stream) == []


def test_a_stream_that_was_never_read_leaves_nothing(plain: LLM) -> None:
    plain.stream(PROMPT).close()
    assert plain.engine.idle


@pytest.mark.parametrize("name", ["none", "ngram", "draft_model", "trees"])
def test_prefix_hits_while_speculating_change_nothing(
    models: Models, plain: LLM, name: str
) -> None:
    llm = make_llm(models.target, drafting(models, name, 4))
    first = one(llm, ignore_eos=True)
    again = one(llm, ignore_eos=True)
    assert (first.num_cached_tokens, again.num_cached_tokens) == (0, len(PROMPT) - 1)
    text = PROMPT + first.outputs[0].token_ids
    ask = ([*text, 7], SamplingParams(seed=9, max_tokens=12))
    longer = run(llm, [ask])
    assert longer[0].num_cached_tokens >= len(text) - 1
    assert again.outputs[0].token_ids == first.outputs[0].token_ids
    cold = make_llm(models.target, enable_prefix_caching=False)
    same_results(plain, [ask], longer, run(cold, [ask]))


def test_without_prefix_caching_nothing_is_kept(models: Models) -> None:
    llm = make_llm(models.target, enable_prefix_caching=False)
    assert one(llm).num_cached_tokens == one(llm).num_cached_tokens == 0
    assert llm.engine.kv.available == llm.engine.kv.total


# ---- who is served when ----


def test_first_come_first_served(models: Models) -> None:
    llm = make_llm(models.target, max_num_seqs=2, max_num_batched_tokens=16)
    engine, begun = llm.engine, []
    lengths = [30, 3, 20, 2, 9, 1]
    for i, length in enumerate(lengths):
        params = SamplingParams(seed=i, max_tokens=6, ignore_eos=True)
        engine.add(random_prompt(i, length), params, request_id=str(i))
    while not engine.idle:
        for delta in engine.step():
            if delta.request_id not in begun:
                begun.append(delta.request_id)
        assert len(engine.scheduler.running) <= 2
    # The second has a short prompt, so it may begin to write first; nobody else overtakes.
    assert sorted(begun[:2]) == ["0", "1"] and begun[2:] == ["2", "3", "4", "5"]


def test_a_pass_holds_no_more_rows_than_allowed(models: Models, asked: list[Ask]) -> None:
    llm = make_llm(models.target, drafting(models, "draft_model", 5), max_num_batched_tokens=12)
    passes: list[int] = []
    launch = llm.engine.runner.launch

    def watched(segments: list[Any]) -> Flight:
        passes.append(sum(len(segment) for segment in segments))
        return launch(segments)

    llm.engine.runner.launch = watched  # type: ignore[method-assign]
    run(llm, asked)
    assert max(passes) == 12


@pytest.mark.parametrize("name", ["none", "ngram", "draft_model", "trees"])
@pytest.mark.parametrize("prefix_caching", [True, False])
def test_preemption_changes_no_text(
    models: Models,
    asked: list[Ask],
    expected: list[RequestOutput],
    name: str,
    prefix_caching: bool,
) -> None:
    llm = make_llm(
        models.target,
        drafting(models, name, 4),
        kv_cache_tokens=90,
        enable_prefix_caching=prefix_caching,
    )
    # Never more slots than these; requests that use nearly all of the pool must take turns.
    chosen = [0, 1, 4, 5, 11, 14]
    got = run(llm, [asked[i] for i in chosen])
    assert llm.engine.scheduler.preemptions > 0
    same_results(llm, [asked[i] for i in chosen], got, [expected[i] for i in chosen])


@pytest.mark.parametrize("name", ["none", "trees"])
def test_a_request_can_be_aborted_at_any_time(models: Models, plain: LLM, name: str) -> None:
    asked = [
        (random_prompt(20 + i, 12), SamplingParams(seed=i, max_tokens=5, ignore_eos=True))
        for i in range(3)
    ]
    expected = run_alone(plain, asked)
    Trees.learn(asked, expected)
    engine = make_llm(models.target, drafting(models, name, 3), max_num_batched_tokens=14).engine
    for steps in range(8):
        ids = [engine.add(*ask) for ask in asked]
        early = [delta for _ in range(steps) if not engine.idle for delta in engine.step()]
        last = engine.abort(ids[1])
        engine.kv.check()
        assert engine.abort(ids[1]) == []  # a second time is no error
        results = {delta.request_id: delta.result for delta in early + last if delta.result}
        results.update(finish(engine))
        same_results(
            plain, asked[::2], [results[ids[0]], results[ids[2]]], [expected[0], expected[2]]
        )
        cut = results[ids[1]].outputs[0]
        assert cut.token_ids == expected[1].outputs[0].token_ids[: len(cut.token_ids)]
        assert cut.finish_reason == ("abort" if last else "length")


def test_a_step_with_nothing_to_do_does_nothing(plain: LLM) -> None:
    assert plain.engine.idle
    assert plain.engine.step() == []


def test_counters_agree_with_the_tokens(models: Models, asked: list[Ask]) -> None:
    llm = make_llm(models.target, drafting(models, "draft_model", 3))
    for result in run(llm, asked):
        counted = result.speculation
        assert counted.accepted == sum(sum(output.from_draft) for output in result.outputs)
        assert counted.accepted == sum(counted.accepted_per_position) <= counted.drafted
        assert counted.accepted_per_position == sorted(counted.accepted_per_position)[::-1]
        assert counted.drafts <= counted.steps
        if counted.drafts:
            length = 1 + counted.accepted / counted.drafts
            assert counted.mean_acceptance_length == pytest.approx(length)


def test_prompts_may_be_text_ids_or_a_dict(plain: LLM) -> None:
    text = "the rider rides ahead"
    ids = plain.tokenizer(text)["input_ids"]
    settings = SamplingParams(seed=1, max_tokens=6)
    results = plain.generate([text, ids, {"prompt_token_ids": ids}], settings, use_tqdm=False)
    assert [result.prompt_token_ids for result in results] == [ids] * 3
    assert len({tuple(result.outputs[0].token_ids) for result in results}) == 1
    assert plain.generate(ids, settings, use_tqdm=False)[0].prompt_token_ids == ids


def test_chat_applies_the_template(plain: LLM) -> None:
    talk = [{"role": "user", "content": "ride"}]
    result = plain.chat(talk, SamplingParams(seed=1, max_tokens=3), use_tqdm=False)[0]
    text = plain.tokenizer.decode(result.prompt_token_ids, skip_special_tokens=False)
    assert text == "<|user|>ride<|end|>\n<|assistant|>"


def test_a_seed_is_drawn_and_returned(plain: LLM) -> None:
    first = one(plain, seed=None)
    assert first.seed != one(plain, seed=None).seed
    assert one(plain, seed=first.seed).outputs[0].token_ids == first.outputs[0].token_ids


# ---- what goes wrong ----


def _breaks(path: list[int], logits: torch.Tensor) -> torch.Tensor:
    if len(path) == 3:
        raise KeyError("no such state")
    return logits


@pytest.mark.parametrize("name", ["none", "draft_model", "trees"])
def test_a_processor_that_raises_ends_only_its_own_request(
    models: Models, asked: list[Ask], expected: list[RequestOutput], name: str
) -> None:
    llm = make_llm(models.target, drafting(models, name, 3))
    bad = (PROMPT, SamplingParams(seed=1, max_tokens=9, logits_processors=[_breaks]))
    results = run(llm, [*asked[:3], bad, *asked[3:6]])
    broken = results.pop(3)
    assert broken.outputs[0].finish_reason == "error"
    assert "KeyError" in broken.error and "no such state" in broken.error
    assert len(broken.outputs[0].token_ids) == 3
    same_results(llm, asked[:6], results, expected[:6])


def test_a_processor_that_chokes_on_a_rejected_draft_does_no_harm(
    models: Models, plain: LLM
) -> None:
    text = one(plain, ignore_eos=True).outputs[0].token_ids

    def strict(path: list[int], logits: torch.Tensor) -> torch.Tensor:
        if path != text[: len(path)]:
            raise ValueError("off the path")
        return logits

    for name in ("draft_model", "trees"):
        llm = make_llm(models.target, drafting(models, name, 4))
        result = one(llm, logits_processors=[strict], ignore_eos=True)
        assert result.error is None
        assert result.outputs[0].token_ids == text
        assert result.speculation.accepted < result.speculation.drafted


BAD: list[tuple[Any, dict[str, Any], str]] = [
    ("", {}, "prompt is empty"),
    ([[]], {}, "prompt is empty"),
    ([5] * 600, {}, "600 tokens.* 512 fit"),
    ([5, VOCAB], {}, f"token id {VOCAB}.*end at {VOCAB - 1}"),
    ([5, -1], {}, "token id -1"),
    ("half \ud800 pair", {}, "not valid Unicode"),
    ({"prompt_ids": [5]}, {}, "needs 'prompt_token_ids'"),
    ([5], {"stop_token_ids": [VOCAB]}, f"stop_token_ids holds token id {VOCAB}"),
    ([5], {"logit_bias": {VOCAB: 1.0}}, f"logit_bias holds token id {VOCAB}"),
]


@pytest.mark.parametrize(("prompt", "options", "message"), BAD)
def test_a_request_that_cannot_be_served_is_refused(
    plain: LLM, prompt: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message) as caught:
        plain.generate(prompt, SamplingParams(max_tokens=3, **options), use_tqdm=False)
    assert "\n" not in str(caught.value)
    assert plain.engine.idle


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -0.1}, "temperature=-0.1 must be"),
        ({"temperature": float("nan")}, "temperature=nan must be"),
        ({"top_p": 0.0}, "top_p=0.0 must be"),
        ({"n": 0}, "n=0 must be"),
        ({"max_tokens": 0}, "max_tokens=0 must be"),
        ({"min_tokens": 5, "max_tokens": 3}, "min_tokens=5 is above max_tokens=3"),
        ({"stop": "a\ud800"}, "stop holds .* not valid Unicode"),
        ({"stop": [""]}, "stop holds ''"),
        ({"seed": -1}, "seed=-1 must be"),
    ],
)
def test_wrong_sampling_params_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        SamplingParams(**options)


def test_unknown_keywords_are_refused(models: Models) -> None:
    with pytest.raises(TypeError, match="temprature"):
        SamplingParams(temprature=1.0)  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match="'max_num_seq'; did you mean 'max_num_seqs'"):
        make_llm(models.target, max_num_seq=3)
    with pytest.raises(ConfigError, match="unknown drafter 'n-gram'; did you mean 'ngram'"):
        make_llm(models.target, "n-gram")


def test_a_drafter_with_another_vocabulary_may_be_refused(models: Models, tmp_path: Any) -> None:
    other = make_tiny("llama", tmp_path)
    tokenizer = make_tokenizer(other)
    tokenizer.add_tokens(["outrider"])
    tokenizer.save_pretrained(other)
    with pytest.raises(ConfigError, match="another vocabulary"):
        make_llm(models.target, {"model": str(other), "use_heterogeneous_vocab": False})


def test_a_request_larger_than_the_pool_is_refused_with_the_figures(models: Models) -> None:
    llm = make_llm(models.target, kv_cache_tokens=16)
    with pytest.raises(InvalidRequest, match=r"40 tokens.* 16 fit.*kv_cache_tokens"):
        one(llm, prompt=[5] * 40)


def test_in_a_batch_the_others_finish(plain: LLM) -> None:
    settings = SamplingParams(seed=4, max_tokens=5, ignore_eos=True)
    with pytest.warns(UserWarning, match="prompt is empty"):
        results = plain.generate([PROMPT, [], PROMPT[::-1]], settings, use_tqdm=False)
    assert [result.error is None for result in results] == [True, False, True]
    assert "empty" in results[1].error and results[1].outputs[0].finish_reason == "error"
    assert len(results[0].outputs[0].token_ids) == len(results[2].outputs[0].token_ids) == 5


def test_an_id_is_used_once_at_a_time(plain: LLM) -> None:
    engine = plain.engine
    engine.add(PROMPT, SamplingParams(max_tokens=2), request_id="a")
    with pytest.raises(InvalidRequest, match="'a' is already in use"):
        engine.add(PROMPT, request_id="a")
    finish(engine)
    engine.add(PROMPT, SamplingParams(max_tokens=2), request_id="a")
    assert list(finish(engine)) == ["a"]


def test_a_drafter_that_breaks_its_budget_is_named(
    models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    from outrider.core.errors import OutriderError
    from outrider.core.tree import TokenTree

    llm = make_llm(models.target, drafting(models, "trees", 3))
    monkeypatch.setattr(Trees, "propose", lambda *_: [TokenTree.chain([5] * 4, source="trees")])
    with pytest.raises(OutriderError, match="drafter 'trees' proposed 4 nodes"):
        one(llm)
    llm.engine.kv.check()
    assert llm.engine.idle
