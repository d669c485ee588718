"""Another engine behind OpenAI's API, judged by the model run here."""

import json
import socket
import threading

import pytest
from tests.audit.server import Serving, serving
from tests.engine.helpers import make_llm

from outrider.audit.against import audit_server
from outrider.audit.client import Client
from outrider.cli import main
from outrider.core.errors import ConfigError


@pytest.fixture(scope="module")
def llm(models):
    return make_llm(models.target, {"model": models.noisy})


def against(models, state, **options):
    with serving(state) as url:
        return audit_server(
            url, models.target, dtype="float32", tokens=16, **{"samples": 384, **options}
        )


def test_an_honest_server_passes(models, llm):
    state = Serving(llm)
    report = against(models, state, key="secret")
    assert report.passed, [check.detail for check in report.failures]
    assert [check.name for check in report.checks] == ["reference", "greedy", "distribution"]
    assert report.checks[0].figures["worst"] < 1e-3
    assert report.subject["served_model"] == "tiny" and state.seen[0]["model"] == "tiny"
    assert set(state.keys) == {"Bearer secret"}
    assert report.checks[2].figures["samples"] > 300
    assert 0 < report.detectable_total_variation < 0.5
    assert all(isinstance(body["prompt"], list) for body in state.seen)


def test_another_model_fails_everything(models):
    report = against(models, Serving(make_llm(models.noisy)))
    assert not report.checks[1].passed
    assert report.checks[1].differences[0].verdict == "real fault"


def test_one_wrong_greedy_token_is_found_with_its_place(models, llm):
    report = against(models, Serving(llm, second_best=5), samples=64)
    greedy = report.checks[1]
    fault = greedy.differences[0]
    assert not greedy.passed and fault.position == 5
    assert fault.margin > fault.tolerance and fault.token_text != fault.expected_text


def test_a_wrong_temperature_fails_the_distribution_alone(models, llm):
    report = against(models, Serving(llm, temperature=0.4), samples=768)
    assert [check.name for check in report.failures] == ["distribution"]
    assert report.checks[2].figures["p_value"] < 1e-6


def test_a_server_that_takes_text_only(models, llm):
    """Bytes that are no text cannot be encoded again, so only the way there is tested."""
    state = Serving(llm, tells_ids=False, strict=True)
    report = against(models, state, samples=64)
    assert "encoded again" in report.checks[1].detail
    assert isinstance(state.seen[-1]["prompt"], str) and "return_token_ids" not in state.seen[-1]


class Replying(Serving):
    """Answers every request with the same choices."""

    def __init__(self, choices):
        super().__init__(None)
        self.choices = choices

    def complete(self, body):
        return 200, {"choices": self.choices}


def test_a_server_that_says_nothing_fails(models):
    report = against(models, Replying([{"text": "", "token_ids": []}]), samples=64)
    assert [check.name for check in report.failures] == ["greedy", "distribution"]
    assert all("nothing was judged" in check.detail for check in report.failures)
    assert report.false_alarm_probability == 0.0


@pytest.mark.parametrize(
    ("choices", "part"),
    [
        ("none", "no list of objects"),
        ([1], "no list of objects"),
        ([], "sent no choices"),
        ([{"text": 1}], "not as OpenAI's API"),
        ([{"logprobs": [1]}], "not as OpenAI's API"),
        ([{"token_ids": "12"}], "not as OpenAI's API"),
        ([{"token_ids": [10**6]}], "token id 1000000"),
    ],
)
def test_replies_that_cannot_be_judged(models, choices, part):
    with pytest.raises(ConfigError, match=part):
        against(models, Replying(choices), samples=64)


def test_a_server_that_is_none():
    def babble(listener):
        connection, _ = listener.accept()
        with connection:
            connection.recv(4096)
            connection.sendall(b"what?\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=babble, args=(listener,), daemon=True).start()
        with pytest.raises(ConfigError, match="does not speak the API: what") as caught:
            Client(f"http://127.0.0.1:{listener.getsockname()[1]}/v1")
    assert "\n" not in str(caught.value)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (["--against", "localhost:8000"], "no address"),
        (["--against", f"http://127.0.0.1:{free_port()}/v1"], "cannot be reached"),
        (["--against", "http://localhost:abc/v1"], "nonnumeric port"),
        (["--seed", str(2**31)], "--seed"),
        (["--against", "http://127.0.0.1:1/v1", "--drafter", "ngram"], "leave out --drafter"),
        (["--against", "http://127.0.0.1:1/v1", "--api-key-env", "NO_SUCH_KEY"], "not set"),
        (["--speculative-config", "{"], "not JSON"),
        (["--drafter", "ngrm"], "did you mean 'ngram'"),
        (["--model", "/no/such/folder"], "does not exist"),
    ],
)
def test_bad_input_is_one_line(models, capsys, options, part):
    argv = ["audit", *([] if "--model" in options else ["--model", models.target]), *options]
    assert main.run(argv) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and part in err


def test_the_command_judges_a_server(models, llm, capsys):
    with serving(Serving(llm)) as url:
        argv = ["audit", "--model", models.target, "--against", url, "--quick", "--json"]
        assert main.run(argv) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["passed"] and found["server"] == url and found["false_alarm_probability"] == 1e-6
