"""The networks of trained drafters once more, from their papers: whole texts at once, no memory,
one text at a time, float32. Shares no code with the package; tensors are named as in the files."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import embedding, silu, softmax

Tensors = dict[str, Tensor]


def rms(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + epsilon).sqrt() * weight


def turned(x: Tensor, positions: Tensor, theta: float) -> Tensor:
    """Rotary embedding by complex numbers; x [rows, heads, size], halves are the two parts."""
    half = x.shape[-1] // 2
    speed = theta ** (-torch.arange(half) / half)
    angle = positions[:, None].float() * speed
    number = torch.complex(x[..., :half], x[..., half:]) * torch.polar(
        torch.ones_like(angle), angle
    ).unsqueeze(1)
    return torch.cat([number.real, number.imag], -1)


class Layer:
    """One layer's attention and MLP; `t` are its tensors."""

    def __init__(self, t: Tensors, config: dict[str, Any]) -> None:
        self.t, self.c = t, config
        self.size = config["head_dim"]

    def heads(self, x: Tensor, which: str, positions: Tensor) -> Tensor:
        """[rows, heads, size], normed and turned as queries and keys are."""
        y = (x @ self.t[f"self_attn.{which}_proj.weight"].T).unflatten(-1, (-1, self.size))
        if which == "v":
            return y
        norm = self.t.get(f"self_attn.{which}_norm.weight")
        if norm is not None:
            y = rms(y, norm, self.c["rms_norm_eps"])
        return turned(y, positions, self.c["rope_theta"])

    def mix(self, q: Tensor, k: Tensor, v: Tensor, visible: Tensor) -> Tensor:
        """visible [rows, keys] bool -> [rows, hidden size]."""
        times = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(times, 1), v.repeat_interleave(times, 1)
        scores = torch.einsum("qhd,khd->hqk", q, k) / self.size**0.5
        weights = softmax(scores.masked_fill(~visible, -torch.inf), -1)
        mixed = torch.einsum("hqk,khd->qhd", weights, v)
        return mixed.flatten(1) @ self.t["self_attn.o_proj.weight"].T

    def attend(self, x: Tensor, positions: Tensor) -> Tensor:
        """Causal; x [rows, whatever the projections read]."""
        q, k, v = (self.heads(x, which, positions) for which in "qkv")
        return self.mix(q, k, v, torch.ones(len(x), len(x), dtype=torch.bool).tril())

    def mlp(self, x: Tensor) -> Tensor:
        y = self.norm("post_attention_layernorm", x)
        gate, up = (y @ self.t[f"mlp.{name}_proj.weight"].T for name in ("gate", "up"))
        return x + (silu(gate) * up) @ self.t["mlp.down_proj.weight"].T

    def norm(self, name: str, x: Tensor) -> Tensor:
        return rms(x, self.t[f"{name}.weight"], self.c["rms_norm_eps"])


def layer(t: Tensors, index: int, config: dict[str, Any]) -> Layer:
    prefix = f"layers.{index}."
    return Layer({k.removeprefix(prefix): v for k, v in t.items() if k.startswith(prefix)}, config)


def continued(step: Any, features: Tensor, tokens: list[int], path: list[int]) -> Tensor:
    """The state [hidden size] after text and path of a head that goes on by its own states.
    features [text - 1, hidden size]: of all tokens but the last."""
    rows = list(tokens[1:])
    given = features
    for token in path:
        state = step(given, torch.tensor(rows))[-1]
        given = torch.cat([given, state[None]])
        rows.append(token)
    return step(given, torch.tensor(rows))[-1]


def over_target(logits: Tensor, d2t: Tensor | None, vocabulary: int) -> Tensor:
    """[vocabulary]: -inf for tokens that the head does not have."""
    if d2t is None:
        return logits
    full = torch.full((vocabulary,), -torch.inf)
    full[torch.arange(len(d2t)) + d2t] = logits
    return full


def eagle3(
    t: Tensors, config: dict[str, Any], states: Tensor, tokens: list[int], path: list[int]
) -> Tensor:
    """Logits [draft vocabulary] after text and path; states [text - 1, taps * hidden size]."""
    c = config["transformer_layer_config"]
    width, epsilon = c["hidden_size"], c["rms_norm_eps"]
    if config["norm_before_fc"]:
        states = rms(states, t["input_norm.weight"], epsilon)
    if config["fc_norm"]:
        parts = states.chunk(len(config["eagle_aux_hidden_state_layer_ids"]), -1)
        states = torch.cat(
            [rms(part, t[f"fc_norm.{i}.weight"], epsilon) for i, part in enumerate(parts)], -1
        )

    def step(features: Tensor, rows: Tensor) -> Tensor:
        first, positions = layer(t, 0, c), torch.arange(len(rows))
        e = first.norm("input_layernorm", embedding(rows, t["embed_tokens.weight"]))
        g = first.norm("hidden_norm", features)
        base = g if config["norm_before_residual"] else features
        x = first.mlp(base + first.attend(torch.cat([e, g], -1), positions))
        for index in range(1, c["num_hidden_layers"]):
            more = layer(t, index, c)
            x = more.mlp(x + more.attend(more.norm("input_layernorm", x), positions))
        return rms(x, t["norm.weight"], epsilon) if config["norm_output"] else x

    state = continued(step, states @ t["fc.weight"].T, tokens, path)
    assert state.shape == (width,)
    if not config["norm_output"]:
        state = rms(state, t["norm.weight"], epsilon)
    return state @ t["lm_head.weight"].T


