"""Writes the folders beside this file: tiny drafters as `speculators` itself makes, saves and runs
them, with what they answer. Run by hand, where that package (0.9.0) can be imported: it asks for an
older transformers than ours, for torchvision and torchaudio, so the tests do without it."""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from speculators.config import SpeculatorsConfig, VerifierConfig
from speculators.models.dspark import DSparkDraftModel, DSparkSpeculatorConfig
from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig
from speculators.proposals.greedy import GreedyTokenProposalConfig
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


def save(model: Any, folder: str, **expected: torch.Tensor) -> None:
    model.save_pretrained(HERE / folder)
    (HERE / folder / "config.py").unlink()  # a copy of the package's own code
    tensors = {name: tensor.detach().contiguous() for name, tensor in expected.items()}
    save_file(tensors, HERE / folder / "expected")


@torch.inference_mode()
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
    tokens, states = text()
    logits: list[torch.Tensor] = []
    hook = model.lm_head.register_forward_hook(lambda m, x, y: logits.append(y[0]))
    one_text = torch.zeros(1, TOKENS - 1, dtype=torch.int64)
    model(states[None, :-1], tokens[None, 1:], one_text, ttt_steps=DEPTH)
    hook.remove()
    save(model, folder, tokens=tokens, states=states, logits=torch.stack(logits))


@torch.inference_mode()
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
    tokens, states = text()
    mask, one_text = torch.ones(1, TOKENS), torch.zeros(1, TOKENS, dtype=torch.int64)
    last = torch.zeros(1, TOKENS, WIDTH)
    hidden, logits, _, _, places = model._backbone_forward(
        states[None], tokens[None], mask, last, one_text, max_anchors=5
    )
    before = tokens[places].view(5, 4)  # as in the model's own forward
    if not config.sample_from_anchor:
        before = torch.cat([before[:, :1], before[:, :-1]], 1)
    blocks = hidden.view(5, 4, -1)
    known = model.markov_head.prev_embeddings(before)
    logits = logits.view(5, 4, -1) + model.markov_head.block_bias(
        prev_token_ids=before, hidden_states=blocks
    )
    confidence = model.confidence_head(torch.cat([blocks, known], -1)).sigmoid()
    anchors = places.view(5, 4)[:, 0]
    save(
        model, folder, tokens=tokens, states=states, anchors=anchors, logits=logits,
        confidence=confidence, embeddings=model.embed_tokens.weight,
    )  # fmt: skip


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
