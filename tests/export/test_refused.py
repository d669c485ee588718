"""What cannot be exported is refused, with what can be done instead."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.export.exported import BLOCK, FLASH, VOCABULARY, trained, untrained, write_target
from tests.tiny import make_tiny

from outrider import ConfigError, ModelError
from outrider.cli import main
from outrider.export import target as target_module
from outrider.export.run import export

QWEN3 = {"model_type": "qwen3"}
LINEAR = {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}}
WIDE = {"hidden_size": 32, "head_dim": 8}
# kind, options, format -> why not, and what can
UNFIT: list[tuple[str, dict[str, Any], str, str]] = [
    ("eagle3", {"norm_output": True}, "eagle3", "variant norm_output; --format speculators can"),
    ("eagle3", {"taps": (1, 2, 4)}, "eagle3", r"layers \[1, 2, 4\] and not \[2, 3, 3\]; --format"),
    ("eagle3", {"num_hidden_layers": 2}, "eagle3", "it has 2 layers"),
    ("eagle3", {"layers": QWEN3}, "eagle3", "norms queries and keys; --format speculators can"),
    ("eagle3", {"layers": {"attention_bias": True}}, "eagle3", "has biases"),
    ("eagle3", {"layers": LINEAR}, "eagle3", "type linear; --format speculators can"),
    ("eagle3", {"layers": WIDE}, "speculators", "32 wide and the target's 16; --format eagle3 can"),
    (
        "eagle3",
        {"fc_norm": True, "norm_before_fc": True},
        "speculators",
        "both together and one by one; no other format can",
    ),
    ("eagle3", {}, "medusa", "other drafters than EAGLE-3; --format speculators or eagle3 can"),
    ("dspark", {**BLOCK, "own_embedding": True}, "speculators", "of its own; --format dspark can"),
    ("dspark", {**BLOCK, "draft_vocabulary": VOCABULARY}, "speculators", "all of the target's"),
    ("dspark", {**BLOCK, "taps": (0, 2)}, "dspark", "no layer's output; --format speculators can"),
    ("dspark", {**FLASH, "from_anchor": True}, "speculators", "first place guesses; no other"),
    ("dspark", {**FLASH, "own_output": True}, "dspark", "of its own; no other"),
    ("medusa", {"draft_vocabulary": 36}, "medusa", "knows 36 of the target's 48 .*medusa-vllm can"),
    ("medusa", {"layers": 2}, "medusa", "2 layers with weights of their own; --format medusa-vllm"),
    ("medusa", {"own_outputs": False}, "medusa-vllm", "target's output layer.*--format medusa can"),
]


@pytest.mark.parametrize(("kind", "options", "format", "message"), UNFIT)
def test_a_format_that_cannot_hold_it_names_those_that_can(
    target: Path, tmp_path: Path, kind: str, options: dict[str, Any], format: str, message: str
) -> None:
    drafter = untrained(kind, target, tmp_path / "drafter", **options)
    with pytest.raises(ConfigError, match=f"{format!r} cannot hold this drafter: .*{message}"):
        export(str(drafter), tmp_path / "out", format, str(target))
    assert not (tmp_path / "out").exists()


def test_other_things_than_drafters_are_refused(target: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"holds an ordinary model, .* EAGLE-3, .* Medusa"):
        export(str(target), tmp_path / "out", "speculators", str(target))
    for kind, words in (("eagle", "EAGLE-1/2"), ("mtp", "MTP heads")):
        drafter = untrained(kind, target, tmp_path / kind)
        with pytest.raises(ConfigError, match=f"holds {words}, which cannot be exported"):
            export(str(drafter), tmp_path / "out", "speculators", str(target))


def test_wrong_calls_are_told_in_a_line(
    target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    drafter = str(trained("medusa", target, tmp_path / "drafter", 30))
    full = tmp_path / "full"
    full.mkdir()
    (full / "something").touch()
    for asked, said in (
        (["--format", "speculator"], "did you mean 'speculators'?"),
        (["--out", str(full)], "is not empty; give another --out"),
        (["--out", str(full / "something")], "give another --out"),
        (["--format", "speculators"], "--format medusa-vllm can"),
    ):
        assert main.run(["export", drafter, "--out", str(tmp_path / "out"), *asked]) == 2
        err = capsys.readouterr().err
        assert said in err and err.count("\n") == 1
    assert main.run(["export", str(tmp_path / "nowhere")]) == 2
    assert "nowhere" in capsys.readouterr().err


# ---- the target ----


def test_the_target_must_be_known_and_fit(target: Path, tmp_path: Path) -> None:
    drafter = trained("eagle3", target, tmp_path / "drafter", 30)
    other = make_tiny("llama", tmp_path / "other", hidden_size=32)
    with pytest.raises(ModelError, match="made for another model"):
        export(str(drafter), tmp_path / "out", "speculators", str(other))
    (drafter / "report.json").write_text(json.dumps({"target": "./moved/away"}))
    with pytest.raises(ModelError, match=r"'\./moved/away' does not exist; give --target MODEL"):
        export(str(drafter), tmp_path / "out", "speculators")
    (drafter / "report.json").write_text("{")
    with pytest.raises(ModelError, match=r"report\.json cannot be read .* give --target MODEL"):
        export(str(drafter), tmp_path / "out", "speculators")
    (drafter / "report.json").unlink()
    with pytest.raises(ConfigError, match=r"does not say .* give --target MODEL"):
        export(str(drafter), tmp_path / "out", "speculators")
    (target.parent / "broken").mkdir(exist_ok=True)
    (target.parent / "broken" / "config.json").write_text('{"model_type": "llama", "vocab_size": 0')
    with pytest.raises(ModelError, match="cannot be read"):
        export(str(drafter), tmp_path / "out", "speculators", str(target.parent / "broken"))


def test_others_find_the_target_by_the_name_that_is_written(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafter = str(trained("dspark", target, tmp_path / "drafter", 30))
    monkeypatch.setattr(target_module, "locate", lambda name, weights: target)
    for i, (name, expected) in enumerate(
        (
            ("owner/name", "owner/name"),
            ("owner/name@main", "owner/name"),
            ("smollm2-135m", str(target.resolve())),  # known to nobody else
        )
    ):
        export(drafter, tmp_path / str(i), "speculators", name)
        config = json.loads((tmp_path / str(i) / "config.json").read_text())
        assert config["speculators_config"]["verifier"]["name_or_path"] == expected
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    write_target(tmp_path / "here")
    export(drafter, tmp_path / "last", "speculators", "here")
    config = json.loads((tmp_path / "last" / "config.json").read_text())
    verifier = config["speculators_config"]["verifier"]["name_or_path"]
    assert verifier == str((tmp_path / "here").resolve())
    # And from there it needs no further word.
    export(str(tmp_path / "last"), tmp_path / "again", "dspark")


def test_the_targets_embeddings_must_be_there(target: Path, tmp_path: Path) -> None:
    """Without its own, an EAGLE-3 head in the speculators format carries the target's."""
    drafter = str(trained("eagle3", target, tmp_path / "drafter", 30))
    export(drafter, tmp_path / "out", "speculators")
    held = load_file(tmp_path / "out" / "model.safetensors")["embed_tokens.weight"]
    known = load_file(target / "model.safetensors")["model.embed_tokens.weight"]
    assert torch.equal(held, known.bfloat16())
    bare = write_target(tmp_path / "bare")
    (bare / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"no safetensors there have model\.embed_tokens\.weight"):
        export(drafter, tmp_path / "more", "speculators", str(bare))
    assert not (tmp_path / "more").exists()
    export(drafter, tmp_path / "more", "eagle3", str(bare))  # there, they are the target's