def eagle(
    t: Tensors, config: dict[str, Any], output: Tensor, states: Tensor, tokens: list[int],
    path: list[int],
) -> Tensor:  # fmt: skip
    """Logits [vocabulary] after text and path; output [vocabulary, hidden size] is the target's,
    and so are the states [text - 1, hidden size]."""

    def step(features: Tensor, rows: Tensor) -> Tensor:
        only = layer(t, 0, config)
        both = torch.cat([embedding(rows, t["embed_tokens.weight"]), features], -1)
        x = both @ t["fc.weight"].T + t.get("fc.bias", torch.zeros(1))
        return only.mlp(x + only.attend(x, torch.arange(len(rows))))

    return continued(step, states, tokens, path) @ output.T


def medusa(t: Tensors, output: Tensor, states: Tensor, path: list[int]) -> Tensor:
    """Logits [vocabulary] after text and path; states [text - 1, hidden size]."""
    s, head = states[-1], len(path)
    number = 0
    while f"{head}.{number}.linear.weight" in t:
        w, b = t[f"{head}.{number}.linear.weight"], t.get(f"{head}.{number}.linear.bias", 0)
        s = s + silu(w @ s + b)
        number += 1
    return t.get(f"{head}.{number}.weight", output) @ s


def dspark(
    t: Tensors, config: dict[str, Any], target: Tensors, states: Tensor, tokens: list[int],
    path: list[int],
) -> Tensor:  # fmt: skip
    """Logits [draft vocabulary] after text and path; `target` has what the head borrows."""
    t = target | t
    c, block = config["transformer_layer_config"], config["block_size"]
    context = rms(states @ t["fc.weight"].T, t["hidden_norm.weight"], c["rms_norm_eps"])
    n = len(tokens) - 1  # the place of the anchor
    ids = torch.tensor([tokens[-1]] + [config["mask_token_id"]] * (block - 1))
    x = embedding(ids, t["embed_tokens.weight"])
    positions = torch.arange(n + block)
    for index in range(c["num_hidden_layers"]):
        one = layer(t, index, c)
        y = one.norm("input_layernorm", x)
        both = torch.cat([context, y])  # the text's states are not normed again
        keys, values = (one.heads(both, which, positions) for which in "kv")
        queries = one.heads(y, "q", positions[n:])
        x = one.mlp(x + one.mix(queries, keys, values, torch.ones(block, n + block).bool()))
    hidden = rms(x, t["norm.weight"], c["rms_norm_eps"])
    place = len(path) + (not config["sample_from_anchor"])
    logits = t["lm_head.weight"] @ hidden[place]
    if not config["markov_rank"]:
        return logits
    w1, text = t["markov_head.markov_w1.weight"], [*tokens, *path]
    known = w1[text[-1]]
    if config["markov_head_type"] == "gated":
        both = torch.cat([hidden[place], known])
        gate = t["markov_head.gate_proj.weight"] @ both + t["markov_head.gate_proj.bias"]
        known = gate.sigmoid() * known
    if config["markov_head_type"] == "rnn":
        memory = torch.zeros_like(known)
        for k in range(place + 1):  # a block that guesses its own places starts one earlier
            before = w1[text[n + max(0, k - (not config["sample_from_anchor"]))]]
            z = torch.cat([memory, before, hidden[k]])
            z = t["markov_head.joint_proj.weight"] @ z + t["markov_head.joint_proj.bias"]
            gate, fresh, out = z.chunk(3)
            memory = gate.sigmoid() * memory + (1 - gate.sigmoid()) * fresh.tanh()
        known = out.tanh()
    return logits + t["markov_head.markov_w2.weight"] @ known


def mtp(
    t: Tensors, config: dict[str, Any], target: Tensors, states: Tensor, tokens: list[int],
    path: list[int], embedding_first: bool = True, blind_start: bool = False,
) -> Tensor:  # fmt: skip
    """Logits [vocabulary] after text and path; states [text - 1, hidden size]."""
    block = Layer({k.removeprefix("mtp_layers.0."): v for k, v in t.items()}, config)

    def step(features: Tensor, rows: Tensor) -> Tensor:
        e = embedding(rows, target["embed_tokens.weight"]).clone()
        if blind_start:
            e[0] = 0
        both = [block.norm("token_layernorm", e), block.norm("hidden_layernorm", features)]
        x = torch.cat(both if embedding_first else both[::-1], -1) @ block.t["input_proj.weight"].T
        y = block.norm("input_layernorm", x)
        x = block.mlp(x + block.attend(y, torch.arange(len(rows))))
        return block.norm("final_layernorm", x)

    return target["lm_head.weight"] @ continued(step, states, tokens, path)
