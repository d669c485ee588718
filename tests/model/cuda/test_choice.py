"""Choices made by the kernels are those of sampling, noise and truncation and all."""

import pytest
import torch
from tests.model.cuda.passes import DEVICE, choosing_inputs
from torch import Tensor

from outrider.core.params import SamplingParams
from outrider.core.request import Request
from outrider.model.cuda.choice import choose, workspace_for
from outrider.model.cuda.inputs import RowInputs
from outrider.model.cuda.truncation import CutMemory, find_cuts
from outrider.model.cuda.workspace import Workspace
from outrider.model.segment import Choosing
from outrider.sampling.choose import choose as reference
from outrider.sampling.counts import Counts
from outrider.sampling.process import process
from outrider.sampling.rows import Row

TEMPERATURES = [0.0, 1.0, 0.7, 2.5]
TRUNCATIONS = [
    {"top_k": 1},  # without noise it does not matter
    {"top_k": 1},
    {"top_p": 0.6},
    {"top_k": 30, "top_p": 0.8, "min_p": 0.02},
]


def setting(
    vocabulary: int, rows: int, scale: float, truncated: bool = False
) -> tuple[Tensor, list[Row], RowInputs]:
    torch.manual_seed(vocabulary)
    logits = (torch.randn(rows, vocabulary) * scale).to(DEVICE)
    asked, numbers = [], []
    for i in range(rows):
        options = TRUNCATIONS[i % 4] if truncated else {}
        params = SamplingParams(temperature=TEMPERATURES[i % 4], **options)
        seed = (1 << 64) - (1 << 62) // (i + 1) - i  # both words of the key, all bits of them
        request = Request(f"{i}", [0], params, seed, sample=i % 3)
        asked.append(Row(request, [0] * (5 * i)))
        position = asked[-1].position
        numbers.append(Choosing(params.temperature, seed, i % 3, position, **options))
    return logits, asked, choosing_inputs(numbers)


def chosen(logits: Tensor, inputs: RowInputs) -> list[int]:
    rows, vocabulary = logits.shape
    cuts = find_cuts(logits, inputs, CutMemory.of(rows, vocabulary, DEVICE))
    size = workspace_for(rows, vocabulary)
    return choose(logits, cuts, inputs, Workspace.of(size, size, DEVICE)).tolist()


@pytest.mark.parametrize("vocabulary", [40, 64, 320, 5000])
@pytest.mark.parametrize("scale", [0.0, 0.3, 3.0])
def test_the_kernels_choose_as_the_host_does(vocabulary: int, scale: float) -> None:
    logits, rows, inputs = setting(vocabulary, 8, scale)
    expected = reference(process(logits.cpu(), rows, Counts(vocabulary)), rows)
    assert chosen(logits, inputs) == expected.tolist()


def test_truncated_rows_choose_as_the_host_does() -> None:
    logits, rows, inputs = setting(5000, 8, 2.0, truncated=True)
    expected = reference(process(logits.cpu(), rows, Counts(5000)), rows)
    assert chosen(logits, inputs) == expected.tolist()


@pytest.mark.parametrize("truncated", [False, True])
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # the interpreter's
def test_rows_without_a_finite_maximum_choose_nothing(truncated: bool) -> None:
    logits, _, inputs = setting(320, 8, 1.0, truncated)
    logits[0, 5] = torch.nan
    logits[1, 5] = torch.nan
    logits[2] = -torch.inf
    logits[3, 9] = torch.inf
    logits[5, :300] = -torch.inf
    got = chosen(logits, inputs)
    assert got[:4] == [-1] * 4 and got[5] >= 300 and min(got[4:]) >= 0


def test_equal_scores_go_to_the_lowest_token() -> None:
    logits, _, inputs = setting(9000, 1, 0.0)
    logits[0, [70, 4097, 8500]] = 2.0
    assert chosen(logits, inputs) == [70]
