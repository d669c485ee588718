"""The networks as a trainer sees them: whole texts at once, in batches, with gradients."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.engine.helpers import Models
from tests.heads.untrained import Heads
from torch import Tensor
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from transformers import AutoModelForCausalLM

from outrider.drafters.registry import drafter_class
from outrider.heads.files import Files
from outrider.heads.head import Target

TEXTS, LENGTH = 3, 20


def dense(seen: Tensor, context: Any = None) -> Any:
    """Attention of [texts, rows, heads, size] over `context` of each layer and the rows."""

    def attend(layer: int, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        if context is not None:
            keys, values = (torch.cat(pair, 1) for pair in zip(context[layer], (keys, values)))
        q, k, v = (x.transpose(1, 2) for x in (query, keys, values))
        mixed = scaled_dot_product_attention(q, k, v, attn_mask=seen, enable_gqa=True)
        return mixed.transpose(1, 2)

    return attend


def eagle3_logits(head: Any, states: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    rows = LENGTH - 2
    seen = torch.ones(rows, rows).tril().bool()
    positions = torch.arange(rows).expand(TEXTS, rows)
    features = head.project(states[:, :rows])
    after = head(features, tokens[:, 1 : rows + 1], positions, dense(seen))
    return head.logits(after), tokens[:, 2:]


def medusa_logits(head: Any, states: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    return head(states[:, :-3], 1), tokens[:, 3:]


def dspark_logits(head: Any, states: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    block, anchor = head.options.block, 11
    positions = torch.arange(anchor).expand(TEXTS, anchor)
    context = head.context(head.project(states[:, :anchor]), positions)
    seen = torch.ones(block, anchor + block).bool()
    at = torch.full((TEXTS,), anchor)
    after = head(tokens[:, anchor], at, dense(seen, context))
    before = tokens[:, anchor : anchor + block]
    logits = head.guess(after, before, head.no_memory(after)).logits  # a plain Markov head
    return logits, tokens[:, anchor + 1 : anchor + 1 + block]


LOGITS = {"eagle3": eagle3_logits, "medusa": medusa_logits, "dspark": dspark_logits}


@pytest.mark.parametrize("kind", list(LOGITS))
def test_a_head_learns(models: Models, heads: Heads, kind: str) -> None:
    model = AutoModelForCausalLM.from_pretrained(models.target).requires_grad_(False)
    target = Target.of(model)
    files = Files.of(str(Path(heads[kind])))
    head: Any = drafter_class(kind).read(files, target, torch.float32, torch.device("cpu"), 512)  # type: ignore[attr-defined]
    head.requires_grad_(True).train()
    own = list(head.parameters())
    head.borrow(target)  # the target's weights stay frozen
    ids = head.ids(target.vocabulary)
    torch.manual_seed(0)
    tokens = ids[torch.randint(len(ids), (TEXTS, LENGTH))]  # those that the head knows
    place = torch.zeros(target.vocabulary, dtype=torch.int64).scatter_(
        0, ids, torch.arange(len(ids))
    )
    found = model(tokens, output_hidden_states=True).hidden_states
    states = torch.cat([found[-1 if tap == "final" else tap] for tap in head.taps], -1)
    optimizer = torch.optim.AdamW(own, lr=0.01)
    losses = []
    for _ in range(30):
        logits, truth = LOGITS[kind](head, states, tokens)
        loss = cross_entropy(logits.flatten(0, 1), place[truth].flatten())
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert losses[-1] < losses[0] / 4
    assert all(parameter.grad is None for parameter in model.parameters())
