"""Loading: names, damaged files, dtypes, refusals and rotary factors, all without a network."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from huggingface_hub.errors import LocalEntryNotFoundError
from safetensors.torch import load_file, save_file
from tests.tiny import EOS, edit_json, make_tiny, make_tokenizer, tiny_config
from tests.tiny_gguf import make_gguf
from transformers import AutoConfig, AutoModelForCausalLM

from outrider.core.errors import ConfigError, ModelError, OutriderError
from outrider.model import loading, source
from outrider.model.loading import fix_rotary, load_model, refuse_unsupported

IDS = torch.tensor([[5, 9, 40, 7, 101, 33]])


def message(error: pytest.ExceptionInfo[OutriderError]) -> str:
    text = str(error.value)
    assert "\n" not in text
    return text


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    folder = make_tiny("llama", tmp_path / "llama")
    make_tokenizer(folder)
    return folder


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


def test_a_folder_loads_as_transformers_loads_it(llama: Path) -> None:
    loaded = load_model(str(llama), dtype="float32")
    expected = AutoModelForCausalLM.from_pretrained(llama)
    assert torch.equal(loaded.model(IDS).logits, expected(IDS).logits)
    assert not loaded.model.training
    assert not any(parameter.requires_grad for parameter in loaded.model.parameters())
    assert loaded.context_length == 512
    assert loaded.eos_ids == {EOS}
    assert loaded.tokenizer.decode(loaded.tokenizer("a ride, ünder 12\n").input_ids) == (
        "a ride, ünder 12\n"
    )


@pytest.mark.parametrize("family", ["gpt2", "opt", "gpt_neox", "gemma3_text", "mixtral"])
def test_other_families_load(family: str, tmp_path: Path) -> None:
    loaded = load_model(str(make_tiny(family, tmp_path / family)), dtype="bf16")
    assert loaded.tokenizer is None
    assert loaded.context_length == 512
    assert {parameter.dtype for parameter in loaded.model.parameters()} == {torch.bfloat16}


def test_the_end_ids_of_all_parts_count(llama: Path) -> None:
    edit_json(llama / "generation_config.json", eos_token_id=[7, 8])
    edit_json(llama / "config.json", eos_token_id=9)
    assert load_model(str(llama)).eos_ids == {7, 8, 9, EOS}


def test_the_tokenizer_can_come_from_elsewhere(llama: Path, tmp_path: Path) -> None:
    bare = make_tiny("gpt2", tmp_path / "bare")
    assert load_model(str(bare)).tokenizer is None
    assert load_model(str(bare), tokenizer=str(llama)).tokenizer is not None
    with pytest.raises(ModelError) as error:
        load_model(str(llama), tokenizer=str(bare))
    assert "no tokenizer" in message(error)


def test_dtype_and_device(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    monkeypatch.setattr(loading, "_cpu_has_bf16", lambda: True)
    assert loading.choose_dtype("auto", cpu) == torch.bfloat16
    monkeypatch.setattr(loading, "_cpu_has_bf16", lambda: False)
    assert loading.choose_dtype("auto", cpu) == torch.float32
    assert loading.choose_dtype("auto", cuda) == torch.bfloat16
    assert loading.choose_dtype(torch.float16, cpu) == torch.float16
    for wrong in ("float31", torch.int8):
        with pytest.raises(ConfigError) as error:
            loading.choose_dtype(wrong, cpu)
        assert "float32" in message(error)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert loading.choose_device("auto") == cpu
    for wrong in ("cuda", "gpu"):
        with pytest.raises(ConfigError) as error:
            loading.choose_device(wrong)
        assert repr(wrong) in message(error)


@pytest.mark.parametrize(
    ("cpu", "expected"),
    [
        ({}, False),  # a torch that tells nothing
        ({"get_capabilities": lambda: {"avx512_f": True}}, False),
        ({"get_capabilities": lambda: {"amx_bf16": True}}, True),
        ({"get_capabilities": lambda: {"bf16": True}}, True),  # ARM
        ({"_is_avx512_bf16_supported": lambda: True}, True),  # older torch
        ({"_is_amx_tile_supported": lambda: False}, False),
    ],
)
def test_which_cpus_compute_in_bf16(
    cpu: dict[str, Any], expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "cpu", SimpleNamespace(**cpu))
    assert loading._cpu_has_bf16() is expected


# Names


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("./nowhere", "model folder './nowhere' does not exist"),
        (os.sep + "nowhere", "does not exist"),
        ("a/b/c", "model folder 'a/b/c' does not exist"),
        ("nowhere.gguf", "GGUF file 'nowhere.gguf' does not exist"),
        ("smolm2-135m", "did you mean 'smollm2-135m'?"),
    ],
)
def test_wrong_names(name: str, expected: str) -> None:
    with pytest.raises(ModelError) as error:
        load_model(name)
    assert expected in message(error)


def test_no_model_in_the_folder(tmp_path: Path) -> None:
    with pytest.raises(ModelError) as error:
        load_model(str(tmp_path))
    assert "no config.json" in message(error)
    (tmp_path / "x.gguf").write_bytes(b"")
    with pytest.raises(ModelError) as error:
        load_model(str(tmp_path))
    assert "x.gguf" in message(error)
    (tmp_path / "weights.bin").write_bytes(b"")
    with pytest.raises(ModelError) as error:
        load_model(str(tmp_path / "weights.bin"))
    assert "not a .gguf" in message(error)


def test_hub_ids(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def download(name: str, *, revision: str | None, **patterns: Any) -> str:
        calls.append((name, revision, "*.safetensors" in patterns["allow_patterns"]))
        return str(llama)

    monkeypatch.setattr(source, "snapshot_download", download)
    load_model("someone/model@v2")
    assert calls == [("someone/model", "v2", False), ("someone/model", "v2", True)]
    load_model("someone/model", revision="main")
    assert calls[-1] == ("someone/model", "main", True)
    # A refused architecture costs no download of weights.
    calls.clear()
    edit_json(llama / "config.json", model_type="mamba")
    with pytest.raises(ModelError):
        load_model("someone/model")
    assert calls == [("someone/model", None, False)]


def test_an_unreachable_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*args: Any, **options: Any) -> str:
        raise LocalEntryNotFoundError("no connection\nat all")

    monkeypatch.setattr(source, "snapshot_download", offline)
    with pytest.raises(ModelError) as error:
        load_model("someone/model")
    assert "hub cannot be reached" in message(error)
    with pytest.raises(ModelError) as error:
        load_model("smollm2-135m", revision="main")
    assert "no revisions" in message(error)


# Damaged files


def test_truncated_safetensors(llama: Path) -> None:
    weights = llama / "model.safetensors"
    whole = weights.read_bytes()
    for length in (0, 4, 100, len(whole) // 2, len(whole) - 1):
        weights.write_bytes(whole[:length])
        with pytest.raises(ModelError) as error:
            load_model(str(llama))
        assert "damaged or truncated" in message(error), length


def test_missing_weights(llama: Path) -> None:
    weights = llama / "model.safetensors"
    state = load_file(weights)
    del state["model.layers.1.mlp.up_proj.weight"]
    save_file(state, weights, metadata={"format": "pt"})
    with pytest.raises(ModelError) as error:
        load_model(str(llama))
    assert "model.layers.1.mlp.up_proj.weight" in message(error)
    weights.unlink()
    with pytest.raises(ModelError) as error:
        load_model(str(llama))
    assert "safetensors" in message(error)


def test_damaged_texts(llama: Path) -> None:
    (llama / "tokenizer.json").write_text("{")
    with pytest.raises(ModelError) as error:
        load_model(str(llama))
    assert "tokenizer" in message(error)
    (llama / "config.json").write_text("{")
    with pytest.raises(ModelError) as error:
        load_model(str(llama))
    assert "config.json" in message(error)


# GGUF


def test_a_gguf_gives_the_model_it_was_made_from(gguf: Path) -> None:
    loaded = load_model(str(gguf), dtype="float32")
    original = AutoModelForCausalLM.from_pretrained(gguf.with_suffix(""))
    torch.testing.assert_close(loaded.model(IDS).logits, original(IDS).logits)
    assert not hasattr(loaded.model.config, "quantization_config")
    assert loaded.eos_ids == {EOS}
    assert loaded.context_length == 512


def test_the_tokenizer_of_a_gguf(gguf: Path) -> None:
    tokenizer = load_model(str(gguf)).tokenizer
    text = "The rider rides\n\n12 miles,  ünder\t3 <|end|>"
    assert tokenizer.decode(tokenizer(text).input_ids) == text
    assert tokenizer.convert_tokens_to_ids("<|end|>") in tokenizer(text).input_ids
    chat = [{"role": "user", "content": "hi"}]
    prompt = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert prompt == "<|user|>hi<|end|>\n<|assistant|>"
    # Split off before the spaces are looked at: two newlines before a digit stay together.
    pieces = tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str("a\n\n12")
    assert [piece for piece, _ in pieces] == ["a", "ĊĊ", "1", "2"]


def test_a_truncated_gguf(gguf: Path, tmp_path: Path) -> None:
    whole = gguf.read_bytes()
    broken = tmp_path / "broken.gguf"
    for length in (0, 3, 8, 200, 5000, len(whole) // 2, len(whole) - 4096):
        broken.write_bytes(whole[:length])
        with pytest.raises(ModelError) as error:
            load_model(str(broken))
        assert "download it again" in message(error), length


def test_a_gguf_without_what_reads_it(gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outrider.model.gguf_file.find_spec", lambda name: None)
    with pytest.raises(ModelError) as error:
        load_model(str(gguf))
    assert "pip install gguf" in message(error) and "damaged" not in message(error)


def test_a_part_of_a_gguf(gguf: Path, tmp_path: Path) -> None:
    part = tmp_path / "big-00001-of-00003.gguf"
    part.write_bytes(gguf.read_bytes())
    with pytest.raises(ModelError) as error:
        load_model(str(part))
    assert "gguf-split" in message(error)


# Refusals


@pytest.mark.parametrize(
    ("family", "reason"),
    [
        ("t5", "encoder-decoder"),
        ("mamba", "recurrent"),
        ("stablelm", "attention"),
        ("falcon", "attention"),
        ("bloom", "attention"),
        ("gptj", "attention"),
    ],
)
def test_refused_families(family: str, reason: str, tmp_path: Path) -> None:
    tiny_config(family).save_pretrained(tmp_path)  # no weights: they must not be looked for
    with pytest.raises(ModelError) as error:
        load_model(str(tmp_path))
    assert family in message(error)
    assert reason in message(error)


@pytest.mark.parametrize(
    ("model_type", "options", "reason"),
    [
        ("llama4_text", {}, "chunks"),
        ("gemma3", {}, "multimodal"),
        ("llava", {}, "multimodal"),
        ("rwkv", {}, "recurrent"),
        ("recurrent_gemma", {}, "recurrent"),
        ("jamba", {}, "recurrent"),
        ("qwen3_next", {}, "recurrent"),
        ("bert", {}, "both sides"),
        ("gemma3_text", {"use_bidirectional_attention": True}, "both sides"),
        ("vit", {}, "no causal language model"),
        (
            "lfm2",
            {"num_hidden_layers": 2, "layer_types": ["conv", "full_attention"]},
            "recurrent",
        ),
    ],
)
def test_refused_configurations(model_type: str, options: dict[str, Any], reason: str) -> None:
    with pytest.raises(ModelError) as error:
        refuse_unsupported(AutoConfig.for_model(model_type, **options))
    assert reason in message(error)


# Rotary factors


def longrope(short: float, long: float) -> dict[str, Any]:
    return {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [short] * 4,
        "long_factor": [long] * 4,
        "original_max_position_embeddings": 64,
    }


DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}


def rotary_at(model: Any, positions: list[int], layer: str | None = None) -> torch.Tensor:
    """[positions, rotary dimensions]: the cosines of one pass over `positions`."""
    options = [layer] if layer else []
    x = torch.zeros(1, len(positions), 8)
    return model.model.rotary_emb(x, torch.tensor([positions]), *options)[0][0]


@pytest.mark.parametrize(
    ("family", "rope", "max_len", "twin"),
    [
        ("phi3", longrope(1.0, 4.0), 64, longrope(1.0, 1.0)),
        ("phi3", longrope(1.0, 4.0), 65, longrope(4.0, 4.0)),
        ("llama", DYNAMIC, 512, None),
        ("llama", DYNAMIC, 2000, None),
    ],
)
def test_fixed_factors(
    family: str, rope: dict[str, Any], max_len: int, twin: dict[str, Any] | None
) -> None:
    options = {"original_max_position_embeddings": 64} if family == "phi3" else {}
    make = AutoModelForCausalLM.from_config
    model = make(tiny_config(family, rope_parameters=rope, **options))
    loose = rotary_at(make(tiny_config(family, rope_parameters=rope, **options)), [3, max_len - 1])
    fix_rotary(model, max_len)
    # What transformers computes for a text of that length …
    assert torch.equal(rotary_at(model, [3, max_len - 1]), loose)
    # … and the same for every other length, in any order.
    for positions in ([3], [3, 5000], [3, 10], [3, 70]):
        assert torch.equal(rotary_at(model, positions)[0], loose[0])
    if twin:
        other = make(tiny_config(family, rope_parameters=twin, **options))
        assert torch.equal(rotary_at(other, [3])[0], loose[0])


def test_fixed_factors_of_one_kind_of_layer() -> None:
    rope = {
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        "full_attention": DYNAMIC,
    }
    model = AutoModelForCausalLM.from_config(tiny_config("gemma3_text", rope_parameters=rope))
    before = rotary_at(model, [3, 900], "full_attention")
    fix_rotary(model, 901)
    for positions in ([3], [3, 5000], [3, 600]):
        assert torch.equal(rotary_at(model, positions, "full_attention")[0], before[0])
        rotary_at(model, positions, "sliding_attention")


def test_plain_rotary_is_left_alone() -> None:
    model = AutoModelForCausalLM.from_config(tiny_config("llama"))
    before = model.model.rotary_emb.inv_freq
    fix_rotary(model, 100)
    assert model.model.rotary_emb.inv_freq is before
    fix_rotary(AutoModelForCausalLM.from_config(tiny_config("gpt2")), 100)


def test_a_rotary_that_cannot_be_fixed() -> None:
    model = AutoModelForCausalLM.from_config(tiny_config("llama", rope_parameters=DYNAMIC))
    model.model.rotary_emb = torch.nn.Identity()  # a module of which nothing is known
    with pytest.raises(ModelError) as error:
        fix_rotary(model, 100)
    assert "dynamic" in message(error)
