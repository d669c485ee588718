"""The Hugging Face module itself as the pass that a graph captures: for families without fused
layers. Its attention is the Triton kernel all the same."""

from typing import Any

import torch
from torch import Tensor

from outrider.model.attention import Asked, LayerKV, Pass, attending
from outrider.model.cuda.inputs import FIELDS, POSITION, SLOT, TOKEN, RowInputs, updates_of
from outrider.model.cuda.tree_attention import Options, tree_attention
from outrider.model.cuda.workspace import Workspace


def pass_over_rows(inputs: RowInputs, work: Workspace) -> Pass:
    """Over the rows whose numbers are on the device, so that a graph can hold it."""

    def attend(query: Tensor, memory: LayerKV, scale: float, asked: Asked) -> Tensor:
        # Zeros: padding rows go on through the module, and what they write must be finite.
        out = query.new_zeros(*query.shape[:2], memory.values.shape[2])
        return tree_attention(
            query, memory.keys, memory.values, inputs, work, scale, Options(*asked), out
        )

    return Pass(inputs.field(SLOT), [], kernel=attend)


class UnfusedModel:
    def __init__(self, model: Any) -> None:
        self._model = model

    most_parts = 0  # elements of `Workspace.parts` that are needed beside attention's

    def __call__(self, inputs: RowInputs, previous: Tensor, work: Workspace) -> Tensor:
        """[rows, vocabulary]; `previous` [most rows] int64: the choices of the pass before."""
        _update_table(inputs)
        token = inputs.field(TOKEN)
        chosen = previous[(-1 - token).clamp(min=0)]
        with attending(pass_over_rows(inputs, work)):
            output = self._model(
                input_ids=torch.where(token < 0, chosen, token)[None],
                position_ids=inputs.field(POSITION)[None],
                use_cache=False,
            )
        return output.logits[0]


def _update_table(inputs: RowInputs) -> None:
    updates = updates_of(inputs.rows)
    places, slots = inputs.packed[FIELDS * inputs.rows :].view(2, updates)
    inputs.table.view(-1).index_copy_(0, places, slots.int())
