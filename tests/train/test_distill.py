"""A small model made of some of the target's layers."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.tiny import make_tiny, make_tokenizer
from tests.train.test_writing import full_disk
from transformers import AutoModelForCausalLM

from outrider.cli import main
from outrider.core.errors import ConfigError, ModelError, OutriderError
from outrider.train.batch import Batch, Truth, Vocabulary
from outrider.train.checkpoint import keep, resume, write
from outrider.train.distill import Student, chosen_layers, distill, new_student
from outrider.train.loop import Plan, train
from outrider.train.texts import Text

TOKENS = torch.arange(40)[None] * 7 % 300


def tiny(folder: Path, family: str = "llama", **options: Any) -> Any:
    make_tiny(family, folder, **options)
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


@pytest.fixture
def model(tmp_path: Path) -> Any:
    return tiny(tmp_path / "target", num_hidden_layers=4)


def test_layers_are_spread_from_the_first_to_the_last() -> None:
    assert chosen_layers(30, 4) == [0, 10, 19, 29]
    assert chosen_layers(30) == chosen_layers(30, 4)
    assert [len(chosen_layers(count)) for count in (1, 2, 12, 24, 40, 80)] == [1, 2, 2, 3, 5, 10]
    assert chosen_layers(4, 4) == [0, 1, 2, 3]
    for wrong in (1, 5):
        with pytest.raises(ConfigError, match="2 to 4"):
            chosen_layers(4, wrong)


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt2", "qwen3_moe"])
def test_all_layers_are_the_target_and_some_are_a_model(tmp_path: Path, family: str) -> None:
    layers = {"n_layer": 5} if family == "gpt2" else {"num_hidden_layers": 5}
    model = tiny(tmp_path / "target", family, **layers, tie_word_embeddings=family == "llama")
    assert torch.equal(new_student(model, None, 5)(TOKENS), model(TOKENS).logits)
    small = new_student(model, None, 3)
    small.save(tmp_path / "small")
    for parameter in small.parameters():
        parameter.data = parameter.data.bfloat16().float()
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "small", dtype=torch.float32).eval()
    assert again.config.num_hidden_layers == 3
    assert torch.equal(again(TOKENS).logits, small(TOKENS))
    if family == "gemma2":  # its layers are of two kinds
        assert again.config.layer_types == [model.config.layer_types[i] for i in (0, 2, 4)]


def test_what_is_frozen_is_the_targets_own(model: Any) -> None:
    small = new_student(model, None, 2)
    frozen = [name for name, each in small.named_parameters() if not each.requires_grad]
    assert frozen == ["model.model.embed_tokens.weight", "model.lm_head.weight"]
    assert small.model.lm_head.weight.data_ptr() != model.lm_head.weight.data_ptr()
    small.train()
    assert not any(module.training for module in small.modules())


def test_a_quantised_target_is_refused_and_an_unpacked_one_is_not(model: Any) -> None:
    model.config.quantization_config = {"quant_method": "x"}
    assert not hasattr(new_student(model, None, 2).model.config, "quantization_config")
    packed = torch.zeros(2, 2, dtype=torch.int8)
    model.lm_head.register_parameter("packed", torch.nn.Parameter(packed, requires_grad=False))
    with pytest.raises(ConfigError, match="original model"):
        new_student(model, None, 2)


def test_layers_that_fit_nowhere_are_named(tmp_path: Path) -> None:
    model = tiny(tmp_path, "qwen3_moe", num_hidden_layers=4, mlp_only_layers=[3])
    with pytest.raises(ModelError, match=r"\[0, 3\].*--layers"):
        new_student(model, None, 2)


class Fixed(torch.nn.Module):
    """Says what it was told to."""

    def __init__(self, logits: torch.Tensor) -> None:
        super().__init__()
        self.logits = logits

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.logits


def test_loss_and_depths_are_those_of_plain_arithmetic() -> None:
    length, size, prompt = 9, 12, 3
    torch.manual_seed(0)
    logits = 3 * torch.randn(2, length, size)
    guess = logits + 1.5 * torch.randn(2, length, size)
    learned = torch.zeros(2, length, dtype=torch.bool)
    learned[0, prompt:], learned[1, prompt : length - 2] = True, True
    words = Vocabulary(torch.arange(size), size)
    tokens = torch.zeros(2, length, dtype=torch.int64)
    batch = Batch(tokens, learned, torch.zeros(2, length, 1), Truth.of(logits, words))
    found = distill(Fixed(guess), batch, words, torch.Generator())

    rows = [(0, place) for place in range(prompt - 1, length - 1)]
    rows += [(1, place) for place in range(prompt - 1, length - 3)]
    p, log_q = logits.softmax(-1), guess.log_softmax(-1)
    losses = [float((p[row] * (p[row].log() - log_q[row])).sum()) for row in rows]
    assert float(found.loss) == pytest.approx(sum(losses) / len(losses), rel=1e-5)
    agreed, counted = [0] * 5, [0] * 5
    for text, start in rows:
        for depth in range(5):
            row = (text, start + depth)
            if row not in rows:
                break
            counted[depth] += 1
            if guess[row].argmax() != logits[row].argmax():
                break
            agreed[depth] += 1
    assert found.agreed.tolist() == agreed and found.counted.tolist() == counted
    assert sum(agreed) > 3 and counted[2] > 0


def test_a_run_of_another_shape_is_not_gone_on_with(model: Any, tmp_path: Path) -> None:
    def start(layers: int) -> tuple[Student, torch.optim.Optimizer]:
        small = new_student(model, None, layers)
        own = [each for each in small.parameters() if each.requires_grad]
        return small, torch.optim.AdamW(own)

    keep(tmp_path, *start(2), plan={"kind": "distill"}, step=3, judged=[])
    state = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    assert not any("embed" in name or "lm_head" in name for name in state["head"])
    assert resume(tmp_path, "distill", *start(2))["step"] == 3
    with pytest.raises(OutriderError, match="--layers"):
        resume(tmp_path, "distill", *start(3))
    with pytest.raises(OutriderError, match="distill drafter"):
        resume(tmp_path, "medusa", *start(2))


def test_a_full_disk_keeps_the_checkpoint_before(model: Any, tmp_path: Path) -> None:
    small = new_student(model, None, 2)
    optimizer = torch.optim.AdamW(small.parameters())
    out = tmp_path / "out"
    out.mkdir()
    keep(out, small, optimizer, plan={"kind": "distill"}, step=3, judged=[])
    kept = (out / "checkpoint.pt").read_bytes()
    with full_disk(after=10_000):
        with pytest.raises(OutriderError, match=r"step 4 .* Make room"):
            keep(out, small, optimizer, plan={"kind": "distill"}, step=4, judged=[])
        with pytest.raises(OutriderError, match="the model could not be written"):
            write(small, {}, out)
    assert (out / "checkpoint.pt").read_bytes() == kept
    assert not (out / "checkpoint.partial").exists()


def test_weights_that_are_no_numbers_reach_no_checkpoint(
    model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step from a finite loss may spoil them, too."""
    small = new_student(model, None, 2)
    words = Vocabulary(torch.arange(320), 320)
    texts = [Text([(i * j) % 300 for j in range(12)], 2) for i in range(1, 9)]
    plan = Plan("distill", steps=2, texts_per_step=4, every=1, seed=0)
    monkeypatch.setattr(Plan, "rate", lambda self, step: float("nan"))
    with pytest.raises(OutriderError, match=r"nan in step 1; .*--learning-rate"):
        train(model, small, {}, texts, words, plan, tmp_path / "target")
    assert not (tmp_path / "target" / "checkpoint.pt").exists()


