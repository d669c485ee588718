"""A pass made of the one before it sends what its segments would have said."""

import random
from array import array
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.model.cuda.host_side import HostSide
from tests.model.cuda.passes import DEVICE

from outrider.model.cuda.inputs import TEMPERATURE
from outrider.model.flight import Flight
from outrider.model.segment import LIKELIEST, Choosing, Segment

LONGEST = 24
DRAWN = Choosing(temperature=0.7, seed=1 << 63, sample=1, position=3, top_k=5, top_p=0.9)


class Listening(HostSide):
    """Runs nothing: what would have reached the device is in `sent`."""

    def __init__(self) -> None:
        super().__init__(4, 2, lines=8, longest=LONGEST, device=DEVICE)
        self.sent: list[np.ndarray] = []

    def _fly(self, graph: Any, rows: int, wanted: list[int] | None) -> Flight:
        self.sent.append(self.received(graph, rows))
        return Flight(torch.empty(0))


@pytest.fixture(autouse=True)
def no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())


def texts(count: int, before: int) -> list[Segment]:
    """One row each, some greedy and some drawn, below contexts of their own."""
    rng = random.Random(count)
    segments = []
    for i in range(count):
        context = array("q", [rng.randrange(1, 999) for _ in range(before + i)])
        choosing = DRAWN if i % 2 else LIKELIEST
        segments.append(Segment([7 + i], [-1], array("q", [50 + i]), context, 0, i + 1, choosing))
    return segments


def one_later(segment: Segment, row: int, slot: int) -> Segment:
    context, asked = segment.context + segment.slots, segment.choosing
    assert asked is not None
    if asked.temperature:
        asked = asked._replace(position=asked.position + 1)
    slots = array("q", [slot])
    return replace(segment, tokens=[-1 - row], slots=slots, context=context, choosing=asked)


def meant(graphs: Listening) -> np.ndarray:
    """[FIELDS, rows] of the last pass, but for how a greedy row would draw."""
    fields = graphs.sent[-1].copy()
    fields[TEMPERATURE + 1 :, fields[TEMPERATURE] == 0] = 0
    return fields


def test_it_says_what_segments_would_say() -> None:
    """Pass after pass, while texts leave; then one of segments again."""
    went_on, told = Listening(), Listening()
    now, rng = texts(7, before=3), random.Random(0)
    flight = went_on._launch(now)
    told._launch(now)
    for step in range(9):
        kept = sorted(rng.sample(range(len(now)), max(2, len(now) - step % 2)))
        slots = [100 + 10 * step + i for i in range(len(kept))]
        now = [one_later(now[row], row, slot) for row, slot in zip(kept, slots, strict=True)]
        assert flight.go_on is not None
        flight = flight.go_on(kept, slots)
        told._launch(now)
        assert np.array_equal(meant(went_on), meant(told))
        assert torch.equal(went_on.table.device_table, told.table.device_table)
    lines = went_on.table.lines_for(now)
    assert went_on.table.changes(now, lines) == ([], [])  # it knows what was sent
    back = texts(7, before=3)
    for graphs in (went_on, told):
        graphs._launch(back)
    assert np.array_equal(meant(went_on), meant(told))


def test_it_does_not_outgrow_its_line() -> None:
    graphs = Listening()
    flight = graphs._launch(texts(1, before=LONGEST - 1))
    assert flight.go_on is not None
    assert flight.go_on([0], [9]).go_on is None


def test_only_passes_of_single_rows_whose_logits_are_all_wanted_go_on() -> None:
    graphs = Listening()
    pair = Segment([3, 4], [-1, 0], array("q", [1, 2]), array("q"), 0, owner=1)
    assert graphs._launch([pair]).go_on is None
    silent = replace(texts(1, before=3)[0], logits_from=1)
    assert graphs._launch([silent]).go_on is None


def test_it_is_the_last_pass_that_goes_on() -> None:
    graphs = Listening()
    first = graphs._launch(texts(2, before=3))
    graphs._launch(texts(3, before=3))
    assert first.go_on is not None
    with pytest.raises(AssertionError, match="another pass"):
        first.go_on([0], [9])
