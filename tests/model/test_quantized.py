"""Quantised targets: what shrinks, what stays, and that speculation changes nothing."""

import dataclasses
import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.tiny import make_tiny, make_tokenizer
from torch import nn
from transformers import AutoModelForCausalLM

from outrider import LLM, SamplingParams
from outrider.audit.run import audit_engine
from outrider.cli import main
from outrider.core.errors import ConfigError, ModelError
from outrider.engine.policy import calibration
from outrider.model import quantized
from outrider.model.admission import admit, allowed_error
from outrider.model.loading import LoadedModel, load_model
from outrider.model.quantized import is_plain, quantization_of, weight_bytes
from outrider.model.runner import Runner

torchao = pytest.importorskip("torchao", reason="the extra `quant` is not installed")

KINDS = ["int8", "int4"]
CUDA = torch.device("cuda")


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Its head is its embedding, and its layers are wide enough for int4's groups."""
    options = {"hidden_size": 64, "intermediate_size": 128, "tie_word_embeddings": True}
    folder = make_tiny("llama", tmp_path_factory.mktemp("quantized"), seed=3, **options)
    make_tokenizer(folder)
    return str(folder)


def load(folder: str, kind: str | None, dtype: str = "float32") -> LoadedModel:
    return load_model(folder, dtype=dtype, device="cpu", quantization=kind)


def texts(folder: str, drafter: Any, **options: Any) -> tuple[list[list[int]], int]:
    """Sixteen texts, and how many of their tokens were drafted."""
    llm = LLM(folder, drafter, device="cpu", kv_cache_tokens=2000, **options)
    prompts = [[5 + (i * j) % 290 for j in range(1, 4 + i)] * 2 for i in range(1, 17)]
    params = [SamplingParams(temperature=i % 4 / 4, seed=i, max_tokens=24) for i in range(16)]
    results = llm.generate(prompts, params, use_tqdm=False)
    llm.engine.kv.check()
    accepted = sum(result.speculation.accepted for result in results)
    return [result.outputs[0].token_ids for result in results], accepted


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", KINDS)
def test_layers_shrink_and_the_head_stays(target: str, kind: str, dtype: str) -> None:
    plain, loaded = load(target, None, dtype), load(target, kind, dtype)
    model: Any = loaded.model
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    assert head.weight is embedding.weight and is_plain(head)
    linears = [m for m in model.modules() if isinstance(m, nn.Linear) and m is not head]
    assert len(linears) == 14 and not any(map(is_plain, linears))
    # Per weight: a byte or half of one, and a scale per line or group.
    kept = head.weight.nbytes
    share = (weight_bytes(model) - kept) / (weight_bytes(plain.model) - kept)
    bits = 32 if dtype == "float32" else 16
    expected = {"int8": 8 + 32 / 64, "int4": 4 + 2 * bits / 64}[kind] / bits
    assert 0.95 * expected < share < 1.2 * expected
    runner = Runner(loaded)
    assert runner.vocabulary == plain.model.get_output_embeddings().weight.shape[0]
    if dtype == "float32":  # what is plain still lies column by column
        assert head.weight.stride() == (1, head.weight.shape[0])


@pytest.mark.parametrize("kind", KINDS)
def test_the_quantised_model_is_near_the_original_and_not_the_same(target: str, kind: str) -> None:
    ids = torch.tensor([[5, 9, 70, 31, 200]])
    with torch.inference_mode():
        exact, got = (load(target, k).model(ids).logits[0] for k in (None, kind))  # [5, vocabulary]
    error = float((got - exact).norm() / exact.norm())
    assert 1e-4 < error < {"int8": 0.05, "int4": 0.6}[kind]


@pytest.mark.parametrize("kind", KINDS)
def test_speculation_does_not_change_the_text(target: str, kind: str) -> None:
    options = {"dtype": "float32", "quantization": kind}
    plain, _ = texts(target, None, **options)
    small, large = (
        LLM(target, None, device="cpu", kv_cache_tokens=9, dtype="float32", quantization=each)
        for each in (kind, None)
    )
    assert small.memory.weights < 0.5 * large.memory.weights
    assert plain != texts(target, None, dtype="float32")[0]
    for drafter in (
        {"method": "ngram", "num_speculative_tokens": 4},
        {"model": target, "num_speculative_tokens": 3},
        {"model": target, "num_speculative_tokens": 3, "quantization": kind},
    ):
        got, accepted = texts(target, drafter, **options)
        assert got == plain
        assert accepted or drafter.get("method")


@pytest.mark.parametrize("kind", KINDS)
def test_the_audit_passes_in_bfloat16(target: str, kind: str) -> None:
    draft = {"model": target, "num_speculative_tokens": 3, "quantization": kind}
    options = {"dtype": "bfloat16", "device": "cpu", "quantization": kind}
    report = audit_engine(target, draft, tokens=8, samples=256, **options)
    assert report.passed, [check.detail for check in report.failures]
    assert report.subject["quantization"] == kind


