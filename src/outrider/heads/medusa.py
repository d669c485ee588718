"""Medusa: some heads on the target's last state, each for one of the next tokens."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from outrider.heads.head import Head


@dataclass(frozen=True)
class MedusaOptions:
    hidden: int
    heads: int
    layers: int
    draft_vocabulary: int
    target_vocabulary: int
    bias: bool = True
    own_outputs: bool = True  # each head has an output layer; else they share one
    shared_output: bool = False  # which is in the files, and not the target's


class Residual(nn.Module):
    def __init__(self, hidden: int, bias: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(hidden, hidden, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """[..., hidden size] -> the same."""
        return x + silu(self.linear(x))


class Medusa(Head):
    """Its parts are named by numbers, as in the files: head, then layer."""

    taps = ("final",)

    def __init__(self, options: MedusaOptions) -> None:
        super().__init__(None)
        self.options = options
        for index in range(options.heads):
            parts: list[nn.Module] = [
                Residual(options.hidden, options.bias) for _ in range(options.layers)
            ]
            if options.own_outputs:
                parts.append(nn.Linear(options.hidden, options.draft_vocabulary, bias=False))
            self.add_module(str(index), nn.Sequential(*parts))
        if options.shared_output:
            self.lm_head = nn.Linear(options.hidden, options.draft_vocabulary, bias=False)
        if options.draft_vocabulary != options.target_vocabulary:
            offsets = torch.zeros(options.draft_vocabulary, dtype=torch.int64)
            self.register_buffer("d2t", offsets)

    def forward(self, states: Tensor, index: int) -> Tensor:
        """Logits [..., draft vocabulary] of head `index`, which guesses the token index + 2 places
        after that of `states` [..., hidden size]."""
        out: Tensor = self.get_submodule(str(index))(states)
        return out if self.options.own_outputs else self.output(out)
