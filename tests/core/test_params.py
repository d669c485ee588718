"""Every bad value of SamplingParams gives one clear line that names the field."""

import math
from dataclasses import FrozenInstanceError, fields

import pytest

from outrider.core.documents import Document
from outrider.core.errors import InvalidRequest, OutriderError
from outrider.core.params import SamplingParams

NAN, INF = math.nan, math.inf
LONE = "\ud800"  # half a character: not encodable

BAD = {
    "n": [0, -1, 1.5, "2", None, True],
    "temperature": [-0.1, NAN, INF, 10**400, "hot", None, True],
    "top_p": [0, 0.0, -0.5, 1.01, NAN, "x", None],
    "top_k": [-2, 1.5, "5", None],
    "min_p": [-0.01, 1.5, NAN, None],
    "repetition_penalty": [0, -1, NAN, INF, None],
    "presence_penalty": [-2.1, 2.1, NAN, "x"],
    "frequency_penalty": [-2.1, 2.1, NAN, "x"],
    "min_tokens": [-1, 0.5, None],
    "max_tokens": [0, -3, 2.5, "many"],
    "seed": [-1, 1.5, 1 << 64, "seed"],
    "logprobs": [-1, 1.5, True],
    "logprobs_mode": ["cooked", None, ""],
    "logit_bias": [{5: NAN}, {5: INF}, {5: "x"}, {5: None}, {"a": 1.0}, {-1: 1.0}, [1]],
    "stop": ["", ["ok", ""], [LONE], LONE, ["a" + LONE], [5], 5, {"a": 1}],
    "bad_words": [[""], [LONE], [5], 5, "abc"],
    "stop_token_ids": [5, ["a"], [-1], "ab"],
    "logits_processors": [[3], print],
    "documents": ["text", [""], [5], [{"name": "a"}], ["a" + LONE], [{"text": "a", "name": ""}]],
    "ignore_eos": ["yes", 1],
    "skip_special_tokens": [None],
}

GOOD = {
    "n": [1, 7],
    "temperature": [0, 0.0, 1e-9, 2, 100.0],
    "top_p": [1e-6, 1, 1.0],
    "top_k": [-1, 0, 50],
    "min_p": [0, 1, 0.1],
    "repetition_penalty": [0.5, 1, 2.0],
    "presence_penalty": [-2, 0, 2],
    "frequency_penalty": [-2, 0, 2],
    "min_tokens": [0, 5],
    "max_tokens": [None, 1, 10_000],
    "seed": [None, 0, (1 << 64) - 1],
    "logprobs": [None, 0, 20],
    "logprobs_mode": ["raw", "processed"],
    "logit_bias": [None, {}, {5: -INF}, {5: 3}],
    "stop": [None, [], "end", ["a", "über", "\U0001f40e"]],
    "bad_words": [None, [], ["no", "nö"]],
    "documents": [None, [], ["über", {"name": "n", "text": "a"}]],
}


@pytest.mark.parametrize(("field", "value"), [(f, v) for f, vs in BAD.items() for v in vs])
def test_a_bad_value_is_one_line_that_names_the_field(field, value):
    with pytest.raises(InvalidRequest) as refusal:
        SamplingParams(**{field: value})
    message = str(refusal.value)
    assert message.startswith(field)
    assert "\n" not in message
    message.encode()  # may be printed: a lone surrogate is shown escaped


@pytest.mark.parametrize(("field", "value"), [(f, v) for f, vs in GOOD.items() for v in vs])
def test_the_limits_themselves_are_allowed(field, value):
    assert getattr(SamplingParams(**{field: value}), field) == value


def test_the_message_shows_the_value():
    with pytest.raises(InvalidRequest, match=r"^temperature=-1 must be a number at least 0$"):
        SamplingParams(temperature=-1)


def test_min_tokens_above_max_tokens_names_both():
    with pytest.raises(InvalidRequest, match="min_tokens=5 is above max_tokens=4"):
        SamplingParams(min_tokens=5, max_tokens=4)
    SamplingParams(min_tokens=4, max_tokens=4)


def test_an_unknown_option_is_refused():
    with pytest.raises(TypeError, match="temprature"):
        SamplingParams(temprature=0.5)


def test_a_bad_request_is_a_value_error_and_ours():
    assert issubclass(InvalidRequest, ValueError)
    assert issubclass(InvalidRequest, OutriderError)


def test_params_cannot_change_once_checked():
    with pytest.raises(FrozenInstanceError):
        SamplingParams().temperature = -1


def test_stop_strings_are_a_list_whatever_was_given():
    assert SamplingParams().stop_strings == []
    assert SamplingParams(stop="a").stop_strings == ["a"]
    assert SamplingParams(stop=["a", "b"]).stop_strings == ["a", "b"]


def test_documents_are_parsed_and_kept_out_of_messages():
    params = SamplingParams(documents=["long text", {"name": "n", "text": "more"}])
    assert params.document_list == (Document("long text"), Document("more", "n"))
    assert "long text" not in repr(params)
    assert SamplingParams().document_list == ()


@pytest.mark.parametrize(("temperature", "greedy"), [(0, True), (1e-6, True), (1e-4, False)])
def test_tiny_temperatures_are_greedy(temperature, greedy):
    assert SamplingParams(temperature=temperature).greedy is greedy


@pytest.mark.parametrize(
    "option", [{"repetition_penalty": 1.1}, {"presence_penalty": 1}, {"frequency_penalty": -1}]
)
def test_each_penalty_alone_is_noticed(option):
    assert SamplingParams(**option).penalised
    assert not SamplingParams().penalised


def test_defaults_are_those_of_vllm_except_max_tokens():
    params = SamplingParams()
    defaults = {field.name: getattr(params, field.name) for field in fields(params) if field.init}
    assert defaults == {
        **dict.fromkeys(["logit_bias", "bad_words", "logits_processors", "stop", "seed"]),
        **dict.fromkeys(["stop_token_ids", "logprobs", "max_tokens", "documents", "speculation"]),
        **dict.fromkeys(["n", "temperature", "top_p", "repetition_penalty"], 1),
        **dict.fromkeys(["top_k", "min_p", "presence_penalty", "frequency_penalty"], 0),
        "min_tokens": 0,
        "ignore_eos": False,
        "include_stop_str_in_output": False,
        "skip_special_tokens": True,
        "logprobs_mode": "raw",
    }
