"""What goes wrong in a call of LLM leaves nothing behind in the engine."""

from typing import Any

import pytest
from tests.engine.helpers import make_llm
from tests.tiny import make_tiny, make_tokenizer

from outrider import LLM, InvalidRequest, SamplingParams

SHORT = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    folder = make_tiny("llama", tmp_path_factory.mktemp("llm"))
    make_tokenizer(folder)
    return make_llm(str(folder))


@pytest.mark.parametrize("params", [{"temperature": 0}, [SHORT, 3], 5])
def test_params_of_the_wrong_kind_are_refused(llm: LLM, params: Any) -> None:
    with pytest.raises(InvalidRequest, match="sampling_params"):
        llm.generate(["a", "b"], params, use_tqdm=False)
    assert llm.engine.idle


def test_a_crash_while_adding_leaves_no_request(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    add, calls = llm.engine.add, []

    def second_fails(*arguments: Any, **options: Any) -> str:
        calls.append(arguments)
        if len(calls) == 2:
            raise RuntimeError("planted")
        return add(*arguments, **options)

    monkeypatch.setattr(llm.engine, "add", second_fails)
    with pytest.raises(RuntimeError, match="planted"):
        llm.generate(["a", "b"], SHORT, use_tqdm=False)
    assert llm.engine.idle
    llm.engine.kv.check()


def test_a_step_that_breaks_after_the_last_token_leaves_no_request(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(spans: Any) -> None:
        raise RuntimeError("planted")

    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="planted"):
        patch.setattr(llm.engine.drafter, "observe", broken)
        llm.generate("a", SamplingParams(max_tokens=1), use_tqdm=False)
    assert llm.engine.idle
    llm.engine.kv.check()
    assert len(llm.generate("a", SHORT, use_tqdm=False)[0].outputs[0].token_ids) == 4


def test_a_request_that_somebody_else_aborts_is_not_waited_for(llm: LLM) -> None:
    stream = llm.stream("abc", SamplingParams(max_tokens=50, ignore_eos=True))
    other = llm.stream("abc", SHORT)
    llm.engine.abort(next(stream).request_id)
    assert list(stream) == []
    assert sum(len(delta.token_ids) for delta in other) == 4
    assert llm.engine.idle


def test_only_the_last_delta_of_a_request_carries_the_result(llm: LLM) -> None:
    params = SamplingParams(n=3, seed=1, max_tokens=4, ignore_eos=True)
    deltas = list(llm.stream("abc", params))
    assert [delta.result is not None for delta in deltas] == [False] * (len(deltas) - 1) + [True]
    assert all(output.finish_reason == "length" for output in deltas[-1].result.outputs)


def test_what_a_chat_template_refuses_is_one_clear_line(llm: LLM) -> None:
    template = llm.tokenizer.chat_template
    llm.tokenizer.chat_template = "{{ raise_exception('System role not supported') }}"
    try:
        with pytest.raises(InvalidRequest, match="System role not supported"):
            llm.chat([{"role": "user", "content": "hi"}], SHORT)
    finally:
        llm.tokenizer.chat_template = template


def test_a_message_that_is_no_text_is_refused(llm: LLM) -> None:
    with pytest.raises(InvalidRequest, match="Unicode"):
        llm.chat([{"role": "user", "content": "a\udc80"}], SHORT)
