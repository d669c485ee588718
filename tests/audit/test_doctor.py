"""`outrider doctor`: the machine, the cache, and pairs that work or cannot."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.tiny import make_tiny, make_tokenizer

from outrider.audit.doctor import examine as examine_module
from outrider.audit.doctor import machine as machine_module
from outrider.audit.doctor import paths as paths_module
from outrider.audit.doctor.measure import Measurement
from outrider.cli import main
from outrider.model.packed import can_pack


def doctor(capsys, *argv):
    code = main.run(["doctor", *argv, "--json"])
    out, err = capsys.readouterr()
    return code, (json.loads(out) if out else None), err


def finding(found, name):
    return next(entry for entry in found["findings"] if entry["name"] == name)


def test_the_machine_alone(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path))
    code, found, _ = doctor(capsys)
    assert code == 0 and found["ok"] and found["findings"] == [] and found["measurement"] is None
    assert found["machine"]["cores"] >= 1 and found["machine"]["versions"]["torch"]
    assert {path["name"] for path in found["fast_paths"]} >= {"CUDA", "bfloat16", "all cores"}
    assert all(path["why"] for path in found["fast_paths"])
    assert found["cache"]["root"] == str(tmp_path)
    assert [model["state"] for model in found["cache"]["models"]] == ["absent"]
    (tmp_path / "zoo" / "smollm2-135m-0-0").mkdir(parents=True)
    assert doctor(capsys)[1]["cache"]["models"][0]["state"] == "damaged"
    assert main.run(["doctor"]) == 0
    shown = capsys.readouterr().out
    assert "instruction sets" in shown and "model cache" in shown


def test_instruction_sets_have_their_usual_names():
    flags = "fpu avx2 avx512f avx512_vnni amx_tile"
    assert machine_module._instructions(flags) == ["avx2", "avx512", "avx512-vnni", "amx"]
    assert machine_module._instructions("fp asimd bf16 i8mm") == ["neon", "bf16", "i8mm"]


def test_a_good_pair_is_measured(capsys, models):
    argv = ("--model", models.target, "--drafter", models.noisy, "--dtype", "float32")
    code, found, err = doctor(capsys, *argv)
    assert (code, err) == (0, "") and found["ok"]
    assert finding(found, "vocabularies")["detail"].startswith("same: 300 entries")
    assert finding(found, "model's tensors")["detail"] == "all there, none left over"
    paths = {path["name"]: path for path in found["model_fast_paths"]}
    for whose in ("", "draft model: "):
        columns = paths[f"{whose}weights for few rows"]
        assert columns["on"] and "15 of 15 layers" in columns["why"]
        assert paths[f"{whose}packed passes"]["on"] and not paths[f"{whose}CUDA graphs"]["on"]
        assert not paths[f"{whose}quantised weights"]["on"]
    memory = found["memory"]
    assert memory["slots"] == 4096 and memory["kv"] == 4096 * memory["bytes_per_slot"]
    assert memory["weights"] > 2 * 100_000  # two models in float32
    measured = found["measurement"]
    assert measured["tokens_per_pass"] > 1 and measured["drafts_share"] > 0.5
    assert "Speculation" in measured["verdict"] and measured["ratio"] > 0


def test_a_drafters_name(capsys, models):
    code, found, _ = doctor(capsys, "--model", models.target, "--drafter", "ngram")
    assert code == 0 and found["measurement"] is not None
    assert main.run(["doctor", "--model", models.target]) == 0
    shown = capsys.readouterr().out
    assert "acceptance length" in shown and "chat template" in shown
    assert "of this model" in shown and "memory on cpu: weights" in shown


def test_other_paths_on_a_cpu(capsys, models, monkeypatch):
    pytest.importorskip("torchao")
    monkeypatch.setattr(examine_module, "measure", lambda llm, progress: None)
    argv = ("--model", models.target, "--quantization", "int8", "--dtype", "bfloat16")
    paths = {path["name"]: path for path in doctor(capsys, *argv)[1]["model_fast_paths"]}
    packed = can_pack(torch.empty(0, dtype=torch.bfloat16))
    assert paths["weights for few rows"]["on"] == packed  # the head alone is not quantised
    assert ("1 of 15 layers" if packed else "float32") in paths["weights for few rows"]["why"]
    assert paths["quantised weights"]["on"]
    assert paths["quantised weights"]["why"] == "int8; activations and KV in bfloat16"


@pytest.mark.parametrize(
    ("way", "fused", "prompts", "on"),
    [
        ("CUDA graphs, fused layers", True, "graphs", 7),
        ("CUDA graphs, fused layers, batch-invariant", True, None, 6),
        ("CUDA graphs, unfused layers (no kernels for gemma2)", False, None, 4),
        ("eager (CUDA graphs, unfused layers failed: no memory)", None, None, 0),
    ],
)
def test_the_paths_of_a_model_on_a_gpu(monkeypatch, way, fused, prompts, on):
    """By a double of the runner; `fused` None: without graphs."""
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda device: (9, 0))
    graphs = None if fused is None else SimpleNamespace(fused=fused, prompts=prompts)
    loaded = SimpleNamespace(dtype="torch.bfloat16", quantization=None)
    runner = SimpleNamespace(
        device=torch.device("cuda"), graphs=graphs, way=way, loaded=loaded, replayed_rows=64
    )
    paths = paths_module._paths(runner, "")
    assert [path.name for path in paths] == [
        "quantised weights", "CUDA graphs", "fused layers", "prompts as graphs",
        "tree attention", "choice in the pass", "running ahead", "chained kernels",
    ]  # fmt: skip
    assert sum(path.on for path in paths) == on
    assert all(way in path.why for path in paths[1:] if not path.on)


def test_a_quantised_checkpoint_is_not_read_twice(capsys, models, tmp_path):
    """Some can be read on a GPU only, so its tensors are not looked at beforehand."""
    folder = Path(shutil.copytree(models.target, tmp_path / "quantised"))
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "gptq", "bits": 4}
    (folder / "config.json").write_text(json.dumps(config))
    code, found, _ = doctor(capsys, "--model", str(folder))
    assert code == 1 and "quantised (gptq)" in finding(found, "model's tensors")["detail"]
    assert "cannot be loaded" in finding(found, "running the pair")["detail"]


def test_a_missing_drafter_is_named(capsys, models):
    code, found, _ = doctor(capsys, "--model", models.target, "--drafter", "/no/such/drafter")
    assert code == 1 and not found["ok"] and found["measurement"] is None
    assert "/no/such/drafter" in finding(found, "drafter")["detail"]


def test_another_vocabulary_is_counted(capsys, models, tmp_path):
    other = make_tiny("llama", tmp_path / "other")
    tokenizer = make_tokenizer(other)
    tokenizer.add_tokens(["outlandish"])
    tokenizer.save_pretrained(other)
    code, found, _ = doctor(capsys, "--model", models.target, "--drafter", str(other))
    assert code == 0
    detail = finding(found, "vocabularies")["detail"]
    assert detail.startswith("different: 1 of 300 and 301") and "outlandish" in detail
    assert "translated" in detail


def test_a_padded_vocabulary_is_fine(capsys, models, tmp_path):
    padded = make_tiny("llama", tmp_path / "padded", vocab_size=384)
    make_tokenizer(padded)
    code, found, _ = doctor(capsys, "--model", models.target, "--drafter", str(padded))
    assert code == 0
    assert "padded to 320 and 384" in finding(found, "vocabularies")["detail"]


def test_missing_and_unexpected_tensors_are_named(capsys, models, tmp_path):
    damaged = Path(shutil.copytree(models.target, tmp_path / "damaged"))
    tensors = load_file(damaged / "model.safetensors")
    tensors["model.surplus.weight"] = tensors.pop("model.layers.1.mlp.up_proj.weight")
    save_file(tensors, damaged / "model.safetensors", metadata={"format": "pt"})
    code, found, _ = doctor(capsys, "--model", str(damaged))
    detail = finding(found, "model's tensors")["detail"]
    assert code == 1 and "1 missing (model.layers.1.mlp.up_proj.weight)" in detail
    assert "1 unexpected (model.surplus.weight)" in detail


@pytest.mark.parametrize("option", [("--device", "tpu9"), ("--dtype", "float33")])
def test_bad_input_exits_with_two(capsys, models, option):
    code, found, err = doctor(capsys, "--model", models.target, *option)
    assert code == 2 and found is None and err.count("\n") == 1 and option[1] in err


@pytest.mark.parametrize(
    ("tokens", "words"),
    [(3.0, "pays: 1.38"), (2.1, "neither pays nor hurts (0.97"), (1.5, "does not pay: 0.69")],
)
def test_the_verdict_in_words(tokens, words):
    # Per pass: 0.9 * (2.1 + 0.2) + 0.1 plain passes.
    assert words in Measurement(0.1, 0.21, 0.02, 0.9, tokens, 1.6, 5.0).verdict
    assert "proposed nothing" in Measurement(0.1, 0.1, 0.0, 0.0, 1.0, 1.0, 1.0).verdict
