"""Attention by path, against the plain one, and against itself in other passes: to the bit."""

from array import array

import pytest
import torch
from tests.model.cuda.passes import DEVICE, make_inputs, make_segments, randn
from tests.model.cuda.test_tree_attention import expected
from torch import Tensor

from outrider.model.attention import LayerKV
from outrider.model.cuda import invariant_attention as module
from outrider.model.cuda.invariant_attention import invariant_attention, workspace_for
from outrider.model.cuda.tree_attention import Options
from outrider.model.cuda.workspace import Workspace
from outrider.model.segment import Segment

HEADS, KV_HEADS, SIZE = 4, 2, 16


def attend(
    query: Tensor, memory: LayerKV, segments: list[Segment], rows: int, options: Options
) -> Tensor:
    """[rows, heads, size]"""
    inputs = make_inputs(segments, rows, query.shape[1] // memory.keys.shape[1])
    size = query.shape[2]
    work = Workspace.of(*workspace_for(rows, query.shape[1], size), DEVICE)
    for tensor in (work.parts, work.weights):
        tensor.fill_(torch.nan)  # nothing may be read that was not written
    return invariant_attention(
        query, memory.keys, memory.values, inputs, work, size**-0.5, options
    )  # fmt: skip


def check(
    shapes: list[tuple[int, int]],
    rows: int,
    heads: int = HEADS,
    kv_heads: int = KV_HEADS,
    size: int = SIZE,
    options: Options = Options(),  # noqa: B008
    dtype: torch.dtype = torch.float32,
) -> None:
    segments, slots = make_segments(shapes, seed=rows)
    memory = LayerKV(
        randn(slots, kv_heads, size, seed=1, dtype=dtype),
        randn(slots, kv_heads, size, seed=2, dtype=dtype),
    )
    query = randn(rows, heads, size, seed=3, dtype=dtype)
    got = attend(query, memory, segments, rows, options)
    real = sum(map(len, segments))
    wanted = expected(query, memory, segments, size**-0.5, options)
    error = (got[:real] - wanted).float().norm() / wanted.float().norm()
    assert error < (1e-5 if dtype == torch.float32 else 1e-2)
    assert not got[real:].any()


@pytest.mark.parametrize(
    "shapes",
    [[(0, 0)], [(200, 0)], [(150, 12)], [(64, 5), (0, 3), (130, 0), (7, 12)], [(20, 63)]],
)
def test_it_is_the_plain_attention(shapes: list[tuple[int, int]]) -> None:
    check(shapes, sum(1 + nodes for _, nodes in shapes) + 1)  # with padding


@pytest.mark.parametrize(("heads", "kv_heads", "size"), [(6, 1, 8), (3, 3, 80), (20, 1, 64)])
def test_any_heads(heads: int, kv_heads: int, size: int) -> None:
    check([(70, 6), (5, 0)], 8, heads, kv_heads, size)


def test_low_precision() -> None:
    check([(150, 9), (2, 4)], 16, heads=12, size=64, dtype=torch.float16)


def test_paths_of_more_keys_than_parts_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the parts grow."""
    monkeypatch.setattr(module, "PARTS", 2)
    for options in (Options(), Options(window=20)):
        check([(256, 12), (3, 0)], 14, options=options)


OPTIONS = [
    Options(),
    Options(window=4),
    Options(window=66),
    Options(softcap=2.0),
    Options(sinks=randn(4, seed=9)),
    Options(window=70, softcap=3.0, sinks=randn(4, seed=9)),
]


@pytest.mark.parametrize("options", OPTIONS[1:])
def test_windows_caps_and_sinks(options: Options) -> None:
    check([(150, 4), (2, 3), (80, 0)], 11, options=options)


@pytest.mark.parametrize(
    ("length", "options"),
    [(40, OPTIONS[0]), (64, OPTIONS[0]), (131, OPTIONS[0]), (131, OPTIONS[5])],
)
def test_bits_do_not_show_what_else_is_in_the_pass(length: int, options: Options) -> None:
    """The last row of one text: alone, read with the rows before it, as a leaf of a tree, and
    beside others; with other numbers of programs, too. Lengths around the ends of parts."""
    slots = array("q", range(length, 0, -1))
    memory = LayerKV(
        randn(length + 60, KV_HEADS, SIZE, seed=1), randn(length + 60, KV_HEADS, SIZE, seed=2)
    )
    query = randn(HEADS, SIZE, seed=3)
    others, _ = make_segments([(37, 4), (length // 2, 0)], seed=4)

    def last(segments: list[Segment], row: int, rows: int) -> Tensor:
        """[heads, size] of that row, which asks what the text's last one asks."""
        queries = randn(rows, HEADS, SIZE, seed=rows)
        queries[row] = query
        return attend(queries, memory, segments, rows, options)[row]

    def chain(own: int) -> Segment:
        """The text with its last rows in the pass."""
        return Segment.chain([0] * own, slots[-own:], slots[:-own], logits_from=0)

    alone = last([chain(1)], 0, 1)
    assert alone.isfinite().all()
    for own in (2, 5, 35 if length == 64 else 7):
        assert torch.equal(last([chain(own)], own - 1, own), alone)
    assert torch.equal(last([*others, chain(5)], 10, 13), alone)
    # Below four rows a fork: 4 is a leaf, 5 and 6 go on.
    forked = array("q", [*slots[-6:-2], length + 50, *slots[-2:]])
    tree = Segment([0] * 7, [-1, 0, 1, 2, 3, 3, 5], forked, slots[:-6], logits_from=0)
    assert torch.equal(last([tree], 6, 7), alone)
    assert torch.equal(last([others[0], tree, others[1]], 11, 16), alone)
