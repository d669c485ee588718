"""Drafts that follow the pass that checked the last ones, on the device: the host is a pass behind.

A round is three captured functions and the target's pass: find what held (model/cuda/follow.py) and
read it, guess on, and aim the next pass at the guesses. The host only sends which slots the pass
may write, and has a whole round of time to look at what the round before has brought.

Captured as one, a round would have to be captured, which stalls all texts, for every size of the
pass with every length of a chain. In parts, only the first and the last go by the pass's size; the
guesses go by their number, and are those that the host has asked for before the first round.
"""

from array import array
from collections.abc import Callable
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from outrider.core.request import Request
from outrider.core.tree import TokenTree
from outrider.drafters.device_loop import DeviceLoop
from outrider.drafters.loop_text import ROWS, TEXTS, Guesses, bucket
from outrider.model.cuda.follow import aim, numbers_of, settle
from outrider.model.cuda.graphs import BUCKETS, Graph, Graphs
from outrider.model.cuda.inputs import FIELDS
from outrider.model.flight import Flight

STAGES = 2  # host buffers in turn: the next round starts before the last one is looked at


class Round(NamedTuple):
    flight: Flight
    guesses: Callable[[], list[Guesses]]  # that the pass checks; once it has landed


class Following:
    def __init__(self, loop: DeviceLoop, graphs: Graphs) -> None:
        assert set(BUCKETS) <= set(ROWS), "the loop reads as many rows as a pass has"
        self._loop, self._graphs = loop, graphs
        device = loop.table.device
        most = numbers_of(TEXTS[-1], ROWS[-1])
        self._numbers = torch.zeros(most, dtype=torch.int64, device=device)
        self._numbers_here = [loop.cuda.host_memory(most, torch.int64) for _ in range(STAGES)]
        found = len(loop.found(TEXTS[-1]).flatten())
        self._found_here = [loop.cuda.host_memory(found, torch.float64) for _ in range(STAGES)]
        self.rounds = 0  # so far

    def takes(self, batch: list[Request]) -> bool:
        """Whether there can be rounds for these texts."""
        few = len(batch) <= TEXTS[-1]
        return few and all(r.params.logprobs is None and self._loop.fits(r, 2) for r in batch)

    def fits(self, batch: list[Request], trees: list[TokenTree]) -> bool:
        """Whether a round can come after the pass that checks these chains."""
        rows = sum(1 + len(tree) for tree in trees)
        if len(batch) > TEXTS[-1] or rows > ROWS[-1]:
            return False
        # The pass under way, and the next one.
        deepest = [2 * (1 + len(tree)) for tree in trees]
        return all(self._loop.fits(r, n) for r, n in zip(batch, deepest, strict=True))

    def __call__(self, slots: list[array]) -> Round:
        """After a pass that checked chains: another of the same shape. slots: for every text those
        that it may write now, as many as it had rows then."""
        with self._loop.cuda.active():
            return self._start(slots)

    def _start(self, slots: list[array]) -> Round:
        lengths = [len(each) for each in slots]
        count, guesses = bucket(TEXTS, len(slots)), max(lengths) - 1
        assert guesses, "a pass that checked nothing is another graph than `again` takes"
        turn = self.rounds % STAGES
        self.rounds += 1
        found = self._loop.found(count)[:guesses]  # [guesses, 2, texts]
        found_here = self._found_here[turn][: found.numel()]

        def prepare(graph: Graph) -> None:
            parts = self._parts(graph, count, guesses)  # all of them, before the first one runs
            size = numbers_of(count, graph.inputs.rows)
            here = self._numbers_here[turn][:size]
            self._fill(here.numpy(), slots, count, self._loop.tile(graph.inputs.rows))
            self._numbers[:size].copy_(here, non_blocking=True)
            for part in parts:
                part()
            found_here.copy_(found.flatten(), non_blocking=True)

        def guessed() -> list[Guesses]:
            known = found_here.view(found.shape).numpy()
            return [_as_checked(known[: n - 1, :, i]) for i, n in enumerate(lengths)]

        return Round(self._graphs.again(sum(lengths), prepare), guessed)

    # ---- what is captured ----

    def _parts(self, graph: Graph, count: int, guesses: int) -> list[Callable[[], None]]:
        """Of a round, in their order."""
        loop = self._loop
        size = (graph.inputs.rows, count)  # `again` has one graph for so many rows
        return [
            loop.captured_for(lambda: self._settling(graph, count), "settle", *size),
            loop.drafting(count, guesses),
            loop.captured_for(lambda: self._aiming(graph, count), "aim", *size),
        ]

    def _settling(self, graph: Graph, count: int) -> Callable[[], None]:
        loop, checked, rows = self._loop, graph.inputs, graph.inputs.rows
        numbers = self._numbers_of_none(count, rows)
        texts, reading = loop.texts(count), loop.rows(rows)

        def settle_and_read() -> None:
            texts.packed.zero_()
            reading.packed.zero_()
            settle(numbers, checked, graph.choices, texts, reading, loop.first, loop.tile(rows))
            loop.read(reading, reading.field(FIELDS))

        return settle_and_read

    def _aiming(self, graph: Graph, count: int) -> Callable[[], None]:
        numbers = self._numbers_of_none(count, graph.inputs.rows)
        texts, found = self._loop.texts(count), self._loop.found(count)
        return lambda: aim(numbers, graph.inputs, graph.choices, texts, found)

    def _numbers_of_none(self, count: int, rows: int) -> Tensor:
        """[numbers_of(count, rows)]: where the numbers of a round will lie; now there is no text,
        since capturing runs what is captured."""
        self._numbers.zero_()
        return self._numbers[: numbers_of(count, rows)]

    # ---- the host's side ----

    def _fill(self, numbers: np.ndarray, slots: list[array], count: int, tile: int) -> None:
        """numbers [numbers_of(count, rows)]"""
        lengths = [len(each) for each in slots]
        numbers[:] = 0
        numbers[: len(slots)] = [0, *accumulate(lengths)][:-1]
        numbers[count:][: len(slots)] = lengths
        tiles = [-(-length // tile) for length in lengths]
        numbers[2 * count :][: len(slots)] = [0, *accumulate(tiles)][:-1]
        numbers[3 * count :][: sum(lengths)] = [slot for each in slots for slot in each]


def _as_checked(found: np.ndarray) -> Guesses:
    """found [guesses, 2]; where no token was possible, `aim` has the pass check token 0."""
    tokens, sure = found[:, 0].astype(np.int64), found[:, 1]
    return Guesses(np.maximum(tokens, 0).tolist(), np.where(tokens < 0, 0.0, sure).tolist())
