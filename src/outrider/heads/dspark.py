"""DFlash and DSpark: a whole block of tokens in one pass over the target's states.

The layers' keys and values of the text come from the target's states directly, so what a drafter
keeps of the text is a function of single states. DSpark adds a Markov head, which lets a token
depend on the one before it, and a confidence head.
"""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from outrider.heads.block import Attend, DecoderLayer, norm_of
from outrider.heads.head import Head

# What a Markov head looks at beside the token before: nothing, the place's state, or also what it
# remembers of the places before.
MarkovType = Literal["vanilla", "gated", "rnn"]


@dataclass(frozen=True)
class DSparkOptions:
    taps: tuple[int, ...]  # layers of the target whose inputs are read
    target_hidden: int
    draft_vocabulary: int
    target_vocabulary: int
    block: int  # places of a block: the last token of the text, then masks
    mask_token: int
    from_anchor: bool  # the first place guesses, too: place k the token after it, not its own
    markov_rank: int = 0  # 0: no Markov head
    markov_type: MarkovType = "vanilla"
    confidence: bool = False
    confidence_with_markov: bool = True
    own_embedding: bool = False
    own_output: bool = False

    @property
    def guesses(self) -> int:
        return self.block if self.from_anchor else self.block - 1


class Guess(NamedTuple):
    logits: Tensor  # [..., draft vocabulary]
    memory: Tensor  # [..., rank]: what the Markov head remembers; empty where it does not


class MarkovHead(nn.Module):
    def __init__(self, options: DSparkOptions, hidden: int) -> None:
        super().__init__()
        self.kind, self.rank = options.markov_type, options.markov_rank
        rank = self.rank
        self.markov_w1 = nn.Embedding(options.target_vocabulary, rank)
        self.markov_w2 = nn.Linear(rank, options.draft_vocabulary, bias=False)
        if self.kind == "gated":
            self.gate_proj = nn.Linear(hidden + rank, rank)
        if self.kind == "rnn":
            self.joint_proj = nn.Linear(2 * rank + hidden, 3 * rank)

    def forward(self, states: Tensor, before: Tensor, memory: Tensor) -> Guess:
        """What the token before [...] adds to the logits."""
        known: Tensor = self.markov_w1(before)
        if self.kind == "gated":
            known = self.gate_proj(torch.cat([states, known], -1)).sigmoid() * known
        elif self.kind == "rnn":
            mixed = self.joint_proj(torch.cat([memory, known, states], -1))
            keep, fresh, out = mixed.chunk(3, -1)
            memory = torch.lerp(fresh.tanh(), memory, keep.sigmoid())
            known = out.tanh()
        return Guess(self.markov_w2(known), memory)


class ConfidenceHead(nn.Module):
    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.proj = nn.Linear(inputs, 1)


class DSpark(Head):
    def __init__(self, config: Any, options: DSparkOptions) -> None:
        super().__init__(config)
        self.options = options
        self.taps = options.taps
        width = config.hidden_size
        self.fc = nn.Linear(len(options.taps) * options.target_hidden, width, bias=False)
        self.hidden_norm = norm_of(config)
        self.layers = nn.ModuleList(
            DecoderLayer(config, i, config.model_type == "qwen3")
            for i in range(config.num_hidden_layers)
        )
        self.norm = norm_of(config)
        if options.own_embedding:
            self.embed_tokens = nn.Embedding(options.target_vocabulary, width)
        if options.own_output:
            self.lm_head = nn.Linear(width, options.draft_vocabulary, bias=False)
        if options.draft_vocabulary != options.target_vocabulary:
            offsets = torch.zeros(options.draft_vocabulary, dtype=torch.int64)
            self.register_buffer("d2t", offsets)
        if options.markov_rank:
            self.markov_head = MarkovHead(options, width)
        if options.confidence:
            extra = options.markov_rank if options.confidence_with_markov else 0
            self.confidence_head = ConfidenceHead(width + extra)

    def project(self, states: Tensor) -> Tensor:
        projected: Tensor = self.hidden_norm(self.fc(states))
        return projected

    def context(self, features: Tensor, positions: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Of every layer the keys and values [..., rows, kv heads, size] of text whose projected
        states are `features` [..., rows, hidden size], at `positions` [..., rows]."""
        rotation = self.rotary(features, positions)
        return [
            layer.self_attn.keys_and_values(features, rotation)  # type: ignore[union-attr, operator]
            for layer in self.layers
        ]

    def forward(self, anchors: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """States [..., block, hidden size] below the last tokens `anchors` [...] of texts, which
        stand at `positions` [...]. `attend` shows every place the text before the anchor and the
        whole block."""
        block = self.options.block
        places = torch.arange(block, device=anchors.device)
        tokens = torch.where(places == 0, anchors[..., None], self.options.mask_token)
        x = self.embed(tokens)  # [..., block, hidden size]
        rotation = self.rotary(x, positions[..., None] + places)
        for layer in self.layers:
            x = layer(x, rotation, attend)
        states: Tensor = self.norm(x)
        return states

    def place_of(self, depth: int) -> int:
        """Which place of the block guesses the token `depth` places after the anchor."""
        return depth - 1 if self.options.from_anchor else depth

    def no_memory(self, like: Tensor) -> Tensor:
        """[..., rank]: what a Markov head remembers before the block; `like` is [..., anything]."""
        width = self.options.markov_rank if self.options.markov_type == "rnn" else 0
        return like.new_zeros(*like.shape[:-1], width)

    def first_guess(self, block: Tensor, outputs: Tensor, anchors: Tensor) -> Guess:
        """For the token after each anchor [...], from the states [..., block, hidden size] and what
        the output layer makes of them [..., block, draft vocabulary]."""
        memory, first = self.no_memory(block[..., 0, :]), self.place_of(1)
        for place in range(first):  # guesses nothing, but is remembered
            memory = self.after(
                block[..., place, :], outputs[..., place, :], anchors, memory
            ).memory
        return self.after(block[..., first, :], outputs[..., first, :], anchors, memory)

    def guess(self, states: Tensor, before: Tensor, memory: Tensor) -> Guess:
        """For places with `states` [..., hidden size], each after the token `before` [...]."""
        return self.after(states, self.output(states), before, memory)

    def after(self, states: Tensor, outputs: Tensor, before: Tensor, memory: Tensor) -> Guess:
        """The same, where the output layer [..., draft vocabulary] was asked already: it looks at a
        place alone, so all places of a block, whatever comes before them, share one product."""
        if not self.options.markov_rank:
            return Guess(outputs, memory)
        added, memory = self.markov_head(states, before, memory)
        return Guess(outputs + added, memory)

    def confidence(self, states: Tensor, before: Tensor) -> Tensor:
        """[...]: the chance that the target agrees with the guess of each place."""
        return self.sureness(states, before).sigmoid()

    def sureness(self, states: Tensor, before: Tensor) -> Tensor:
        """[...]: the same as log odds."""
        if self.options.confidence_with_markov:
            states = torch.cat([states, self.markov_head.markov_w1(before)], -1)
        scores: Tensor = self.confidence_head.proj(states)
        return scores.squeeze(-1)
