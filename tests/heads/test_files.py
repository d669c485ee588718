"""Published formats are recognised and read alike; what does not fit is refused by name."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.engine.helpers import Models, make_llm, random_prompt
from tests.heads.untrained import VARIANTS, Heads
from tests.tiny import edit_json, make_tiny

from outrider import ConfigError, ModelError, SamplingParams
from outrider.cli import main
from outrider.engine.llm import LLM
from outrider.heads import files as files_module

Tensors = dict[str, torch.Tensor]


def rewritten(
    source: str,
    folder: Path,
    names: Callable[[str], str] = str,
    config: dict[str, Any] | None = None,
    pickled: str | None = None,
) -> str:
    """A copy with other names of tensors, another configuration, or in torch's own format."""
    folder.mkdir()
    tensors = load_file(Path(source) / "model.safetensors")
    tensors = {names(name): tensor for name, tensor in tensors.items()}
    if pickled:
        torch.save(tensors, folder / pickled)
    else:
        save_file(tensors, folder / "model.safetensors")
    text = (Path(source) / "config.json").read_text()
    (folder / "config.json").write_text(text if config is None else json.dumps(config))
    return str(folder)


def written(llm: LLM) -> Any:
    """What is drafted shows in how much is accepted where few tokens are possible."""
    params = SamplingParams(
        seed=1, max_tokens=24, ignore_eos=True, logit_bias=dict.fromkeys((5, 17, 42), 30.0)
    )
    result = llm.generate(random_prompt(3, 9), params, use_tqdm=False)[0]
    assert result.speculation.accepted > 1
    return result.speculation.accepted_per_position


@pytest.mark.parametrize("variant", list(VARIANTS))
def test_the_kind_is_told_by_the_files(models: Models, heads: Heads, variant: str) -> None:
    llm = make_llm(models.target, {"model": heads[variant]})
    assert llm.drafter_name == VARIANTS[variant][0]


def test_auto_takes_a_trained_drafter_as_a_member(models: Models, heads: Heads) -> None:
    llm = make_llm(models.target, {"method": "auto", "model": heads["eagle3"]})
    assert "eagle3" in [member.name for member in llm.engine.drafter.members]
    assert written(llm)


@pytest.mark.parametrize(
    ("more", "tree"),
    [
        ({}, "confidence"),
        ({"num_speculative_tokens": 4}, "chain"),  # as long as it is said to be
        ({"verification": "traversal"}, "chain"),  # which a shape by confidence would bias
        ({"tree": "chain"}, "chain"),
    ],
)
def test_trees_grow_on_a_cpu_where_the_policy_may_choose(
    models: Models, heads: Heads, more: dict[str, Any], tree: str
) -> None:
    (drafter,) = make_llm(
        models.target, {"model": heads["eagle3"], **more}
    ).engine.drafting.crew.members
    assert drafter._tree == tree  # type: ignore[attr-defined]
    assert bool(drafter.outlines(8)) == (tree == "confidence")


def layer_config(folder: str) -> dict[str, Any]:
    config = json.loads((Path(folder) / "config.json").read_text())
    layers = config.pop("transformer_layer_config")
    config.pop("speculators_model_type")
    return {**layers, **config}


def test_eagle3_of_its_authors_and_of_specforge(
    models: Models, heads: Heads, tmp_path: Path
) -> None:
    ours = heads["eagle3"]
    expected = written(make_llm(models.target, {"model": ours, "num_speculative_tokens": 4}))
    config = layer_config(ours)
    taps = config.pop("eagle_aux_hidden_state_layer_ids")
    config["num_hidden_layers"] = 40  # as one public checkpoint has it

    def old_name(name: str) -> str:
        return name.replace("layers.0.", "midlayer.")

    authors = config | {"eagle_config": {"eagle_aux_hidden_state_layer_ids": taps}}
    outputs = [tap - 1 for tap in taps]
    forge = config | {
        "architectures": ["LlamaForCausalLMEagle3"],
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": outputs},
    }
    for i, given in enumerate((authors, forge)):
        folder = rewritten(ours, tmp_path / str(i), old_name, given, "pytorch_model.bin")
        llm = make_llm(models.target, {"model": folder, "num_speculative_tokens": 4})
        assert written(llm) == expected
        assert llm.engine.drafter.needs_hidden == tuple(taps)


def test_medusa_as_vllm_has_it(models: Models, heads: Heads, tmp_path: Path) -> None:
    ours = heads["medusa reduced"]
    expected = written(make_llm(models.target, {"model": ours, "num_speculative_tokens": 3}))
    folder = tmp_path / "vllm"
    folder.mkdir()
    tensors = load_file(Path(ours) / "model.safetensors")
    renamed = {
        re.sub(r"^(\d+)\.(\d+)\.linear\.", r"blocks.\1.layers.\2.", name): tensor
        for name, tensor in tensors.items()
    }
    d2t = renamed.pop("d2t")
    renamed["token_map"] = d2t + torch.arange(len(d2t))
    torch.save(renamed, folder / "medusa_lm_head.pt")
    (folder / "config.json").write_text(json.dumps({"num_heads": 3, "num_hidden_layers": 1}))
    llm = make_llm(models.target, {"model": str(folder), "num_speculative_tokens": 3})
    assert written(llm) == expected


