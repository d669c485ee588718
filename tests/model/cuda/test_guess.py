"""A guess is the token of sampling/choose.py, with its softmax; then the row is that token's."""

import pytest
import torch
from tests.model.cuda.passes import DEVICE
from tests.model.cuda.test_choice import TEMPERATURES, setting

from outrider.model.cuda.guess import DEPTH, LIMIT, LOOP_FIELDS, guess, workspace_for
from outrider.model.cuda.inputs import (
    ANCESTORS,
    CONTEXT,
    FIELDS,
    LINE,
    OUTPUT_POSITION,
    POSITION,
    SLOT,
    TILE_ROWS,
    TOKEN,
    RowInputs,
)
from outrider.model.cuda.workspace import Workspace
from outrider.sampling.choose import choose as reference
from outrider.sampling.counts import Counts
from outrider.sampling.noise import Key, Purpose, noise, streams
from outrider.sampling.process import process

ROWS = 8


def loop_rows(inputs: RowInputs) -> RowInputs:
    """The same rows, with a loop's fields: row i is text i at place 3 of its line, with slots up
    to place 3 + i % 3; no guess so far for even rows, one for odd ones."""
    table = torch.arange(9 * 6, dtype=torch.int32, device=DEVICE).view(9, 6)
    packed = torch.zeros(LOOP_FIELDS * ROWS, dtype=torch.int64, device=DEVICE)
    packed[: FIELDS * ROWS] = inputs.packed[: FIELDS * ROWS]
    rows = RowInputs(ROWS, True, packed, table)
    order = torch.arange(ROWS, device=DEVICE)
    rows.field(POSITION)[:], rows.field(LINE)[:] = 3, 1 + order
    rows.field(LIMIT)[:], rows.field(DEPTH)[:] = 3 + order % 3, order % 2
    rows.field(ANCESTORS)[:] = rows.field(TILE_ROWS)[:] = 1
    return rows


@pytest.mark.parametrize("vocabulary", [40, 5000])
@pytest.mark.parametrize("known", [False, True])
def test_the_guess_its_confidence_and_the_row_after_it(vocabulary: int, known: bool) -> None:
    logits, asked, inputs = setting(vocabulary, ROWS, 2.0)
    logits[:, : vocabulary // 4] = -torch.inf  # a draft vocabulary
    rows = loop_rows(inputs)
    before = rows.packed.clone().view(LOOP_FIELDS, ROWS)
    out = torch.full((2, 2, ROWS), -7.0, dtype=torch.float64, device=DEVICE)
    sure = torch.rand(ROWS, device=DEVICE) if known else None
    work = Workspace.of(*workspace_for(ROWS, vocabulary), DEVICE)
    guess(logits, rows, work, out, sure)

    scores = process(logits.cpu(), asked, Counts(vocabulary))
    tokens = reference(scores, asked)
    for i, row in enumerate(asked):
        key = Key(row.request.seed, row.request.sample, row.position, Purpose.CHOICE)
        drawn = noise(streams([key]), vocabulary)[0] if TEMPERATURES[i % 4] else 0.0
        expected = (scores[i] + drawn).softmax(-1)[tokens[i]] if sure is None else sure[i]
        assert out[i % 2, 0, i] == tokens[i]
        assert float(out[i % 2, 1, i]) == pytest.approx(float(expected), rel=1e-4)
        assert (out[1 - i % 2, :, i] == -7).all()
    goes_on = [i % 3 > 0 for i in range(ROWS)]
    after = rows.packed.view(LOOP_FIELDS, ROWS)
    assert after[TOKEN].tolist() == tokens.tolist()
    assert after[POSITION].tolist() == [4] * ROWS
    assert after[CONTEXT].tolist() == [4 * on for on in goes_on]
    assert after[SLOT].tolist() == [(6 * (1 + i) + 4) * on for i, on in enumerate(goes_on)]
    assert after[ANCESTORS].tolist() == after[TILE_ROWS].tolist() == goes_on
    assert after[DEPTH].tolist() == [1 + i % 2 for i in range(ROWS)]
    assert torch.equal(after[OUTPUT_POSITION], before[OUTPUT_POSITION] + 1)
    moved = [TOKEN, POSITION, CONTEXT, SLOT, ANCESTORS, TILE_ROWS, DEPTH, OUTPUT_POSITION]
    others = [field for field in range(LOOP_FIELDS) if field not in moved]
    assert torch.equal(after[others], before[others])


def test_where_no_token_is_possible_there_is_no_guess() -> None:
    logits, _, inputs = setting(320, ROWS, 1.0)
    logits[0, 5] = torch.nan
    logits[1] = -torch.inf
    rows = loop_rows(inputs)
    out = torch.zeros(2, 2, ROWS, dtype=torch.float64, device=DEVICE)
    guess(logits, rows, Workspace.of(*workspace_for(ROWS, 320), DEVICE), out)
    assert out[0, 0, 0] == out[1, 0, 1] == -1 and (out[0, 0, 2::2] >= 0).all()
    assert rows.field(TOKEN).min() >= 0  # what the next pass embeds
