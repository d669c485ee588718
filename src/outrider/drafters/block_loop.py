"""The draft loop of heads that guess a block at once: `dspark`, `dflash`.

The pass over the block and the output layer are a part of the first guess. What is left of the
others is the Markov head, left to right.
"""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from outrider.drafters.device_loop import DeviceLoop
from outrider.drafters.loop_text import TEXTS
from outrider.heads.block import Attend
from outrider.model.cuda.capture import Capture
from outrider.model.cuda.guess import DEPTH
from outrider.model.cuda.inputs import (
    ANCESTORS,
    CONTEXT,
    FIELDS,
    LINE,
    POSITION,
    SEGMENT,
    SEGMENT_ROWS,
    SLOT,
    TILE_FIRST,
    TILE_ROWS,
    TOKEN,
    RowInputs,
)
from outrider.model.cuda.slot_table import SlotTable
from outrider.model.cuda.tree_attention import rows_per_tile, tree_attention

if TYPE_CHECKING:
    from outrider.drafters.dspark import DSparkDrafter


class BlockLoop(DeviceLoop):
    """Keys and values of the blocks lie behind the target's slots, from `spare` on: one for each
    place of as many blocks as a run may have texts."""

    def __init__(self, drafter: "DSparkDrafter", table: SlotTable, cuda: Capture) -> None:
        head = drafter.head
        super().__init__(drafter, table, cuda)
        self._head, self._features = head, drafter.features
        self._memory, self._spare = drafter.memory.layers, drafter.spare
        self._block = head.options.block
        most, like = TEXTS[-1] * self._block, {"dtype": drafter.dtype, "device": drafter.device}
        self._states = torch.zeros(most, head.config.hidden_size, **like)  # type: ignore[call-overload]
        self._logits = torch.zeros(most, len(drafter.ids), **drafter.logits_like)
        self._remembered = head.no_memory(self._states[: TEXTS[-1]])  # [texts, rank or nothing]
        self._blocks = {count: self._block_rows(count) for count in TEXTS}

    def _block_rows(self, count: int) -> RowInputs:
        """Of so many blocks; every place of a block sees all of it. What differs from text to text
        is filled in by `begin`."""
        block, rows = self._block, count * self._block
        packed = torch.zeros(FIELDS * rows, dtype=torch.int64)
        inputs = RowInputs(rows, False, packed, self.table)
        firsts = torch.arange(0, rows, block)  # [blocks]
        inputs.field(SLOT)[:] = self._spare + torch.arange(rows)
        inputs.field(SEGMENT).view(count, block)[:] = firsts[:, None]
        inputs.field(SEGMENT_ROWS)[:] = block
        inputs.field(ANCESTORS)[:] = (1 << block) - 1
        tile = rows_per_tile(rows, self._group, False)
        starts = torch.arange(0, block, tile)  # [tiles of a block]
        tiles = count * len(starts)
        inputs.field(TILE_FIRST)[:tiles] = (firsts[:, None] + starts).flatten()
        inputs.field(TILE_ROWS)[:tiles] = (block - starts).clamp(max=tile).repeat(count)
        inputs.packed = packed.to(self.table.device)
        return inputs

    def read(self, rows: RowInputs, features: Tensor) -> None:
        known = self._features.at(features).to(self._head.dtype)
        slots = rows.field(SLOT)
        context = self._head.context(known, rows.field(POSITION))
        for memory, (keys, values) in zip(self._memory, context, strict=True):
            memory.keys.index_copy_(0, slots, keys)
            memory.values.index_copy_(0, slots, values)

    def begin(self, texts: RowInputs) -> None:
        count, block = texts.rows, self._block
        rows = self._blocks[count]
        for field in (LINE, CONTEXT):
            rows.field(field).view(count, block)[:] = texts.field(field)[:, None]
        anchors = texts.field(TOKEN)
        states = self._head(anchors, texts.field(POSITION), self._attend(rows))
        self._states[: count * block] = states.flatten(0, 1)
        self._logits[: count * block] = self._head.output(states.flatten(0, 1))
        remembered = self._remembered[:count]
        remembered.zero_()
        for place in range(self._head.place_of(1)):
            remembered[:] = self._head.guess(states[:, place], anchors, remembered).memory
        self.step(texts)

    def _attend(self, rows: RowInputs) -> Attend:
        """For query [blocks, block, heads, size], keys and values the same with KV heads."""
        slots = slice(self._spare, self._spare + rows.rows)

        def attend(layer: int, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            memory = self._memory[layer]
            memory.keys[slots] = keys.flatten(0, 1)
            memory.values[slots] = values.flatten(0, 1)
            scale = query.shape[-1] ** -0.5
            flat = query.flatten(0, 1)
            mixed = tree_attention(flat, memory.keys, memory.values, rows, self.work, scale)
            return mixed.view_as(query)

        return attend

    def step(self, texts: RowInputs) -> None:
        count, head = texts.rows, self._head
        depth = (texts.field(DEPTH) + head.place_of(1)).clamp(max=self._block - 1)
        place = torch.arange(0, count * self._block, self._block, device=depth.device) + depth
        states = self._states.index_select(0, place)  # [texts, hidden size]
        logits = self._logits.index_select(0, place)  # [texts, draft vocabulary]
        before = texts.field(TOKEN)
        if head.options.markov_rank:
            remembered = self._remembered[:count]
            added, memory = head.markov_head(states, before, remembered)
            remembered[:] = memory
            logits = logits + added
        # It knows only what comes before the guess, so a cut by it is no bias.
        sure = head.confidence(states, before).float() if head.options.confidence else None
        self.guess(logits, texts, sure)