@pytest.mark.parametrize("variant", ["dspark gated", "dflash"])
def test_dflash_and_dspark_of_their_authors(
    models: Models, heads: Heads, tmp_path: Path, variant: str
) -> None:
    ours = heads[variant]
    expected = written(make_llm(models.target, {"model": ours, "num_speculative_tokens": 4}))
    config = layer_config(ours)
    outputs = [tap - 1 for tap in config.pop("aux_hidden_state_layer_ids")]
    del config["sample_from_anchor"]
    if variant == "dflash":
        config["dflash_config"] = {
            "target_layer_ids": outputs, "mask_token_id": config.pop("mask_token_id")
        }  # fmt: skip
    else:
        config["target_layer_ids"] = outputs
    folder = rewritten(ours, tmp_path / "authors", config=config)
    llm = make_llm(models.target, {"model": folder, "num_speculative_tokens": 4})
    assert written(llm) == expected


# ---- what does not fit ----


def damaged(source: str, folder: Path, change: Callable[[Tensors], Any]) -> str:
    shutil.copytree(source, folder)
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file({k: v.contiguous() for k, v in tensors.items()}, folder / "model.safetensors")
    return str(folder)


DAMAGES: dict[str, tuple[str, Callable[[Tensors], Any], str]] = {
    "missing": ("eagle3", lambda t: t.pop("norm.weight"), r"missing: norm\.weight"),
    "missing d2t": ("eagle3", lambda t: t.pop("d2t"), r"missing: d2t"),
    "unexpected": ("eagle3", lambda t: t.update(odd=torch.ones(1)), "unexpected: odd"),
    "misshapen": (
        "dspark",
        lambda t: t.update({"norm.weight": torch.ones(7)}),
        r"misshapen: norm\.weight \[7\] instead of \[32\]",
    ),
    "ids for offsets": (
        "eagle3",
        lambda t: t.update(d2t=t["d2t"] + torch.arange(240)),
        "must hold offsets",
    ),
    "t2d of others": (
        "eagle3",
        lambda t: t.update(t2d=torch.arange(320) < 240),
        "d2t and t2d name different tokens",
    ),
    "another width": (
        "eagle3",
        lambda t: t.update({"fc.weight": torch.ones(32, 80)}),
        "reads 80 numbers, but 3 states of this target have 96",
    ),
    "another vocabulary": (
        "dspark",
        lambda t: t.update({"markov_head.markov_w1.weight": torch.ones(300, 8)}),
        "knows 300 tokens, and the target has 320",
    ),
    "a head too many": (
        "medusa",
        lambda t: t.update({"3.0.linear.weight": torch.ones(32, 32)}),
        "names 3 heads, and its tensors are of 4",
    ),
}


@pytest.mark.parametrize("case", list(DAMAGES))
def test_tensors_that_do_not_fit_are_named(
    models: Models, heads: Heads, tmp_path: Path, case: str
) -> None:
    variant, change, message = DAMAGES[case]
    folder = damaged(heads[variant], tmp_path / "damaged", change)
    with pytest.raises(ModelError, match=message):
        make_llm(models.target, {"model": folder})


CONFIGS: dict[str, tuple[str, dict[str, Any], str]] = {
    "layers": (
        "eagle3",
        {"eagle_aux_hidden_state_layer_ids": [0, 1, 5]},
        r"layers \[0, 1, 5\], and the target has layers 0 to 1",
    ),
    "default layers": ("eagle3", {"eagle_aux_hidden_state_layer_ids": None}, "made for another"),
    "architecture": (
        "dspark",
        {"speculators_config": {"verifier": {"name_or_path": "x/Y", "architectures": ["Y"]}}},
        r"made for x/Y \(Y\), and the target is LlamaForCausalLM",
    ),
    "mask": ("dspark", {"mask_token_id": 320}, "mask_token_id=320; it must be 0 to 319"),
    "block": ("dspark", {"block_size": None}, "block_size=None"),
    "markov": ("dspark", {"markov_head_type": "odd"}, "Markov head is 'odd'"),
    "method": ("dspark", {"speculators_model_type": "peagle"}, "it is 'peagle' in the speculators"),
    "windows": (
        "eagle",
        {"layer_types": ["sliding_attention"], "sliding_window": 4},
        "sliding windows",
    ),
    "heads": ("eagle", {"num_attention_heads": None}, "lacks num_attention_heads"),
}


@pytest.mark.parametrize("case", list(CONFIGS))
def test_configurations_that_do_not_fit_are_named(
    models: Models, heads: Heads, tmp_path: Path, case: str
) -> None:
    variant, changes, message = CONFIGS[case]
    folder = Path(shutil.copytree(heads[variant], tmp_path / "wrong"))
    edit_json(folder / "config.json", **changes)
    with pytest.raises(ModelError, match=message):
        make_llm(models.target, {"model": str(folder)})


