"""What running a model takes on a GPU beside its weights and slots."""

from array import array

import torch

from outrider.model.memory import peak_bytes
from outrider.model.runner import SCRAP, Runner
from outrider.model.segment import Segment


def pass_bytes(runner: Runner, rows: int, longest: int) -> int:
    """What a pass over so many rows, the last of a text of `longest` tokens, takes for a moment.

    Measured, with slots that are given up again. Not on a CPU, which gives and takes pages as they
    are used.
    """
    if runner.device.type != "cuda":
        return 0
    rows = min(rows, longest)
    before = array("q", [SCRAP]) * (longest - rows)  # that the text is real does not matter
    slots = array("q", range(1, rows + 1))
    text = Segment.chain([0] * rows, slots, before, logits_from=rows - 1)
    runner.allocate(rows)
    try:
        return peak_bytes(runner.device, lambda: runner.forward([text]))
    finally:
        for layer in runner.layers:
            del layer.module.outrider_kv


def workspace_bytes(runner: Runner, sequences: int, longest: int) -> int:
    """What `Runner.speed_up` will hold once it has graphs of all sizes."""
    if runner.device.type != "cuda":
        return 0
    try:
        from outrider.model.cuda.fused import unfused_because
        from outrider.model.cuda.graphs import bytes_of_graphs
    except ImportError:  # no Triton, no graphs
        return 0
    if runner.reproducible and unfused_because(runner.loaded) is not None:
        return 0
    return bytes_of_graphs(
        runner.layers[0],
        width=runner.model.get_input_embeddings().weight.shape[1],
        vocabulary=runner.vocabulary,
        element=torch.empty((), dtype=runner.loaded.dtype).element_size(),
        lines=sequences,
        longest=longest,
        invariant=runner.reproducible,
    )
