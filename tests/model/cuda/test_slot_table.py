"""The device's table holds the slots of every text, whatever happened to them in between."""

import random
from array import array

import pytest
import torch
from tests.model.cuda.passes import DEVICE

from outrider.model.cuda.inputs import ancestor_bits
from outrider.model.cuda.slot_table import SlotTable
from outrider.model.segment import Segment


def row(context: array, owner: object) -> Segment:
    return Segment([1], [-1], array("q", [0]), context, 0, owner=id(owner))


def test_lines_follow_texts_that_grow_shrink_and_come_back() -> None:
    rng = random.Random(0)
    table = SlotTable(lines=3, longest=40, device=DEVICE)
    texts = [array("q") for _ in range(5)]
    for _ in range(200):
        picked = rng.sample(texts, rng.randint(1, 3))
        for text in picked:
            if rng.random() < 0.2:
                del text[rng.randint(0, len(text)) :]
            text.extend(rng.randrange(1, 99) for _ in range(rng.randint(0, 3)))
            del text[40:]
        segments = [row(text, text) for text in picked]
        lines = table.lines_for(segments)
        assert len(set(lines)) == len(lines) and 0 not in lines
        table.write(*table.changes(segments, lines))
        for text, line in zip(picked, lines, strict=True):
            held = table.device_table[line, : len(text)].tolist()
            assert held == list(text)


def test_only_what_is_new_travels() -> None:
    table = SlotTable(lines=2, longest=40, device=DEVICE)
    text = array("q", range(10, 20))
    lines = table.lines_for([row(text, table)])
    table.changes([row(text, table)], lines)
    text.extend([31, 32])
    places, slots = table.changes([row(text, table)], lines)
    assert slots == [31, 32] and len(places) == 2
    assert len(table.changes([row(text, table)], lines)[0]) == 0


def test_ancestors_as_bits() -> None:
    bits = ancestor_bits([-1, 0, 0, 2])
    assert bits == [0b1, 0b11, 0b101, 0b1101]
    longest = ancestor_bits(list(range(-1, 63)))
    assert longest[62] == 2**63 - 1 and longest[63] == -1  # all 64 bits, the last one as the sign


def test_what_the_device_wrote_is_known_up_to_the_text_and_no_further() -> None:
    table = SlotTable(lines=2, longest=40, device=DEVICE)
    text = array("q", range(10, 20))
    (line,) = table.lines_for([row(text, text)])
    table.write(*table.changes([row(text, text)], [line]))
    table.device_table[line, 4:9] = 77  # a kernel has gone on from the fifth place
    table.holds(id(text), text[:4] + array("q", [77]))
    now = text[:4] + array("q", [77]) + text[5:]  # the same slots as were sent once
    assert table.changes([row(now, text)], [line])[1] == list(text[5:])


def test_what_did_not_fit_into_memory_is_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    table = SlotTable(lines=2, longest=40, device=DEVICE)
    text = array("q", range(10, 20))
    lines = table.lines_for([row(text, text)])
    changes = table.changes([row(text, text)], lines)

    def full(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError

    with monkeypatch.context() as patch, pytest.raises(torch.OutOfMemoryError):
        patch.setattr(torch, "tensor", full)
        table.write(*changes)
    assert table.changes([row(text, text)], lines) == changes


def test_a_line_that_another_has_taken_does_not_grow() -> None:
    table = SlotTable(lines=1, longest=40, device=DEVICE)
    lines = table.lines_for([row(array("q", [5]), table)])
    table.grows([id(table)], lines, [6])
    table.lines_for([row(array("q", [7]), lines)])
    table.lines_for([row(array("q", [7]), DEVICE)])
    with pytest.raises(AssertionError, match="another's"):
        table.grows([id(table)], [2], [6])