def test_another_target_is_refused(heads: Heads, tmp_path: Path) -> None:
    other = make_tiny("llama", tmp_path / "wide", hidden_size=48)
    for variant in ("eagle3", "eagle", "medusa", "dspark"):
        with pytest.raises(ModelError, match="made for another model"):
            make_llm(str(other), {"model": heads[variant]})


def test_the_wrong_method_names_the_right_one(models: Models, heads: Heads) -> None:
    with pytest.raises(ConfigError, match=r"holds DFlash/DSpark, .* give method 'dspark'"):
        make_llm(models.target, {"method": "eagle3", "model": heads["dspark"]})
    with pytest.raises(ConfigError, match=r"holds an ordinary model, .* give method 'draft_model'"):
        make_llm(models.target, {"method": "medusa", "model": models.noisy})
    with pytest.raises(ConfigError, match="needs a 'model'"):
        make_llm(models.target, "eagle3")
    assert make_llm(models.target, {"method": "dflash", "model": heads["dflash"]})


def test_a_truncated_file_is_called_damaged(models: Models, heads: Heads, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(heads["eagle3"], tmp_path / "cut"))
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:2000])
    with pytest.raises(ModelError, match="are damaged"):
        make_llm(models.target, {"model": str(folder)})


def test_doctor_tells_what_it_is(
    models: Models, heads: Heads, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["doctor", "--model", models.target, "--dtype", "float32", "--json", "--drafter"]
    assert main.run([*argv, heads["eagle3"]]) == 0
    found = json.loads(capsys.readouterr().out)
    detail = next(f["detail"] for f in found["findings"] if f["name"] == "drafter")
    assert "EAGLE-3, speculators format" in detail and "writes 240 tokens" in detail
    assert found["measurement"]["drafts_share"] > 0.5
    broken = damaged(heads["eagle3"], tmp_path / "damaged", DAMAGES["missing"][1])
    assert main.run([*argv, broken]) == 1
    found = json.loads(capsys.readouterr().out)
    assert "missing: norm.weight" in found["findings"][-1]["detail"]


def test_pickles_are_fetched_for_drafters_only(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A model without safetensors is refused anyway, so its gigabytes stay where they are."""
    fetched: list[bool] = []

    def locate(name: str, revision: Any, pickles: bool = False) -> Path:
        fetched.append(pickles)
        return tmp_path

    monkeypatch.setattr(files_module, "locate", locate)
    for config, sure, expected in (
        ({"num_hidden_layers": 30}, False, [False]),
        ({"num_hidden_layers": 30}, True, [False, True]),
        ({"num_hidden_layers": 1}, False, [False, True]),
        ({"medusa_num_heads": 3}, False, [False, True]),
    ):
        (tmp_path / "config.json").write_text(json.dumps(config))
        fetched.clear()
        files_module.Files.of("someone/something", sure=sure)
        assert fetched == expected


def test_auto_has_no_two_members_of_a_kind(models: Models, heads: Heads) -> None:
    """What is learned of one would be taken for the other's."""
    two = [{"method": "eagle3", "model": heads["eagle3"]}, {"model": heads["eagle3"]}]
    with pytest.raises(ConfigError, match="two members of the kind 'eagle3'"):
        make_llm(models.target, {"method": "auto", "drafters": two})


def test_a_report_tells_what_a_drafter_can(
    models: Models, heads: Heads, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What training has found out; a report of another kind is no reason not to draft."""
    folder = Path(rewritten(heads["eagle3"], tmp_path / "drafter"))

    def loaded(report: str) -> LLM:
        (folder / "report.json").write_text(report)
        return make_llm(models.target, {"method": "eagle3", "model": str(folder)})

    llm = loaded('{"held out": [{"depths": [0.1]}, {"depths": [0.9, 0.5, 0.0, 0.0]}]}')
    assert llm.engine.drafter.record == (0.9, 0.5, 0.0)
    assert llm.engine.policy.tracks["eagle3"].hope == pytest.approx(0.9, abs=0.02)
    wrong = (
        '{"held out": []}',
        '{"held out": [{"depths": [2.0]}]}',
        '{"held out": [{"depths": ""}]}',
    )
    for broken in ("{", "[]", *wrong):
        caplog.clear()
        assert loaded(broken).engine.drafter.record == ()
        assert "report.json" in caplog.text
    (folder / "report.json").unlink()
    caplog.clear()
    assert make_llm(models.target, {"model": str(folder)}).engine.drafter.record == ()
    assert not caplog.text


def test_where_passes_run_ahead_a_report_promises_nothing(
    models: Models, heads: Heads, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(rewritten(heads["eagle3"], tmp_path / "drafter"))
    (folder / "report.json").write_text('{"held out": [{"depths": [0.9]}]}')
    llm = make_llm(models.target, {"method": "eagle3", "model": str(folder)})
    crew = llm.engine.drafting.crew
    llm.engine.policy.standing._promised.clear()
    monkeypatch.setattr(type(crew._runner), "runs_ahead", True)
    crew._bind(crew.root)
    assert not llm.engine.policy.standing._promised
    monkeypatch.setattr(type(crew._runner), "runs_ahead", False)
    crew._bind(crew.root)
    assert llm.engine.policy.standing._promised == {"eagle3": (0.9,)}
