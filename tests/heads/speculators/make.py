"""Writes the folders beside this file: tiny drafters as `speculators` itself makes, saves and runs
them, and as `outrider export` writes them and that package runs them, with what they answer. Run by
hand from the repository's root, `python -m tests.heads.speculators.make`, where that package
(0.9.0) and ours can be imported: it asks for an older transformers than we test with, for
torchvision and torchaudio, so the tests do without it."""

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from speculators import SpeculatorModel, SpeculatorModelConfig
from speculators.config import SpeculatorsConfig, VerifierConfig
from speculators.models.dspark import DSparkDraftModel, DSparkSpeculatorConfig
from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig
from speculators.proposals.greedy import GreedyTokenProposalConfig
from tests.export.exported import EXPORTED, NAME, write_exported, write_target
from transformers import LlamaConfig, Qwen3Config

HERE = Path(__file__).parent
TOKENS, DEPTH = 13, 3
VOCABULARY, DRAFTED, WIDTH, TAPS = 48, 32, 16, [1, 2, 4]
LAYERS = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "intermediate_size": 24,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "rope_theta": 300.0,
    "rms_norm_eps": 1e-5,
}
SHARED = {"draft_vocab_size": DRAFTED}


def about(algorithm: str) -> SpeculatorsConfig:
    return SpeculatorsConfig(
        algorithm=algorithm,
        proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=DEPTH)],
        default_proposal_method="greedy",
        verifier=VerifierConfig(name_or_path=None, architectures=["LlamaForCausalLM"]),
    )


def stirred(model: Any) -> Any:
    """Random weights everywhere, and a draft vocabulary of two thirds of the tokens."""
    torch.manual_seed(5)
    for name, parameter in model.named_parameters():
        if "norm" in name:
            parameter.data.uniform_(0.5, 1.5)
        else:
            parameter.data.normal_(std=0.6 * parameter.shape[-1] ** -0.5 + 0.1)
    t2d = torch.arange(VOCABULARY) % 3 != 1
    d2t = t2d.nonzero()[:, 0] - torch.arange(DRAFTED)
    model.load_vocab_mappings(t2d, d2t)
    return model.eval()


def text() -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids [TOKENS] and states [TOKENS, taps * width]."""
    torch.manual_seed(9)
    return torch.randint(VOCABULARY, (TOKENS,)), torch.randn(TOKENS, len(TAPS) * WIDTH)


def save(model: Any, folder: str, expected: dict[str, torch.Tensor]) -> None:
    model.save_pretrained(HERE / folder)
    (HERE / folder / "config.py").unlink()  # a copy of the package's own code
    save_expected(folder, expected)


def save_expected(folder: str, expected: dict[str, torch.Tensor]) -> None:
    tensors = {name: tensor.detach().contiguous() for name, tensor in expected.items()}
    save_file(tensors, HERE / folder / "expected")


def eagle3(folder: str, layers: Any, **flags: bool) -> None:
    layers._attn_implementation = "eager"
    config = Eagle3SpeculatorConfig(
        transformer_layer_config=layers,
        eagle_aux_hidden_state_layer_ids=TAPS,
        speculators_config=about("eagle3"),
        **SHARED,
        **flags,
    )
    model = stirred(Eagle3DraftModel(config))
    save(model, folder, eagle3_answers(model))


@torch.inference_mode()
def eagle3_answers(model: Any) -> dict[str, torch.Tensor]:
    tokens, states = text()
    logits: list[torch.Tensor] = []
    hook = model.lm_head.register_forward_hook(lambda m, x, y: logits.append(y[0]))
    one_text = torch.zeros(1, TOKENS - 1, dtype=torch.int64)
    model(states[None, :-1], tokens[None, 1:], one_text, ttt_steps=DEPTH)
    hook.remove()
    return {"tokens": tokens, "states": states, "logits": torch.stack(logits)}


def dspark(folder: str, **options: Any) -> None:
    layers = Qwen3Config(**LAYERS, num_hidden_layers=2)
    layers._attn_implementation = "eager"
    config = DSparkSpeculatorConfig(
        transformer_layer_config=layers,
        block_size=4,
        aux_hidden_state_layer_ids=TAPS,
        mask_token_id=VOCABULARY - 1,
        markov_rank=6,
        speculators_config=about("dspark"),
        **SHARED,
        **options,
    )
    model = stirred(DSparkDraftModel(config))
    save(model, folder, dspark_answers(model))


@torch.inference_mode()
def dspark_answers(model: Any) -> dict[str, torch.Tensor]:
    tokens, states = text()
    mask, one_text = torch.ones(1, TOKENS), torch.zeros(1, TOKENS, dtype=torch.int64)
    last = torch.zeros(1, TOKENS, WIDTH)
    hidden, logits, _, _, places = model._backbone_forward(
        states[None], tokens[None], mask, last, one_text, max_anchors=5
    )
    before = tokens[places].view(5, 4)  # as in the model's own forward
    if not model.config.sample_from_anchor:
        before = torch.cat([before[:, :1], before[:, :-1]], 1)
    blocks, logits = hidden.view(5, 4, -1), logits.view(5, 4, -1)
    answers = {
        "tokens": tokens,
        "states": states,
        "anchors": places.view(5, 4)[:, 0],
        "embeddings": model.embed_tokens.weight,
    }
    if getattr(model, "markov_head", None) is None:  # DFlash
        return answers | {"logits": logits, "output": model.lm_head.weight}
    known = model.markov_head.prev_embeddings(before)
    logits = logits + model.markov_head.block_bias(prev_token_ids=before, hidden_states=blocks)
    confidence = model.confidence_head(torch.cat([blocks, known], -1)).sigmoid()
    return answers | {"logits": logits, "confidence": confidence}


# ---- what `outrider export` writes ----


def exported(target: Path, name: str) -> None:
    """The package reads it, with what it takes from the target, and answers."""
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    write_exported(name, target, folder)
    config: Any = SpeculatorModelConfig.from_pretrained(folder)
    config.transformer_layer_config._attn_implementation = "eager"
    model = SpeculatorModel.from_pretrained(folder, config=config, dtype=torch.float32).eval()
    held = model.state_dict()
    for key, tensor in load_file(folder / "model.safetensors").items():
        assert torch.equal(held[key], tensor), key
    known = load_file(target / "model.safetensors")["model.embed_tokens.weight"]
    assert torch.equal(model.embed_tokens.weight, known)  # and not what memory happened to hold
    answers = (eagle3_answers if EXPORTED[name][0] == "eagle3" else dspark_answers)(model)
    assert not any(tensor.isnan().any() for tensor in answers.values())
    save_expected(name, answers)
    file = folder / "config.json"  # the target's name, and not where it happened to be
    file.write_text(file.read_text().replace(str(target.resolve()), NAME))


if __name__ == "__main__":
    eagle3("eagle3", LlamaConfig(**LAYERS, num_hidden_layers=1))
    eagle3(
        "eagle3_normed",
        LlamaConfig(**LAYERS, num_hidden_layers=1),
        norm_before_residual=True, norm_before_fc=True,
    )  # fmt: skip
    eagle3(
        "eagle3_deep", Qwen3Config(**LAYERS, num_hidden_layers=2), fc_norm=True, norm_output=True
    )
    dspark("dspark")
    dspark("dspark_gated", markov_head_type="gated", sample_from_anchor=False)
    dspark("dspark_rnn", markov_head_type="rnn")
    with TemporaryDirectory() as place:
        made = write_target(Path(place) / NAME)
        for each in EXPORTED:
            exported(made, each)
