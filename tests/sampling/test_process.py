import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from outrider.core.errors import InvalidRequest
from outrider.core.params import SamplingParams
from outrider.core.request import Request
from outrider.sampling import process as process_module
from outrider.sampling.counts import Counts
from outrider.sampling.process import process
from outrider.sampling.rows import ProcessorError, Row
from tests.sampling.reference import reference_scores

V = 40


def make_request(seed: int = 0, **options: Any) -> Request:
    bad_words = options.pop("bad_word_ids", [])
    params = SamplingParams(**options)
    return Request(
        f"r{seed}",
        [1, 2, 3],
        params,
        seed,
        stop_ids=frozenset([4, 5000]),
        bad_word_ids=bad_words,
        output_ids=[2, 7, 7],
    )


def logits(rows: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(rows, V, generator=torch.Generator().manual_seed(rows)).to(dtype) * 3


OPTIONS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.0},
    {"temperature": 0.6},
    {"top_k": 5},
    {"top_k": 5, "temperature": 0.0},
    {"top_k": V + 3, "top_p": 0.9},
    {"top_p": 0.3},
    {"min_p": 0.2, "top_k": 10, "temperature": 1.7},
    {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": -0.4},
    {"logit_bias": {0: 5.0, 9: -math.inf, 100_000: 3.0}},
    {"min_tokens": 5},
    {"bad_word_ids": [[8], [7, 9], [7, 7, 10], [2, 7, 7, 11], [1, 2, 7, 7, 12], [100_000]]},
]


def mixed_rows() -> list[Row]:
    paths: list[list[int]] = [[], [7], [7, 9, 30]]
    return [Row(make_request(i, **o), path) for i, o in enumerate(OPTIONS) for path in paths]


def test_mixed_batch_equals_the_reference() -> None:
    rows = mixed_rows()
    raw = logits(len(rows), torch.float64)
    scores = process(raw, rows, Counts(V))
    for i, row in enumerate(rows):
        request = make_request(
            **{
                **OPTIONS[i // 3],
                "bad_word_ids": [w for w in row.request.bad_word_ids if w[-1] < V],
            }
        )
        request.stop_ids = frozenset([4])
        expected = reference_scores(raw[i].numpy(), request, row.path)
        torch.testing.assert_close(
            scores[i], torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=1e-12
        )


def test_input_is_not_written_to_and_rows_do_not_mix(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = mixed_rows()
    raw = logits(len(rows))
    kept = raw.clone()
    together = process(raw, rows, Counts(V))
    assert torch.equal(raw, kept)
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(3)).tolist()
    shuffled = process(raw[order], [rows[i] for i in order], Counts(V))
    assert torch.equal(shuffled, together[order])
    for i, row in enumerate(rows):
        assert torch.equal(process(raw[i : i + 1], [row], Counts(V))[0], together[i])
    monkeypatch.setattr(process_module, "CHUNK_BYTES", 5 * process_module.COPIES * V * 4)
    assert torch.equal(process(raw, rows, Counts(V)), together)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_becomes_float32(dtype: torch.dtype) -> None:
    plain = [Row(make_request(temperature=0.0), [])]
    raw = logits(1, dtype)
    assert torch.equal(process(raw, plain, Counts(V)), raw.float())
    cold = [Row(make_request(temperature=0.5), [])]
    assert torch.equal(process(raw, cold, Counts(V)), raw.float() / 0.5)


def test_counts_follow_the_output_and_are_released() -> None:
    counts = Counts(V)
    request = make_request(frequency_penalty=1.0)
    raw = torch.zeros(1, V)
    assert process(raw, [Row(request, [])], counts)[0, 7].item() == -2
    for token in (7, 9):
        request.append(token)
    row = process(raw, [Row(request, [9, 9])], counts)[0]
    assert (row[7].item(), row[9].item(), row[2].item(), row[1].item()) == (-3, -3, -1, 0)
    assert process(raw, [Row(request, [])], counts)[0, 9].item() == -1  # the path left no trace
    process(raw, [Row(make_request(temperature=0.5), [])], counts)
    assert len(counts) == 1
    counts.release(request)
    counts.release(request)
    assert len(counts) == 0


def returns(value: Any) -> Any:
    def broken(tokens: list[int], row: Tensor) -> Any:
        return value

    return broken


def raises(tokens: list[int], row: Tensor) -> Tensor:
    raise KeyError("lost")


@pytest.mark.parametrize(
    ("processor", "reason"),
    [
        (returns(None), "'broken' returned a NoneType instead of a tensor"),
        (returns(torch.zeros(3)), "shape (3,) instead of (40,)"),
        (returns(torch.zeros(V, dtype=torch.int64)), "torch.int64 instead of floating point"),
        (returns(torch.full((V,), math.nan)), "NaN"),
        (returns(torch.full((V,), math.inf)), "+inf"),
        (returns(torch.full((V,), -math.inf)), "-inf for every token"),
        (raises, "'raises' raised KeyError: 'lost'"),
    ],
)
def test_broken_processor_is_named_and_touches_only_its_row(processor: Any, reason: str) -> None:
    bad = make_request(1, logits_processors=[processor], top_p=0.5, top_k=3, min_p=0.1)
    rows = [Row(make_request(0, top_p=0.5), []), Row(bad, [7]), Row(make_request(2), [])]
    raw = logits(3)
    scores = process(raw, rows, Counts(V))
    assert scores[1].isnan().all() and rows[0].error is None and rows[2].error is None
    error = rows[1].failure()
    assert isinstance(error, ProcessorError) and isinstance(error, InvalidRequest)
    assert error.request is bad and reason in str(error) and "\n" not in str(error)
    assert torch.equal(scores[:1], process(raw[:1], rows[:1], Counts(V)))


def test_processors_run_in_order_on_copies() -> None:
    seen: list[list[int]] = []

    def first(tokens: list[int], row: Tensor) -> Tensor:
        seen.append(tokens)
        tokens.append(99)  # a caller's list must not be ours
        row[0] = 50.0
        return row

    def second(tokens: list[int], row: Tensor) -> Tensor:
        seen.append(list(tokens))
        return row * 2

    request = make_request(logits_processors=[first, second], temperature=0.0)
    raw = logits(1)
    scores = process(raw, [Row(request, [6])], Counts(V))
    assert scores[0, 0].item() == 100 and raw[0, 0].item() != 50
    assert seen[1] == [2, 7, 7, 6] and request.output_ids == [2, 7, 7]


def test_nothing_left_or_not_a_number_stays_visible() -> None:
    everything = dict.fromkeys(range(V), -math.inf)
    options = {"top_k": 4, "top_p": 0.5, "min_p": 0.3, "temperature": 0.5}
    rows = [Row(make_request(0, logit_bias=everything, **options), [])]
    rows.append(Row(make_request(1, **options), []))
    raw = logits(2)
    raw[1, 3] = math.nan
    scores = process(raw, rows, Counts(V))
    assert not scores[0].isfinite().any() and scores[1].isnan().any()
    assert "every token is banned" in str(rows[0].failure())


def test_reference_bad_words_need_their_whole_start() -> None:
    request = make_request(bad_word_ids=[[2, 7, 7, 11], [9, 2, 7, 7, 12]])
    scores = reference_scores(np.zeros(V), request, [])
    assert scores[11] == -math.inf and scores[12] == 0