def test_a_checkpoint_that_torchao_made_loads_as_it_is(target: str, tmp_path: Path) -> None:
    from torchao.quantization import Int8WeightOnlyConfig
    from transformers import TorchAoConfig

    own = TorchAoConfig(quant_type=Int8WeightOnlyConfig(set_inductor_config=False))
    model = AutoModelForCausalLM.from_pretrained(
        target, dtype=torch.float32, quantization_config=own
    )
    model.save_pretrained(tmp_path)
    loaded = load(str(tmp_path), None)
    assert loaded.quantization == "torchao"
    assert weight_bytes(loaded.model) == weight_bytes(load(target, "int8").model)
    # The same weights as those that our own option makes, so the same texts.
    drafter = {"method": "ngram", "num_speculative_tokens": 4}
    expected, _ = texts(target, None, dtype="float32", quantization="int8")
    assert texts(str(tmp_path), drafter, dtype="float32")[0] == expected
    with pytest.raises(ConfigError, match=r"already \(torchao\); leave out quantization='int4'"):
        load(str(tmp_path), "int4")


def test_names_and_missing_packages(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"quantization 'int5'; did you mean 'int"):
        load(target, "int5")
    monkeypatch.setattr(quantized, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"torchao.*pip install 'outrider\[quant\]'"):
        LLM(target, quantization="int8", device="cpu")
    load(target, None)  # needs none


def test_what_int4_cannot_do_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = make_tiny("llama", tmp_path / "odd", intermediate_size=72)
    with caplog.at_level(logging.WARNING):
        Runner(load(str(odd), "int4"))
    assert "6 of 14 linear layers stay in torch.float32" in caplog.text
    other = make_tiny("gpt2", tmp_path / "other")  # its products are no linear layers
    with pytest.raises(ModelError, match="gpt2 models have no linear layers"):
        load(str(other), "int8")
    with pytest.raises(ConfigError, match=r"bfloat16, not torch\.float32; leave out dtype"):
        quantized._config("int4", nn.Linear(64, 32), torch.float32, CUDA)
    config = quantized._config("int4", nn.Linear(576, 48), torch.bfloat16, CUDA)
    assert (config.group_size, config.int4_packing_format) == (64, "tile_packed_to_4d")
    monkeypatch.setitem(__import__("sys").modules, "torchao.prototype.quantization.int4", None)
    with pytest.raises(ConfigError, match="quantization='int8'"):
        quantized._config("int4", nn.Linear(64, 32), torch.float32, torch.device("cpu"))


def test_int4_computes_in_bfloat16_unless_told(
    target: str, caplog: pytest.LogCaptureFixture
) -> None:
    quantized._warn_of_float32.cache_clear()
    assert load(target, "int4", "auto").dtype == torch.bfloat16 and not caplog.text
    assert load(target, "int4", "float32").dtype == torch.float32
    assert caplog.text.count("many times slower on a CPU") == 1
    assert load(target, "int8", "auto").dtype == load(target, None, "auto").dtype


def test_weights_under_other_names(tmp_path: Path) -> None:
    """Some methods leave a linear layer without `weight`, and round activations, too."""
    packed = nn.Linear(4, 4)
    packed.weight_packed = nn.Parameter(packed.weight.to(torch.int8), requires_grad=False)
    del packed.weight
    assert not is_plain(packed) and is_plain(nn.Linear(4, 4))
    assert quantization_of(nn.Module()) is None

    class Config:
        quantization_config = {"quant_method": "compressed-tensors"}  # noqa: RUF012

    assert quantization_of(Config()) == "compressed-tensors"
    loaded = load(str(make_tiny("llama", tmp_path)), None)
    foreign = dataclasses.replace(loaded, quantization="bitsandbytes")
    ours = dataclasses.replace(loaded, quantization="int8")
    assert allowed_error(foreign) > allowed_error(ours) == allowed_error(loaded)


def test_times_of_passes_are_not_shared_with_the_plain_model(target: str) -> None:
    files = {calibration.file_of(Runner(load(target, kind)), {}) for kind in (None, *KINDS)}
    assert len(files) == 3


def test_the_command_line(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["--model", target, "--dtype", "float32", "--quantization"]
    said = ["generate", "Hello", "--drafter", "ngram", "--num-speculative-tokens", "2"]
    assert main.run([*said, "--raw", "--json", "--max-tokens", "8", *argv, "int8"]) == 0
    assert json.loads(capsys.readouterr().out)
    for command in ("generate", "audit", "doctor", "bench"):
        words = ["Hello"] if command == "generate" else []
        assert main.run([command, *words, *argv, "int7"]) == 2
        assert "unknown quantization 'int7'" in capsys.readouterr().err
    assert main.run(["audit", "--against", "http://localhost:1/v1", *argv, "int8"]) == 2
    assert "--quantization" in capsys.readouterr().err


def test_methods_that_may_round_activations_are_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    loaded = load_model(str(make_tiny("llama", tmp_path)), dtype="float32", device="cpu")
    admit(loaded)
    assert not caplog.records
    admit(dataclasses.replace(loaded, quantization="bitsandbytes"))
    assert "depend on their neighbours" in caplog.text