def test_too_little_memory_names_the_remedy(
    model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> Any:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(Student, "forward", full)
    words = Vocabulary(torch.arange(320), 320)
    plan = Plan("distill", steps=2, texts_per_step=4, every=1, seed=0)
    texts = [Text(list(range(9)), 2)] * 4
    with pytest.raises(OutriderError, match="--texts-per-step"):
        train(model, new_student(model, None, 2), {}, texts, words, plan, tmp_path)


def test_the_command_makes_an_ordinary_model(tmp_path: Path, capsys: Any) -> None:
    target = make_tiny("llama", tmp_path / "target", num_hidden_layers=4)
    make_tokenizer(target)
    out = tmp_path / "small"
    given = ["train", "distill", f"--target={target}", f"--out={out}", "--texts=6", "--longest=60"]
    given += ["--steps=2", "--texts-per-step=2", "--device=cpu", "--dtype=float32"]
    assert main.run([*given, "--vocabulary=100"]) == 2
    assert "leave out --vocabulary" in capsys.readouterr().err
    assert main.run([*given, "--layers=9"]) == 2
    assert "--layers must be 2 to 4" in capsys.readouterr().err
    assert main.run([*given, "--layers=3", "--resume"]) == 0
    config = json.loads((out / "config.json").read_text())
    assert config["num_hidden_layers"] == 3 and "quantization_config" not in config
    assert (out / "tokenizer.json").exists() and (out / "generation_config.json").exists()
    assert main.run(["train", "medusa", "--layers=2", f"--target={target}", "--out=x"]) == 2
    assert "--layers is for distill" in capsys.readouterr().err
