"""What is exported guesses what it guessed before, to the bit; and says what others must know."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.export.exported import (
    EXPORTED,
    FLASH,
    NAME,
    VOCABULARY,
    trained,
    untrained,
    write_exported,
)
from tests.heads.test_learning import LENGTH, LOGITS, TEXTS
from torch import Tensor
from torch.nn.functional import silu
from transformers import AutoModelForCausalLM

from outrider.cli import main
from outrider.drafters.registry import drafter_class
from outrider.export.run import export
from outrider.heads.files import Files
from outrider.heads.formats import kind_of
from outrider.heads.head import Target

PACKAGE = Path(__file__).parents[1] / "heads" / "speculators"  # what it wrote or has read
FULL = VOCABULARY
# kind, tokens that it knows, format
TRIPS = [
    ("eagle3", 30, "speculators"),
    ("eagle3", 30, "eagle3"),
    ("eagle3", FULL, "eagle3"),
    ("dspark", 30, "speculators"),
    ("dspark", 30, "dspark"),
    ("dspark", FULL, "dspark"),
    ("medusa", 30, "medusa-vllm"),
    ("medusa", FULL, "medusa-vllm"),
    ("medusa", FULL, "medusa"),
]


def read(folder: Path, target: Path, dtype: torch.dtype) -> Any:
    model = AutoModelForCausalLM.from_pretrained(target, dtype=dtype)
    files = Files.of(str(folder))
    kind = kind_of(files)
    assert kind is not None
    how = (Target.of(model), dtype, torch.device("cpu"), 512)
    head: Any = drafter_class(kind).read(files, *how)  # type: ignore[attr-defined]
    head.borrow(Target.of(model))
    return head


def guesses(folder: Path, target: Path, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Logits [texts, rows, vocabulary] for random states; -inf where a token is not known."""
    head = read(folder, target, dtype)
    torch.manual_seed(4)
    states = torch.randn(TEXTS, LENGTH, len(head.taps) * 16).to(dtype)
    tokens = torch.randint(VOCABULARY, (TEXTS, LENGTH))
    with torch.inference_mode():
        logits, _ = LOGITS[type(head).__name__.lower()](head, states, tokens)
    full = logits.new_full((*logits.shape[:-1], VOCABULARY), -torch.inf)
    return full.index_copy_(-1, head.ids(VOCABULARY), logits)


