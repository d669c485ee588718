"""DFlash and DSpark heads: see heads/dspark.py."""

from array import array
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.attention import sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from outrider.core.request import Request
from outrider.core.tree import ROOT
from outrider.drafters.base import DraftConfig
from outrider.drafters.candidates import Found
from outrider.drafters.entries import Entries
from outrider.drafters.growth import Draft
from outrider.drafters.loop_text import TEXTS, Shape, Text, unreadable
from outrider.drafters.slot_memory import SlotMemory, attention_of, bytes_per_slot
from outrider.drafters.trained import TrainedDrafter
from outrider.heads.block import Attend
from outrider.heads.dspark import DSpark, Guess
from outrider.heads.read_dspark import read_dspark
from outrider.model.attention import BACKENDS
from outrider.model.kv import KVCache
from outrider.model.loading import LoadedModel
from outrider.model.segment import Segment
from outrider.sampling.rows import Row

if TYPE_CHECKING:
    from outrider.drafters.device_loop import DeviceLoop
    from outrider.model.cuda.capture import Capture
    from outrider.model.cuda.slot_table import SlotTable


class DSparkDrafter(TrainedDrafter):
    """One pass guesses the whole block; level by level the Markov head then says how a guess
    depends on the token before it. What is kept of the text are keys and values of the target's
    states, in the target's slots; those of the block are gone after its pass."""

    name = kind = "dspark"
    read = staticmethod(read_dspark)
    head: DSpark

    def __init__(self, config: DraftConfig, target: LoadedModel) -> None:
        super().__init__(config, target)
        self._layers = len(self.head.layers)
        self.bytes_per_slot = bytes_per_slot(self.head.config, self._layers, self.dtype)
        if self._tree == "chain":
            self.longest = self.head.options.guesses
        # Of the draft: states [block, hidden size], and logits [block, draft vocabulary] of places.
        self._blocks: dict[Request, tuple[Tensor, Tensor]] = {}
        # Per request, what the Markov head remembers after the text (ROOT) and after nodes.
        self._memories: dict[Request, dict[int, Tensor]] = {}
        self._sure: list[float] | None = None  # per row of the level under way

    def _allocate(self, kv: KVCache) -> None:
        self.entries = Entries(kv)
        self.spare = kv.total + 1  # the first slot of the blocks of a loop on the device
        slots = kv.total + self._spare_slots
        self.memory = SlotMemory(self.head.config, self._layers, slots, self.dtype, self.device)

    @property
    def _spare_slots(self) -> int:
        return TEXTS[-1] * self.head.options.block if self.may_loop else 0

    @property
    def workspace_bytes(self) -> int:
        return super().workspace_bytes + self._spare_slots * self.bytes_per_slot

    def release(self, request: Request) -> None:
        super().release(request)
        self._blocks.pop(request, None)
        self._memories.pop(request, None)

    def _deepest(self, request: Request) -> int:
        return min(super()._deepest(request), self.head.options.guesses)

    # ---- the block ----

    def _read(self, requests: list[Request]) -> Tensor:
        self._keep(requests)
        anchors = torch.tensor([request.tokens[-1] for request in requests], device=self.device)
        positions = torch.tensor([len(r.tokens) - 1 for r in requests], device=self.device)
        states = self.head(anchors, positions, self._attend(requests))
        outputs = self.head.output(states)
        self._blocks |= dict(zip(requests, zip(states, outputs, strict=True), strict=True))
        guess = self.head.first_guess(states, outputs, anchors)
        self._memories |= {
            request: {ROOT: memory} for request, memory in zip(requests, guess.memory, strict=True)
        }
        return self._level(guess, states[:, self.head.place_of(1)], anchors)

    def _keep(self, requests: list[Request]) -> None:
        """Keys and values of what is new in the texts."""
        starts = [self.entries.valid(request) for request in requests]
        new = [request.slots[start:] for request, start in zip(requests, starts, strict=True)]
        slots = [slot for part in new for slot in part]
        if not slots:
            return
        places = [
            start + i for start, part in zip(starts, new, strict=True) for i in range(len(part))
        ]
        where, positions = torch.tensor([slots, places], device=self.device)  # [rows] each
        context = self.head.context(self.features.at(where).to(self.dtype), positions)
        for memory, (keys, values) in zip(self.memory.layers, context, strict=True):
            memory.keys.index_copy_(0, where, keys)
            memory.values.index_copy_(0, where, values)
        self.entries.write(array("q", slots))

    # ---- the loop on the device ----

    @property
    def loop_shape(self) -> Shape:
        attention, block = attention_of(self.head.config), self.head.options.block
        return Shape(*attention, self.vocabulary, block)

    def make_loop(self, table: "SlotTable", cuda: "Capture") -> "DeviceLoop":
        from outrider.drafters.block_loop import BlockLoop

        return BlockLoop(self, table, cuda)

    def texts(self, requests: list[Request], guesses: list[int]) -> list[Text]:
        starts = [self.entries.valid(request) for request in requests]
        new = [len(r.slots) - start for r, start in zip(requests, starts, strict=True)]
        ends = {i: len(requests[i].slots) for i in unreadable(new)}
        self._keep([requests[i] for i in ends])
        starts = [ends.get(i, start) for i, start in enumerate(starts)]
        texts = []
        for request, start, count in zip(requests, starts, guesses, strict=True):
            slots = request.slots[start:]
            # Which tokens they are does not matter: their features say it.
            rows = Segment.chain([0] * len(slots), slots, request.slots[:start], len(slots))
            texts.append(Text(request, rows, slots, request.slots, count))
            self.entries.write(slots)
        return texts

    def _attend(self, requests: list[Request]) -> Attend:
        """Every place of a block sees its text and the whole block."""
        lengths = torch.tensor([len(request.slots) for request in requests])
        longest, block = int(lengths.max()), self.head.options.block
        slots = torch.zeros(len(requests), longest, dtype=torch.int64)
        for line, request in zip(slots, requests, strict=True):
            line[: len(request.slots)] = torch.tensor(request.slots)
        visible = torch.ones(len(requests), 1, 1, longest + block, dtype=torch.bool)
        visible[:, 0, 0, :longest] = torch.arange(longest) < lengths[:, None]
        slots, visible = slots.to(self.device), visible.to(self.device)

        def attend(layer: int, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            memory = self.memory.layers[layer]
            k = torch.cat([memory.keys[slots], keys], 1)  # [requests, text + block, kv heads, size]
            v = torch.cat([memory.values[slots], values], 1)
            q, k, v = (x.transpose(1, 2) for x in (query, k, v))
            with sdpa_kernel(BACKENDS):
                mixed = scaled_dot_product_attention(q, k, v, attn_mask=visible, enable_gqa=True)
            return mixed.transpose(1, 2)

        return attend

    # ---- its tokens ----

    def _pass(self, drafts: list[Draft]) -> Tensor:
        depth = len(drafts[0].path(drafts[0].frontier[0]))  # of all: they grow level by level
        place = self.head.place_of(depth + 1)
        nodes = [(draft, node) for draft in drafts for node in draft.frontier]
        blocks = [self._blocks[draft.request] for draft, _ in nodes]
        states = torch.stack([states[place] for states, _ in blocks])
        outputs = torch.stack([outputs[place] for _, outputs in blocks])
        before = torch.tensor([draft.tokens[node] for draft, node in nodes], device=self.device)
        above = [self._memories[draft.request][draft.parents[node]] for draft, node in nodes]
        guess = self.head.after(states, outputs, before, torch.stack(above))
        for (draft, node), memory in zip(nodes, guess.memory, strict=True):
            self._memories[draft.request][node] = memory
        return self._level(guess, states, before)

    def _level(self, guess: Guess, states: Tensor, before: Tensor) -> Tensor:
        """Logits [rows, draft vocabulary]; states [rows, hidden size], tokens `before` [rows]."""
        if self.head.options.confidence and self._tree == "chain":
            self._sure = self.head.confidence(states, before).tolist()
        return guess.logits

    def _find(
        self, logits: Tensor, rows: list[Row], wanted: list[int], lanes: list[int]
    ) -> list[Found]:
        """What the confidence head says of a chain's guess says more than its probability. It knows
        only what comes before the guess, so a cut by it is no bias."""
        found = super()._find(logits, rows, wanted, lanes)
        if self._sure is None or self.config.verification != "coupled":
            return found
        return [
            children._replace(confidence=[sure]) if children.tokens else children
            for children, sure in zip(found, self._sure, strict=True)
        ]
