"""The kernel against the plain attention, in Triton's interpreter where there is no GPU."""

import random
from array import array

import pytest
import torch
from tests.model.cuda.passes import DEVICE, randn
from tests.model.cuda.test_tree_attention import expected

from outrider.model.attention import LayerKV
from outrider.model.cuda.text_attention import (
    Texts,
    keys_of,
    pairs_of,
    text_attention,
    tiles_of,
)
from outrider.model.cuda.tree_attention import Options
from outrider.model.segment import Segment


def chains(shapes: list[tuple[int, int]]) -> tuple[list[Segment], int]:
    """For (context, rows) each, in slots of any order; and how many slots there are."""
    total = sum(map(sum, shapes))
    free = random.Random(total).sample(range(1, total + 1), total)
    segments = []
    for context, rows in shapes:
        slots = array("q", [free.pop() for _ in range(context + rows)])
        segments.append(Segment.chain([0] * rows, slots[context:], slots[:context], 0))
    return segments, total + 1


def texts_of(segments: list[Segment], group: int) -> Texts:
    slots = [slot for s in segments for slot in [*s.context, *s.slots]]
    tiles = torch.from_numpy(tiles_of(segments, group)).to(DEVICE)
    return Texts(tiles, torch.tensor(slots, device=DEVICE))


def check(
    shapes: list[tuple[int, int]],
    heads: int = 4,
    kv_heads: int = 2,
    size: int = 16,
    options: Options = Options(),  # noqa: B008
    dtype: torch.dtype = torch.float32,
) -> None:
    segments, slots = chains(shapes)
    memory = LayerKV(
        randn(slots, kv_heads, size, seed=1, dtype=dtype),
        randn(slots, kv_heads, size, seed=2, dtype=dtype),
    )
    query = randn(sum(map(len, segments)), heads, size, seed=3, dtype=dtype)
    texts = texts_of(segments, heads // kv_heads)
    got = text_attention(query, memory.keys, memory.values, texts, size**-0.5, options)
    wanted = expected(query, memory, segments, size**-0.5, options)
    error = (got - wanted).float().norm() / wanted.float().norm()
    assert error < (1e-5 if dtype == torch.float32 else 1e-2)


@pytest.mark.parametrize(
    "shapes", [[(0, 1)], [(0, 100)], [(70, 1)], [(33, 40)], [(0, 65), (64, 1), (31, 33), (0, 2)]]
)
def test_it_is_the_plain_attention(shapes: list[tuple[int, int]]) -> None:
    check(shapes)


@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (6, 1), (12, 2), (3, 3), (80, 1)])
def test_any_grouping_of_heads(heads: int, kv_heads: int) -> None:
    check([(0, 30), (5, 3)], heads, kv_heads)


@pytest.mark.parametrize("size", [8, 64, 80, 128])
def test_any_head_size(size: int) -> None:
    check([(40, 20), (0, 5)], size=size)


@pytest.mark.parametrize(
    "options",
    [
        Options(window=1),
        Options(window=40),
        Options(softcap=2.0),
        Options(sinks=randn(4, seed=9)),
        Options(window=20, softcap=3.0, sinks=randn(4, seed=9)),
    ],
)
def test_windows_caps_and_sinks(options: Options) -> None:
    check([(90, 50), (2, 4), (80, 1)], options=options)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_low_precision(dtype: torch.dtype) -> None:
    check([(90, 30), (0, 40)], heads=12, size=64, dtype=dtype)


def test_blocks_of_wide_heads_have_fewer_keys() -> None:
    """So that two of them fit into the memory of any multiprocessor."""
    assert [keys_of(size, 2) for size in (16, 64, 128, 256)] == [64, 64, 64, 32]
    assert [keys_of(size, 4) for size in (16, 64, 128, 256)] == [64, 64, 32, 16]


def test_every_row_is_in_one_tile() -> None:
    segments, _ = chains([(3, 30), (0, 1), (7, 25)])
    tiles = tiles_of(segments, group=6).tolist()
    assert pairs_of(6) // 6 == 10 and pairs_of(80) == 128
    assert tiles == [
        [0, 10, 0, 3], [10, 10, 0, 13], [20, 10, 0, 23],
        [30, 1, 33, 0],
        [31, 10, 34, 7], [41, 10, 34, 17], [51, 5, 34, 27],
    ]  # fmt: skip


def test_a_nan_of_one_text_stays_there() -> None:
    segments, slots = chains([(4, 6), (3, 5)])
    keys, values = randn(slots, 2, 16, seed=1), randn(slots, 2, 16, seed=2)
    keys[segments[0].context[0]] = torch.nan
    values[segments[0].context[0]] = torch.nan
    out = text_attention(randn(11, 4, 16, seed=3), keys, values, texts_of(segments, 2), 0.25)
    assert out[:6].isnan().all() and out[6:].isfinite().all()
