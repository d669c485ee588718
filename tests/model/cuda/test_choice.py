"""Choices made by the kernel are those of sampling/choose.py, noise and all."""

import numpy as np
import pytest
import torch
from tests.model.cuda.passes import DEVICE

from outrider.core.params import SamplingParams
from outrider.core.request import Request
from outrider.model.cuda.choice import choose, workspace_for
from outrider.model.cuda.inputs import (
    OUTPUT_POSITION,
    SAMPLE,
    SEED,
    TEMPERATURE,
    RowInputs,
)
from outrider.model.cuda.workspace import Workspace
from outrider.sampling.choose import choose as reference
from outrider.sampling.counts import Counts
from outrider.sampling.process import process
from outrider.sampling.rows import Row

TEMPERATURES = [0.0, 1.0, 0.7, 2.5]


def setting(vocabulary: int, rows: int, scale: float) -> tuple[torch.Tensor, list[Row], RowInputs]:
    torch.manual_seed(vocabulary)
    logits = (torch.randn(rows, vocabulary) * scale).to(DEVICE)
    table = torch.zeros(1, 1, dtype=torch.int32, device=DEVICE)
    inputs = RowInputs.of(rows, True, table)
    asked = []
    for i in range(rows):
        temperature = TEMPERATURES[i % 4]
        seed = (1 << 62) // (i + 1) + i  # both words of the key
        request = Request(f"{i}", [0], SamplingParams(temperature=temperature), seed, sample=i % 3)
        asked.append(Row(request, [0] * (5 * i)))
        inputs.field(TEMPERATURE)[i] = int(np.float32(temperature).view(np.int32))
        inputs.field(SEED)[i] = seed
        inputs.field(OUTPUT_POSITION)[i] = asked[-1].position
        inputs.field(SAMPLE)[i] = request.sample
    return logits, asked, inputs


@pytest.mark.parametrize("vocabulary", [40, 64, 320, 5000])
@pytest.mark.parametrize("scale", [0.0, 0.3, 3.0])
def test_the_kernel_chooses_as_the_host_does(vocabulary: int, scale: float) -> None:
    logits, rows, inputs = setting(vocabulary, 8, scale)
    size = workspace_for(8, vocabulary)
    got = choose(logits, inputs, Workspace.of(size, size, DEVICE))
    host = logits.cpu()
    expected = reference(process(host, rows, Counts(vocabulary)), rows)
    assert got.tolist() == expected.tolist()


def test_rows_without_a_finite_maximum_choose_nothing() -> None:
    logits, _, inputs = setting(320, 8, 1.0)
    logits[0, 5] = torch.nan
    logits[1, 5] = torch.nan
    logits[2] = -torch.inf
    logits[3, 9] = torch.inf
    logits[4, :300] = -torch.inf
    size = workspace_for(8, 320)
    got = choose(logits, inputs, Workspace.of(size, size, DEVICE)).tolist()
    assert got[:4] == [-1] * 4 and got[4] >= 300 and min(got[5:]) >= 0


def test_equal_scores_go_to_the_lowest_token() -> None:
    logits, _, inputs = setting(9000, 1, 0.0)
    logits[0, [70, 4097, 8500]] = 2.0
    size = workspace_for(1, 9000)
    assert choose(logits, inputs, Workspace.of(size, size, DEVICE)).tolist() == [70]
