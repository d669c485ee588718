"""The kernel against the plain attention, in Triton's interpreter where there is no GPU."""

import pytest
import torch
from tests.model.cuda.passes import DEVICE, make_inputs, make_segments, randn
from torch import Tensor

from outrider.model.attention import LayerKV, _attend
from outrider.model.cuda import tree_attention as module
from outrider.model.cuda.tree_attention import Options, tree_attention, workspace_for
from outrider.model.cuda.workspace import Workspace
from outrider.model.segment import Segment, group_segments


def expected(
    query: Tensor, memory: LayerKV, segments: list[Segment], scale: float, options: Options
) -> Tensor:
    """[real rows, heads, value head size] by the reference."""
    out = query.new_zeros(sum(map(len, segments)), query.shape[1], memory.values.shape[2])
    for group in group_segments(segments):
        group = group.to(DEVICE)
        mask = group.mask(options.window, query.shape[1] // memory.keys.shape[1])
        result = _attend(
            query[group.rows], memory, group.slots, mask, scale, options.softcap, options.sinks
        )
        out[group.real_rows] = result.flatten(0, 1)[group.real]
    return out


def check(
    shapes: list[tuple[int, int]],
    rows: int,
    heads: int = 4,
    kv_heads: int = 2,
    size: int = 16,
    options: Options = Options(),  # noqa: B008
    dtype: torch.dtype = torch.float32,
    sharp: float = 1.0,
) -> None:
    segments, slots = make_segments(shapes, seed=rows)
    inputs = make_inputs(segments, rows, heads // kv_heads)
    memory = LayerKV(
        randn(slots, kv_heads, size, seed=1, dtype=dtype),
        randn(slots, kv_heads, size, seed=2, dtype=dtype),
    )
    query = sharp * randn(rows, heads, size, seed=3, dtype=dtype)
    work = Workspace.of(*workspace_for(rows, inputs.single, heads, kv_heads, size), DEVICE)
    for tensor in (work.parts, work.weights):
        tensor.fill_(torch.nan)  # nothing may be read that was not written
    got = tree_attention(query, memory.keys, memory.values, inputs, work, size**-0.5, options)
    real = sum(map(len, segments))
    wanted = expected(query, memory, segments, size**-0.5, options)
    error = (got[:real] - wanted).float().norm() / wanted.float().norm()
    assert error < (1e-5 if dtype == torch.float32 else 1e-2)
    assert not work.arrived.any()


@pytest.mark.parametrize(
    "shapes",
    [
        [(0, 0)],
        [(1, 0)],
        [(200, 0)],
        [(150, 12)],
        [(70, 0), (3, 0), (129, 0)],
        [(64, 5), (0, 3), (130, 0), (7, 20)],
    ],
)
def test_it_is_the_plain_attention(shapes: list[tuple[int, int]]) -> None:
    rows = sum(1 + nodes for _, nodes in shapes)
    check(shapes, rows)
    check(shapes, rows + 3)  # with padding


def test_many_parts_are_joined_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the first of them saw nothing, as a window has it."""
    monkeypatch.setattr(module, "JOINED", 2)
    for options in (Options(), Options(window=20)):
        check([(256, 12), (3, 0)], 14, options=options)


@pytest.mark.parametrize("shape", [(300, 0), (300, 9)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_scores_far_above_those_of_a_parts_first_keys(
    shape: tuple[int, int], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights relative to those would be infinite, so such a part is computed once more."""
    monkeypatch.setattr(module, "MOST_PARTS", 1)
    check([shape], 1 + shape[1], dtype=dtype, sharp=300.0)


def test_sixty_four_rows_of_one_text() -> None:
    check([(90, 63)], 64)


@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (6, 1), (12, 2), (3, 3), (20, 1)])
def test_any_grouping_of_heads(heads: int, kv_heads: int) -> None:
    check([(70, 6), (5, 0)], 8, heads, kv_heads)


@pytest.mark.parametrize("size", [8, 64, 80, 128])
def test_any_head_size(size: int) -> None:
    check([(70, 6), (5, 0)], 8, size=size)


@pytest.mark.parametrize(
    "options",
    [
        Options(window=4),
        Options(window=66),
        Options(softcap=2.0),
        Options(sinks=randn(4, seed=9)),
        Options(window=70, softcap=3.0, sinks=randn(4, seed=9)),
    ],
)
def test_windows_caps_and_sinks(options: Options) -> None:
    check([(150, 9), (2, 4), (80, 0)], 18, options=options)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_low_precision(dtype: torch.dtype) -> None:
    check([(150, 9), (2, 4)], 16, heads=12, size=64, dtype=dtype)


def test_a_nan_of_one_request_stays_there() -> None:
    segments, slots = make_segments([(40, 0), (30, 0)], seed=1)
    inputs = make_inputs(segments, 2, group=2)
    keys, values = randn(slots, 2, 16, seed=1), randn(slots, 2, 16, seed=2)
    keys[segments[0].slots[0]] = torch.nan
    values[segments[0].slots[0]] = torch.nan
    work = Workspace.of(*workspace_for(2, True, 4, 2, 16), DEVICE)
    out = tree_attention(randn(2, 4, 16, seed=3), keys, values, inputs, work, 0.25)
    assert out[0].isnan().all() and out[1].isfinite().all()
