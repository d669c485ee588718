"""Drafts that follow the pass that checked the last ones, on the device: the host is a pass behind.

A round finds what held (model/cuda/follow.py), has the draft loop read it and guess on, aims the
next pass at the guesses, and starts it. The host only sends which slots the pass may write, and has
a whole round of time to look at what the round before has brought.

Reading, guessing and the pass are captured for other drafts as well; what is a round's own are two
small kernels between them. So a round of any shape captures nothing, which would stall all texts.
"""

from array import array
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import torch

from outrider.core.request import Request
from outrider.core.tree import TokenTree
from outrider.drafters.device_loop import DeviceLoop
from outrider.drafters.loop_text import ROWS, TEXTS, Guesses, bucket
from outrider.model.cuda.follow import aim, numbers_of, settle
from outrider.model.cuda.graphs import BUCKETS, Graph, Graphs
from outrider.model.cuda.inputs import ANCESTORS, SLOT
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
        with loop.cuda.active(), torch.inference_mode():
            self._compile()

    def _compile(self) -> None:
        """The kernels, for no text: not while texts wait for the first round."""
        loop = self._loop
        checked, texts, reading = loop.rows(ROWS[0]), loop.texts(TEXTS[0]), loop.rows(ROWS[0])
        numbers, choices = self._numbers, torch.zeros_like(self._numbers)
        settle(numbers, checked, choices, texts, reading, loop.first, loop.tile(ROWS[0]))
        aim(numbers, checked, choices, texts, loop.found(TEXTS[0]))

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

    def __call__(self, slots: list[array], firsts: list[int], shape: tuple[int, int]) -> Round:
        """After a pass that checked chains: another of the same shape, for those of its texts that
        go on. Of each of them, slots that it may write now, as many as it had rows then, and the
        first of these rows; shape: texts and rows of the pass."""
        with self._loop.cuda.active():
            return self._start(slots, firsts, shape)

    def _start(self, slots: list[array], firsts: list[int], shape: tuple[int, int]) -> Round:
        lengths = [len(each) for each in slots]
        count, guesses = bucket(TEXTS, shape[0]), max(lengths) - 1
        assert guesses, "a pass that checked nothing is another graph than `again` takes"
        turn = self.rounds % STAGES
        self.rounds += 1
        found = self._loop.found(count)[:guesses]  # [guesses, 2, texts]
        found_here = self._found_here[turn][: found.numel()]

        def prepare(graph: Graph) -> None:
            loop, rows = self._loop, graph.inputs.rows
            tile = loop.tile(rows)
            read, draft = loop.reads(rows), loop.drafting(count, guesses)
            texts, reading = loop.texts(count), loop.rows(rows)
            numbers = self._numbers[: numbers_of(count, rows)]
            here = self._numbers_here[turn][: len(numbers)]
            self._fill(here.numpy(), slots, firsts, count, tile)
            numbers.copy_(here, non_blocking=True)
            for start, end in _gaps(firsts, lengths, shape[1]):
                for field in (SLOT, ANCESTORS):  # padding, which the scrap slot takes
                    graph.inputs.field(field)[start:end].zero_()
            loop.clear()
            settle(numbers, graph.inputs, graph.choices, texts, reading, loop.first, tile)
            read()
            draft()
            aim(numbers, graph.inputs, graph.choices, texts, loop.found(count))
            found_here.copy_(found.flatten(), non_blocking=True)

        def guessed() -> list[Guesses]:
            known = found_here.view(found.shape).numpy()
            return [_as_checked(known[: n - 1, :, i]) for i, n in enumerate(lengths)]

        return Round(self._graphs.again(shape[1], prepare), guessed)

    def _fill(
        self, numbers: np.ndarray, slots: list[array], firsts: list[int], count: int, tile: int
    ) -> None:
        """numbers [numbers_of(count, rows)]"""
        lengths = [len(each) for each in slots]
        numbers[:] = 0
        numbers[: len(slots)] = firsts
        numbers[count:][: len(slots)] = lengths
        tiles = [-(-length // tile) for length in lengths]
        numbers[2 * count :][: len(slots)] = [0, *accumulate(tiles)][:-1]
        for first, each in zip(firsts, slots, strict=True):
            numbers[3 * count + first :][: len(each)] = each


def _gaps(firsts: list[int], lengths: list[int], rows: int) -> Iterator[tuple[int, int]]:
    """Of so many rows, those that no text has: where they begin and end."""
    end = 0
    for first, length in zip([*firsts, rows], [*lengths, 0], strict=True):
        if first > end:
            yield end, first
        end = first + length


def _as_checked(found: np.ndarray) -> Guesses:
    """found [guesses, 2]; where no token was possible, `aim` has the pass check token 0."""
    tokens, sure = found[:, 0].astype(np.int64), found[:, 1]
    return Guesses(np.maximum(tokens, 0).tolist(), np.where(tokens < 0, 0.0, sure).tolist())
