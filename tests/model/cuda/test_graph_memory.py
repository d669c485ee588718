"""The figure for graphs is that of the tensors they hold."""

from pathlib import Path

import pytest
import torch
from tests.model.cuda.passes import DEVICE
from tests.tiny import make_tiny

from outrider.model.cuda.fused import FusedModel
from outrider.model.cuda.graphs import _workspace_sizes, buckets, bytes_of_graphs
from outrider.model.cuda.slot_table import SlotTable
from outrider.model.cuda.truncation import CutMemory
from outrider.model.cuda.whole_text import SIZES, WIDTHS
from outrider.model.cuda.workspace import COUNTERS, Workspace
from outrider.model.loading import load_model
from outrider.model.runner import Runner

LINES, LONGEST = 8, 300


@pytest.mark.parametrize("invariant", [False, True])
@torch.inference_mode()
def test_bytes_of_graphs(tmp_path: Path, invariant: bool) -> None:
    folder = make_tiny("qwen2", tmp_path)
    runner = Runner(load_model(str(folder), dtype="float32", device=str(DEVICE)))
    call, vocabulary = runner.layers[0], runner.vocabulary
    model = FusedModel(runner.loaded, runner.layers, LONGEST, runner.taps)
    shape = (call.heads, call.kv_heads, call.value_head_size)
    sizes = _workspace_sizes(shape, vocabulary, model.most_parts, invariant)
    work = Workspace.of(*sizes, DEVICE)
    held = [work.parts, work.weights, SlotTable(LINES, LONGEST, DEVICE).device_table]
    held += [model.cos, model.sin]
    for _ in range(1 if invariant else 2):
        held += [torch.empty(rows, vocabulary) for rows in buckets(invariant)]
    if not invariant:
        held += [torch.empty(1, vocabulary) for _ in SIZES]
        held += [torch.empty(SIZES[-1], WIDTHS * 32)]  # while a prompt is read
    cuts = CutMemory.of(buckets(invariant)[-1], vocabulary, DEVICE)
    held += [value for value in vars(cuts).values() if isinstance(value, torch.Tensor)]
    assert work.arrived.nbytes == 4 * COUNTERS  # not counted: 16 KiB
    assert bytes_of_graphs(
        call,
        width=32,
        vocabulary=vocabulary,
        element=4,
        lines=LINES,
        longest=LONGEST,
        invariant=invariant,
    ) == sum(tensor.nbytes for tensor in held)
