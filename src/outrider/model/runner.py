"""One packed forward pass over rows of many sequences, through an unforked Hugging Face module."""

import logging
from array import array
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention import sdpa_kernel

from outrider.core.errors import ModelError
from outrider.model.admission import admit
from outrider.model.attention import BACKENDS, CHUNK, LayerCall, LayerKV, Pass, attending
from outrider.model.features import Features, Tap, Taps
from outrider.model.flight import Flight, joined
from outrider.model.layout import lay_out_for_few_rows
from outrider.model.loading import LoadedModel
from outrider.model.row_sizes import filled_up, prepares
from outrider.model.segment import Group, Segment, group_segments, wanted_rows
from outrider.model.skipping import DecoderLayers

if TYPE_CHECKING:
    from outrider.model.cuda.graphs import Graphs

log = logging.getLogger(__name__)

SCRAP = 0  # the slot that padding rows write and padding keys read; nobody owns it
PROBE_SLOTS = 128  # that fast passes are tried out on
SEQUENCES = 64
REPRODUCIBLE_ROWS = 8  # rows of every pass in reproducible mode, where there are no graphs for it


class Runner:
    """Owns one model's KV buffers. Slot ids come from outside, so that drafter and target agree."""

    def __init__(self, loaded: LoadedModel, reproducible: bool = False) -> None:
        self.loaded = loaded
        self.model = loaded.model
        self.device = loaded.device
        lay_out_for_few_rows(self.model)
        self.layers: list[LayerCall] = admit(loaded)
        self.fixed_rows = 0  # rows of every pass that is no graph; 0: as many as there are
        self.graphs: Graphs | None = None  # for passes over few rows, on a GPU
        self.way = "eager"  # how those go, in words
        self._sizes: set[int] = set()  # rows of passes so far
        self._prepares = prepares(self.device, loaded.dtype)
        self.vocabulary: int = self.model.get_output_embeddings().weight.shape[0]
        self.reproducible = reproducible
        self.taps = Taps()

    def tap(self, taps: tuple[Tap, ...], project: Callable[[Tensor], Tensor]) -> Features:
        """From now on passes keep these hidden states, as `project` makes one vector of them, for
        every slot that they write. Before slots are allocated."""
        return self.taps.add(self.model, self.layers, taps, project)

    @property
    def bytes_per_slot(self) -> int:
        size = torch.empty((), dtype=self.loaded.dtype).element_size()
        kv = sum(
            layer.kv_heads * (layer.head_size + layer.value_head_size) for layer in self.layers
        )
        return size * (kv + self.taps.elements_per_slot)

    @cached_property
    def _decoder_layers(self) -> DecoderLayers:
        return DecoderLayers(self.model, self.layers, self.device)

    def allocate(self, slots: int) -> None:
        """Memory for slots 1 to `slots`, plus the scrap slot."""
        if self.reproducible and self.device.type == "cuda":
            slots = max(slots, PROBE_SLOTS)  # else the pool would decide which way passes go
        self._slots = slots
        try:
            self._allocate(slots)
        except torch.OutOfMemoryError as error:
            gib = slots * self.bytes_per_slot / 2**30
            raise ModelError(
                f"{slots} KV slots of {self.loaded.name} ({gib:.1f} GiB) do not fit on "
                f"{self.device}; lower memory_utilization, kv_cache_tokens or max_model_len"
            ) from error
        if self.reproducible:
            self.fixed_rows = self._invariant_rows()

    def _allocate(self, slots: int) -> None:
        for layer in self.layers:
            shape = (slots + 1, layer.kv_heads)
            options = {"dtype": self.loaded.dtype, "device": self.device}
            # Not filled: on a CPU, pages that no request ever uses are never taken.
            keys = torch.empty(*shape, layer.head_size, **options)  # type: ignore[call-overload]
            values = torch.empty(*shape, layer.value_head_size, **options)  # type: ignore[call-overload]
            keys[SCRAP], values[SCRAP] = 0, 0
            layer.module.outrider_kv = LayerKV(keys, values)  # type: ignore[assignment]
        self.taps.allocate(slots, self.loaded.dtype, self.device)

    @torch.inference_mode()
    def speed_up(self, sequences: int = SEQUENCES, longest: int | None = None) -> None:
        """On a GPU: passes over few rows become CUDA graphs, which remember the slots of so many
        texts of up to `longest` tokens. Slots must be allocated and unused."""
        if self.device.type != "cuda":
            return
        if self._slots < PROBE_SLOTS:
            self.way = f"eager (fewer than {PROBE_SLOTS} slots)"
            return
        try:
            from outrider.model.cuda.fast import fast_passes
        except ImportError as error:  # Triton does not come with every torch
            self.way = f"eager ({error})"
            log.warning("passes are slow on this GPU: %s; try: pip install triton", error)
            return
        longest = longest or min(self.loaded.context_length, self._slots)
        if self.reproducible:
            longest = max(longest, PROBE_SLOTS)
        with torch.cuda.device(self.device):
            self.graphs, self.way = fast_passes(
                self.loaded,
                self.layers,
                sequences,
                longest,
                self.taps,
                self._forward,
                self.reproducible,
            )

    @torch.inference_mode()
    def forward(self, segments: list[Segment], skip: frozenset[int] = frozenset()) -> Tensor:
        """Logits [rows that need them, vocabulary], in the order of the segments.

        Layers in `skip` are passed over: they neither read nor write their KV.
        """
        if not skip:
            flight = self.launch(segments)
            # A copy: the next pass of that size writes where this one did.
            return flight.logits if flight.landed is None else flight.logits.clone()
        with self._decoder_layers.without(skip):
            return self._forward_fixed(segments) if self.fixed_rows else self._forward(segments)

    @property
    def replayed_rows(self) -> int:
        """Of a pass that can be a graph; 0 where there are none."""
        return self.graphs.most_rows if self.graphs is not None else 0

    @property
    def prepared(self) -> int:
        """Grows when something is built that later passes use again: a graph, or on a CPU the
        products over a number of rows that no pass had before."""
        return self.graphs.captured if self.graphs is not None else len(self._sizes)

    def filled_up(self, rows: int) -> int:
        """The rows that a pass over so many really has; those of graphs are measured one by one."""
        if self.graphs is not None:
            return rows
        if self.fixed_rows:
            return -(-rows // self.fixed_rows) * self.fixed_rows
        return filled_up(rows) if self._prepares else rows

    @property
    def runs_ahead(self) -> bool:
        """Whether a pass can start before the tokens of the one before are known here."""
        return self.graphs is not None

    def launch(self, segments: list[Segment]) -> Flight:
        """Start a pass; of its results, those on a GPU need not be there yet. In inference mode,
        which the caller enters: once for a step, since that takes microseconds."""
        if self.graphs is not None and self.graphs.fits(segments):
            return self.graphs.launch(segments)
        if self.graphs is not None and (apart := self.graphs.prompts_among(segments)):
            return self._launch_apart(self.graphs, segments, apart)
        if self.reproducible and self.graphs is not None and self.graphs.fits_in_blocks(segments):
            from outrider.model.cuda.flights import launch_in_blocks

            return launch_in_blocks(self.graphs, segments)
        if self.fixed_rows:
            return Flight(self._forward_fixed(segments))
        if self.graphs is not None and (flight := self.graphs.long_pass(segments)) is not None:
            return flight
        return Flight(self._forward(segments))

    def _launch_apart(
        self, graphs: "Graphs", segments: list[Segment], prompts: list[int]
    ) -> Flight:
        """Prompts in passes of their own, which are graphs as the pass over the others is."""
        others = [segment for i, segment in enumerate(segments) if i not in prompts]
        flights = [graphs.read(segments[i]) for i in prompts]
        whose = [prompts.index(i) if i in prompts else len(prompts) for i in range(len(segments))]
        flights += [graphs.launch(others)] if others else []
        return joined(flights, whose, [len(s) - s.logits_from for s in segments])

    @sdpa_kernel(BACKENDS)
    def _forward(self, segments: list[Segment]) -> Tensor:
        """By the module itself."""
        rows = [token for segment in segments for token in segment.tokens]
        slots = np.concatenate([np.array(s.slots, dtype=np.int64) for s in segments])
        positions = [position for segment in segments for position in segment.positions]
        if beyond := self.filled_up(len(rows)) - len(rows):
            slots = np.pad(slots, (0, beyond), constant_values=SCRAP)
            rows, positions = rows + [0] * beyond, positions + [0] * beyond
        step = Pass(
            write_slots=torch.from_numpy(slots).to(self.device),
            groups=[group.to(self.device) for group in group_segments(segments)],
        )
        return self._call(rows, positions, wanted_rows(segments), step)

    def _call(
        self, tokens: list[int], positions: list[int], wanted: list[int], step: Pass
    ) -> Tensor:
        """[wanted rows, vocabulary]."""
        self._sizes.add(len(tokens))
        # A pass without wanted rows (a prefill chunk) still asks for one: 0 means all.
        kept = wanted or [0]
        kept = kept + [0] * (self.filled_up(len(kept)) - len(kept))
        with attending(step):
            output = self.model(
                input_ids=torch.tensor([tokens], device=self.device),
                position_ids=torch.tensor([positions], device=self.device),
                logits_to_keep=torch.tensor(kept, device=self.device),
                use_cache=False,
            )
        return output.logits[0, : len(wanted)]

    def _forward_fixed(self, segments: list[Segment]) -> Tensor:
        """The same in blocks of exactly `fixed_rows` rows, each row attending on its own.

        Every operation of every pass then has one shape, so a token's KV and logits are a bitwise
        function of the text before it, however the rows were batched, drafted or recomputed.
        """
        rows = [row for segment in segments for row in _rows_of(segment)]
        outputs = []
        for start in range(0, len(rows), self.fixed_rows):
            block = rows[start : start + self.fixed_rows]
            logits = self._call_fixed(block)
            outputs += [logits[i] for i, row in enumerate(block) if row.wanted]
        return torch.stack(outputs) if outputs else logits[:0]

    def _call_fixed(self, block: list["_Row"]) -> Tensor:
        """[fixed_rows, vocabulary]; rows beyond the block are padding."""
        padded = block + [_Row(0, array("q", [SCRAP]), wanted=False)] * (
            self.fixed_rows - len(block)
        )
        keys = max(len(row.slots) for row in padded)
        keys += -keys % CHUNK
        slots = torch.zeros(len(padded), keys, dtype=torch.int64)
        key_positions = torch.arange(keys).expand(len(padded), keys)
        lengths = torch.tensor([len(row.slots) for row in padded])
        for i, row in enumerate(padded):
            slots[i, : len(row.slots)] = torch.from_numpy(np.array(row.slots, dtype=np.int64))
        group = Group(
            rows=torch.arange(len(padded))[:, None],
            real=torch.arange(len(padded)),
            slots=slots,
            visible=(key_positions < lengths[:, None])[:, None],
            query_positions=lengths[:, None] - 1,
            key_positions=key_positions,
        )
        write = torch.tensor([row.slots[-1] for row in padded], device=self.device)
        step = Pass(write, [group.to(self.device)], invariant=True)
        positions = [len(row.slots) - 1 for row in padded]
        tokens = [row.token for row in padded]
        return self._call(tokens, positions, list(range(len(padded))), step)

    @torch.inference_mode()
    def _invariant_rows(self) -> int:
        """The block size for reproducible mode: one where a row's place does not show in its bits.

        A matrix product may treat the rows at its edge differently; then one row at a time is
        what remains, and it is slower. So it is with experts: how many rows of a block go to the
        same one shapes its product, and no probe could try all cases.
        """
        memory: LayerKV = self.layers[0].module.outrider_kv  # type: ignore[assignment]
        last = memory.keys.shape[0] - 1
        for rows in (1,) if _has_experts(self.model) else (REPRODUCIBLE_ROWS, 1):
            self.fixed_rows = rows
            if rows > last:
                continue
            alike = self._call_fixed([_Row(1, array("q", [last - i]), True) for i in range(rows)])
            mixed = self._call_fixed(
                [_Row(1 + i, array("q", [last - i]), True) for i in range(rows)]
            )
            if bool((alike == alike[0]).all()) and bool((mixed[0] == alike[0]).all()):
                return rows
            log.warning(
                "reproducible mode: this device's kernels treat the rows of a block of %d "
                "differently; falling back to single rows, which is slower",
                rows,
            )
        raise ModelError(
            "reproducible mode is not possible here: even a pass of one row gives "
            "different bits when repeated; use reproducible=False"
        )


def _has_experts(model: nn.Module) -> bool:
    named = (f"{name} {type(module).__name__}" for name, module in model.named_modules())
    return any("expert" in name.lower() for name in named)


class _Row:
    """One row on its own: its token and the slots of its whole path, its own last."""

    __slots__ = ("slots", "token", "wanted")

    def __init__(self, token: int, slots: array, wanted: bool) -> None:
        self.token = token
        self.slots = slots
        self.wanted = wanted


def _rows_of(segment: Segment) -> list[_Row]:
    rows: list[_Row] = []
    for i, (token, parent) in enumerate(zip(segment.tokens, segment.parents, strict=True)):
        before = segment.context if parent < 0 else rows[parent].slots
        rows.append(_Row(token, before + segment.slots[i : i + 1], i >= segment.logits_from))
    return rows