def exported(drafter: Path, out: Path, format: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """By the command; its configuration and tensors."""
    assert main.run(["export", str(drafter), "--format", format, "--out", str(out)]) == 0
    if (out / "medusa_lm_head.pt").exists():
        tensors = torch.load(out / "medusa_lm_head.pt", weights_only=True)
    else:
        tensors = load_file(out / "model.safetensors")
    return json.loads((out / "config.json").read_text()), tensors


@pytest.mark.parametrize(("kind", "known", "format"), TRIPS)
def test_guesses_stay_what_they_were(
    target: Path, tmp_path: Path, kind: str, known: int, format: str
) -> None:
    drafter = trained(kind, target, tmp_path / "drafter", known)
    _, tensors = exported(drafter, tmp_path / "out", format)
    stored = {tensor.dtype for tensor in tensors.values() if tensor.is_floating_point()}
    assert stored == {torch.bfloat16}  # as training writes them
    before, after = (guesses(tmp_path / name, target) for name in ("drafter", "out"))
    assert torch.equal(before, after)
    assert (before == -torch.inf).any() == (known < FULL)


def test_dflash_keeps_its_guesses_in_both_formats(target: Path, tmp_path: Path) -> None:
    drafter = untrained("dspark", target, tmp_path / "drafter", **FLASH)
    before = guesses(drafter, target, torch.float32)
    for format in ("speculators", "dspark"):
        export(str(drafter), tmp_path / format, format, str(target))
        assert torch.equal(before, guesses(tmp_path / format, target, torch.float32))
    config = json.loads((tmp_path / "dspark" / "config.json").read_text())
    assert config["dflash_config"] == {"mask_token_id": 47, "target_layer_ids": [0, 1, 3]}
    assert config["architectures"] == ["DFlashDraftModel"]


# ---- the speculators format ----


@pytest.mark.parametrize("name", list(EXPORTED))
def test_what_is_written_is_what_the_package_has_read(
    target: Path, tmp_path: Path, name: str
) -> None:
    """The files of which tests/heads/test_speculators.py knows the package's answers."""
    write_exported(name, target, tmp_path / "out")
    said = (tmp_path / "out" / "config.json").read_text()
    assert said.replace(str(target.resolve()), NAME) == (PACKAGE / name / "config.json").read_text()
    ours, theirs = (load_file(f / "model.safetensors") for f in (tmp_path / "out", PACKAGE / name))
    assert {key: (t.shape, t.dtype) for key, t in ours.items()} == {
        key: (t.shape, t.dtype) for key, t in theirs.items()
    }


# What the package writes and no reader of a drafter asks for.
UNSAID = {"auto_map", "transformers_version"}
UNSAID_OF_LAYERS = {
    "attention_dropout", "bos_token_id", "eos_token_id", "initializer_range", "max_window_layers",
    "pad_token_id", "pretraining_tp", "sliding_window", "transformers_version", "use_cache",
}  # fmt: skip


@pytest.mark.parametrize(
    "name", ["eagle3", "eagle3_normed", "eagle3_deep", "dspark", "dspark_gated", "dspark_rnn"]
)
def test_the_packages_own_files_are_written_as_it_writes_them(
    target: Path, tmp_path: Path, name: str
) -> None:
    export(str(PACKAGE / name), tmp_path, "speculators", str(target))
    theirs, ours = (
        json.loads((folder / "config.json").read_text()) for folder in (PACKAGE / name, tmp_path)
    )
    layers = [config.pop("transformer_layer_config") for config in (theirs, ours)]
    assert layers[0].keys() - layers[1].keys() <= UNSAID_OF_LAYERS
    for key in layers[0].keys() & layers[1].keys():
        assert layers[0][key] == layers[1][key], key
    assert theirs.keys() - ours.keys() == UNSAID
    about = ours.pop("speculators_config")
    assert about["verifier"] == {
        "name_or_path": str(target.resolve()),
        "architectures": ["LlamaForCausalLM"],
    }
    whole_block = name in ("dspark", "dspark_rnn")  # of four places, the first one included
    assert about["proposal_methods"][0]["speculative_tokens"] == (4 if whole_block else 3)
    assert ours.pop("target_hidden_size") == 16  # left open by the package
    for key in ours:
        assert ours[key] == theirs[key], key
    tensors = [load_file(folder / "model.safetensors") for folder in (PACKAGE / name, tmp_path)]
    assert tensors[0].keys() == tensors[1].keys()
    assert all(torch.equal(tensors[0][key], tensors[1][key]) for key in tensors[0])


def test_nothing_is_left_to_guess_for_vllm(target: Path, tmp_path: Path) -> None:
    """Where the key is missing, vLLM and the package assume different things."""
    drafter = trained("eagle3", target, tmp_path / "eagle3", 30)
    config, tensors = exported(drafter, tmp_path / "a", "speculators")
    flags = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
    assert {flag: config[flag] for flag in flags} == dict.fromkeys(flags, False)
    assert config["eagle_aux_hidden_state_layer_ids"] == [2, 3, 3]  # by inputs
    assert config["transformer_layer_config"]["vocab_size"] == VOCABULARY
    assert config["transformer_layer_config"]["rope_theta"] == 10000.0
    assert tensors["t2d"].tolist() == [token >= 18 for token in range(VOCABULARY)]
    assert tensors["d2t"].tolist() == [18] * 30
    drafter = trained("dspark", target, tmp_path / "dspark", 30)
    config, _ = exported(drafter, tmp_path / "b", "speculators")
    assert config["sample_from_anchor"] is True and config["block_size"] == 7
    assert config["speculators_config"]["proposal_methods"][0]["speculative_tokens"] == 7
    assert config["aux_hidden_state_layer_ids"] == [2, 3, 3]
    assert config["mask_token_id"] == 17  # one that it does not know
    config, _ = exported(drafter, tmp_path / "c", "dspark")
    assert config["target_layer_ids"] == [1, 2, 2]  # by outputs
    assert config["sample_from_anchor"] is True and config["architectures"] == ["Qwen3DSparkModel"]


def test_it_drafts_as_far_as_the_target_goes(target: Path, tmp_path: Path) -> None:
    wide = {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}
    for name, layers, expected in (
        ("plain", {"max_position_embeddings": 64}, 512),
        ("scaled", {"max_position_embeddings": 64, "rope_parameters": wide}, 64),
    ):
        drafter = untrained("eagle3", target, tmp_path / name, layers=layers)
        export(str(drafter), tmp_path / f"{name} out", "speculators", str(target))
        config = json.loads((tmp_path / f"{name} out" / "config.json").read_text())
        assert config["transformer_layer_config"]["max_position_embeddings"] == expected
        before, after = (guesses(tmp_path / f, target) for f in (name, f"{name} out"))
        assert torch.equal(before, after)


# ---- layouts of the authors, and vLLM's ----


def test_eagle3_has_the_authors_names(target: Path, tmp_path: Path) -> None:
    drafter = trained("eagle3", target, tmp_path / "drafter", 30)
    config, tensors = exported(drafter, tmp_path / "out", "eagle3")
    layer = {name.split(".")[1] for name in tensors if name.startswith("midlayer.")}
    norms = {"hidden_norm", "input_layernorm", "post_attention_layernorm"}
    assert layer == norms | {"self_attn", "mlp"}
    rest = {name for name in tensors if not name.startswith("midlayer.")}
    assert rest == {"fc.weight", "norm.weight", "lm_head.weight", "d2t", "t2d"}
    assert config["draft_vocab_size"] == 30 and config["vocab_size"] == VOCABULARY
    assert config["architectures"] == ["LlamaForCausalLM"]
    # The authors' code does not fetch the target's embeddings where it finds this one.
    assert "target_hidden_size" not in config


def test_eagle3_of_another_width(target: Path, tmp_path: Path) -> None:
    wide = {"hidden_size": 32, "head_dim": 8}
    drafter = untrained("eagle3", target, tmp_path / "drafter", layers=wide)
    export(str(drafter), tmp_path / "out", "eagle3", str(target))
    assert json.loads((tmp_path / "out" / "config.json").read_text())["target_hidden_size"] == 16
    assert torch.equal(*(guesses(tmp_path / name, target) for name in ("drafter", "out")))


def test_medusa_in_plain_torch(target: Path, tmp_path: Path) -> None:
    """As the authors' code and vLLM's run it."""
    state = torch.randn(16)
    for known, format in ((FULL, "medusa"), (30, "medusa-vllm")):
        drafter = trained("medusa", target, tmp_path / f"{known}", known)
        config, t = exported(drafter, tmp_path / format, format)
        t = {name: x.float() if x.is_floating_point() else x for name, x in t.items()}
        head = read(drafter, target, torch.float32)
        for i in range(4):
            if format == "medusa":
                linear, output = f"{i}.0.linear", t[f"{i}.1.weight"]
                ids = torch.arange(FULL)
            else:
                assert config["original_lm_head"] and config["medusa_fc_bias"]
                linear, output, ids = f"blocks.{i}.layers.0", t["lm_head.weight"], t["token_map"]
            x = state + silu(t[f"{linear}.weight"] @ state + t[f"{linear}.bias"])
            torch.testing.assert_close(output @ x, head(state, i))
            assert torch.equal(ids, head.ids(FULL))
    assert (config["num_heads"], config["num_hidden_layers"]) == (4, 1)
    assert (config["vocab_size"], config["truncated_vocab_size"]) == (FULL, 30)


@pytest.mark.parametrize("format", ["medusa", "medusa-vllm"])
def test_heads_with_outputs_of_their_own_keep_them(
    target: Path, tmp_path: Path, format: str
) -> None:
    drafter = untrained("medusa", target, tmp_path / "drafter", shared_output=True)  # not used
    export(str(drafter), tmp_path / "out", format, str(target))
    assert torch.equal(*(guesses(tmp_path / name, target) for name in ("drafter", "out")))
    assert "lm_head.weight" not in Files.of(str(tmp_path / "out")).shapes


def test_heads_without_a_bias_get_one_of_zeros(target: Path, tmp_path: Path) -> None:
    drafter = untrained("medusa", target, tmp_path / "drafter", bias=False)
    export(str(drafter), tmp_path / "out", "medusa", str(target))
    before, after = (guesses(tmp_path / name, target) for name in ("drafter", "out"))
    torch.testing.assert_close(before, after)
    tensors = torch.load(tmp_path / "out" / "medusa_lm_head.pt", weights_only=True)
    assert tensors["2.0.linear.bias"].tolist() == [0] * 16


def test_a_name_is_found_where_none_is_given(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    trained("dspark", target, tmp_path / "drafter", 30)
    monkeypatch.chdir(tmp_path)
    assert main.run(["export", "drafter", "--format", "speculators"]) == 0
    assert capsys.readouterr().out == "drafter-speculators\n"
    assert {path.name for path in Path("drafter-speculators").iterdir()} == {
        "config.json",
        "model.safetensors",
    }
