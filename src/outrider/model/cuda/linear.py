"""Products of few rows with large weights, which are as fast as the weights can be read.

Each program streams some lines of the weight once, for all rows of the pass. What surrounds the
product in a decoder layer rides along, since gaps between kernels are a large part of a pass over
one row: the gate, the residual sum, and the norm before the product. Of the norm, the weight is
applied by the kernel that writes the residual stream, which also leaves the squares of what it
wrote; the scale, one number per row, is applied to the product.

The weight's lines are the height of the matrix unit's tiles, the rows their width. Products into
the stream, which have few lines, are faster the other way round as long as the rows are few. Beyond
64 rows the matrix unit has enough to do for cuBLAS to be faster, although the norm and the gate are
then kernels of their own.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from outrider.model.cuda.chain import chained
from outrider.model.cuda.workspace import Workspace

MOST_ROWS = 64  # of our own products
FEWEST_ROWS = 16  # that the matrix unit takes; what is missing is padding
LINES = 64  # of the weight per program
MANY_LINES = 8192  # which fill the device with programs
FEW_ROWS, FEW_LINES = 16, 16  # of products into the stream whose rows are the height of a tile
MOST_SPLITS = 4
PROGRAMS = 132  # that share the lines' length where there are few lines: one per multiprocessor
GATE_BLOCK = 1024


class Norm(NamedTuple):
    weight: Tensor  # [width]
    epsilon: float


class Shape(NamedTuple):
    """How a product is cut up: weight lines and elements of a line per block, and how many
    programs share the lines' length."""

    lines: int
    inner: int
    warps: int
    stages: int
    splits: int = 1
    wide: bool = False  # the lines, not the rows, are the height of the matrix unit's tiles


@dataclass(eq=False)
class Stream:
    """The residual stream, with what the next norm needs of it."""

    hidden: Tensor  # [rows, width]
    scaled: Tensor  # [rows, width]: times the next norm's weight
    squares: Tensor  # [rows, parts] float32: sums to that of hidden ** 2
    cut_for: int = 0  # rows that products are cut up for, where not for its own: see `shaped_for`

    @property
    def shaped_for(self) -> int:
        """How a product is cut up decides the order of its sums, and so the bits. Where those must
        not show how many rows a pass has, all are cut up for the same number."""
        return self.cut_for or self.hidden.shape[0]

    @classmethod
    def starting(cls, hidden: Tensor, next_norm: Norm) -> "Stream":
        """From hidden [rows, width] alone."""
        return cls(hidden, hidden * next_norm.weight, hidden.float().square().sum(-1, keepdim=True))

    @classmethod
    def like(cls, weight: Tensor, rows: int, cut_for: int = 0) -> "Stream":
        """For the width of an embedding [vocabulary, width]; to be filled."""
        width, device = weight.shape[1], weight.device
        return cls(
            torch.empty(rows, width, dtype=weight.dtype, device=device),
            torch.empty(rows, width, dtype=weight.dtype, device=device),
            torch.empty(rows, square_parts(width, cut_for or rows), device=device),
            cut_for,
        )


def from_stream(
    stream: Stream,
    norm: Norm,
    work: Workspace,
    weight: Tensor,
    bias: Tensor | None = None,
    gated: bool = False,
) -> Tensor:
    """norm(stream) @ weight.T + bias -> [rows, outer], weight [outer, width]. Gated: the weight
    has the gate's lines and then as many more, and silu(gate) * up is returned."""
    rows, inner = stream.hidden.shape
    outer = weight.shape[0] // 2 if gated else weight.shape[0]
    if rows > MOST_ROWS:
        x = functional.rms_norm(stream.hidden, (inner,), norm.weight, norm.epsilon)
        product = functional.linear(x, weight, bias)
        return _gated(product) if gated else product
    out = torch.empty(rows, outer, dtype=weight.dtype, device=weight.device)
    shape = shape_for(weight, stream.shaped_for)
    lines = shape.lines // 2 if gated else shape.lines
    _linear[(triton.cdiv(outer, lines), shape.splits)](
        stream.scaled, weight, bias if bias is not None else weight, out, stream.squares,
        out, out, work.parts, work.arrived, rows, outer, norm.epsilon,
        INNER=inner, BIAS=bias is not None, NORM=True, GATED=gated, ADD=False,
        PARTS=stream.squares.shape[1], **constants(shape, lines, stream.shaped_for),
        **chained(weight.device),
    )  # fmt: skip
    return out


def product(
    x: Tensor,  # [rows, inner]
    weight: Tensor,  # [outer, inner]
    bias: Tensor | None,  # [outer]
    work: Workspace,
) -> Tensor:
    """x @ weight.T + bias -> [rows, outer]."""
    rows, inner = x.shape
    if rows > MOST_ROWS:
        return functional.linear(x, weight, bias)
    outer = weight.shape[0]
    out = torch.empty(rows, outer, dtype=weight.dtype, device=weight.device)
    shape = shape_for(weight, rows)
    _linear[(triton.cdiv(outer, shape.lines), shape.splits)](
        x, weight, bias if bias is not None else weight, out, work.parts,
        out, out, work.parts, work.arrived, rows, outer, 0.0,
        INNER=inner, BIAS=bias is not None, NORM=False, GATED=False, ADD=False,
        PARTS=1, **constants(shape, shape.lines, rows), **chained(weight.device),
    )  # fmt: skip
    return out


def into_stream(
    x: Tensor,  # [rows, inner]
    weight: Tensor,  # [width, inner]
    bias: Tensor | None,  # [width]
    stream: Stream,
    next_norm: Norm,
    work: Workspace,
) -> None:
    """stream += x @ weight.T + bias."""
    rows, inner = x.shape
    if rows > MOST_ROWS:
        stream.hidden.addmm_(x, weight.t())
        if bias is not None:
            stream.hidden += bias
        return
    shape = _shape_into(weight, stream.shaped_for)
    _linear[(triton.cdiv(weight.shape[0], shape.lines), shape.splits)](
        x, weight, bias if bias is not None else x, stream.hidden, stream.squares,
        next_norm.weight, stream.scaled, work.parts, work.arrived, rows, weight.shape[0], 0.0,
        INNER=inner, BIAS=bias is not None, NORM=False, GATED=False, ADD=True,
        PARTS=stream.squares.shape[1], **constants(shape, shape.lines, stream.shaped_for),
        **chained(weight.device),
    )  # fmt: skip


def constants(shape: Shape, lines: int, rows: int) -> dict[str, int | bool]:
    """What a kernel of ours must know of its shape."""
    return {
        "ROWS": max(FEWEST_ROWS, triton.next_power_of_2(rows)),
        "LINES": lines,
        "BLOCK": shape.inner,
        "SPLITS": shape.splits,
        "WIDE": shape.wide,
        "num_warps": shape.warps,
        "num_stages": shape.stages,
    }


def shape_for(weight: Tensor, rows: int) -> Shape:
    """For a weight [outer, inner]. Where there are few lines, several programs share a line, so
    that all multiprocessors take part. The figures are those that measured best on an H200."""
    outer, inner = weight.shape
    many = outer >= MANY_LINES
    block = _block((128 if many else 256) // weight.element_size(), inner)
    if many:
        return Shape(LINES, block, warps=4, stages=4 if rows <= 32 else 3, wide=True)
    blocks = triton.cdiv(inner, block)
    splits = max(1, min(PROGRAMS // triton.cdiv(outer, LINES), blocks // 2))
    each = triton.cdiv(blocks, splits)
    return Shape(LINES, block, 4, stages=4, splits=triton.cdiv(blocks, each), wide=True)


def _shape_into(weight: Tensor, rows: int) -> Shape:
    """The same for a product that goes into the stream."""
    if rows > FEW_ROWS:
        return shape_for(weight, rows)
    outer, inner = weight.shape
    block = _block(256, inner)
    splits = 1 if outer >= MANY_LINES else max(1, min(MOST_SPLITS, inner // (2 * block)))
    return Shape(FEW_LINES, block, warps=2, stages=5, splits=splits)


def _block(largest: int, inner: int) -> int:
    """Elements of a line per block: so many, or fewer where the line's length asks for it."""
    while largest > 16 and inner % largest:
        largest //= 2
    return largest


def square_parts(width: int, rows: int) -> int:
    """Into how many sums the squares of a stream are divided: one for each program that adds."""
    return triton.cdiv(width, FEW_LINES if rows <= FEW_ROWS else LINES)


def workspace_for(outer: int) -> int:
    """Elements of `Workspace.parts` that a product with so many lines may need."""
    return max(MOST_SPLITS * FEW_ROWS * (outer + 16), PROGRAMS * MOST_ROWS * LINES)


def _gated(both: Tensor) -> Tensor:
    """silu(gate) * up, both side by side in [rows, 2 * inner] -> [rows, inner]."""
    rows, inner = both.shape[0], both.shape[1] // 2
    out = torch.empty(rows, inner, dtype=both.dtype, device=both.device)
    _gate[(rows, triton.cdiv(inner, GATE_BLOCK))](both, out, INNER=inner, BLOCK=GATE_BLOCK)
    return out


@triton.jit
def _gate(both, out, INNER: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    inner = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = inner < INNER
    kind = out.dtype.element_ty
    gate = tl.load(both + 2 * row * INNER + inner, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(both + (2 * row + 1) * INNER + inner, mask=inside, other=0.0).to(tl.float32)
    product = (gate * tl.sigmoid(gate)).to(kind).to(tl.float32) * up  # rounded as the modules do
    tl.store(out + row * INNER + inner, product.to(kind), mask=inside)


@triton.jit
def product_of(
    x, at, squares, row, there, real, split, epsilon,
    INNER: tl.constexpr, BLOCK: tl.constexpr, SPLITS: tl.constexpr, NORM: tl.constexpr,
    PARTS: tl.constexpr, WIDE: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """This program's share of x [rows, INNER] times the lines at `at` [lines, 1], and per row the
    scale of the norm before it."""
    BLOCKS: tl.constexpr = (INNER + BLOCK - 1) // BLOCK
    EACH: tl.constexpr = (BLOCKS + SPLITS - 1) // SPLITS
    start = split * EACH
    # The first weights do not depend on the kernel before.
    inner = start * BLOCK + tl.arange(0, BLOCK)[None, :]
    w = tl.load(at + inner, mask=real & (inner < INNER), other=0.0)
    if CHAINED:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    part = tl.load(x + row[:, None] * INNER + inner, mask=there & (inner < INNER), other=0.0)
    scale = tl.full([row.shape[0]], 1.0, tl.float32)
    if NORM:
        each = tl.arange(0, triton.next_power_of_2(PARTS))[None, :]
        known = there & (each < PARTS)
        given = tl.load(squares + row[:, None] * PARTS + each, mask=known, other=0.0)
        scale = tl.rsqrt(tl.sum(given, 1) / INNER + epsilon)
    if WIDE:
        product = tl.dot(w, tl.trans(part), input_precision="ieee")
    else:
        product = tl.dot(part, tl.trans(w), input_precision="ieee")
    for block in range(start + 1, tl.minimum(start + EACH, BLOCKS)):
        inner = block * BLOCK + tl.arange(0, BLOCK)[None, :]
        if INNER % BLOCK == 0:
            part = tl.load(x + row[:, None] * INNER + inner, mask=there, other=0.0)
            w = tl.load(at + inner, mask=real, other=0.0)
        else:
            inside = inner < INNER
            part = tl.load(x + row[:, None] * INNER + inner, mask=there & inside, other=0.0)
            w = tl.load(at + inner, mask=real & inside, other=0.0)
        if WIDE:
            product = tl.dot(w, tl.trans(part), product, input_precision="ieee")
        else:
            product = tl.dot(part, tl.trans(w), product, input_precision="ieee")
    if WIDE:
        product = tl.trans(product)
    return product, scale


@triton.jit
def arrives_last(product, to, counter, split, SIZE: tl.constexpr, SPLITS: tl.constexpr):
    """Leave this program's share for the one that arrives last; whether that is this one. `to`
    [rows, lines]: where the first share of a tile goes; the next one lies SIZE elements further."""
    tl.store(to + split * SIZE, product)
    tl.debug_barrier()  # all of this program's share is there before it is counted
    last = tl.atomic_add(counter, 1, sem="acq_rel") == SPLITS - 1
    if last:
        tl.store(counter, 0)
    return last


@triton.jit
def sum_of_shares(to, SIZE: tl.constexpr, SPLITS: tl.constexpr):
    """Always in the same order."""
    product = tl.load(to, cache_modifier=".cg")
    for other in tl.static_range(1, SPLITS):
        product += tl.load(to + other * SIZE, cache_modifier=".cg")
    return product


@triton.jit(do_not_specialize=["rows"])
def _linear(
    x, weight, bias, out, squares, next_norm, out_scaled, parts, arrived, rows, outer, epsilon,
    INNER: tl.constexpr, ROWS: tl.constexpr, LINES: tl.constexpr, BLOCK: tl.constexpr,
    SPLITS: tl.constexpr, BIAS: tl.constexpr, NORM: tl.constexpr, GATED: tl.constexpr,
    ADD: tl.constexpr, PARTS: tl.constexpr, WIDE: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    tile, split = tl.program_id(0), tl.program_id(1)
    row = tl.arange(0, ROWS)
    there = (row < rows)[:, None]
    first = tile * LINES
    BOTH: tl.constexpr = 2 * LINES if GATED else LINES
    place = tl.arange(0, BOTH)
    line = first + place % LINES + tl.where(place < LINES, 0, outer)  # the gate's, then the others
    real = (first + place % LINES < outer)[:, None]
    column = first + tl.arange(0, LINES)[None, :]
    mask = there & (column < outer)
    goal = row[:, None] * outer + column
    if ADD:  # written two kernels ago or earlier, so this need not wait either
        before = tl.load(out + goal, mask=mask, other=0.0, cache_modifier=".cg").to(tl.float32)
        norm = tl.load(next_norm + column, mask=column < outer, other=0.0).to(tl.float32)
    product, scale = product_of(
        x, weight + line[:, None].to(tl.int64) * INNER, squares, row, there, real, split, epsilon,
        INNER, BLOCK, SPLITS, NORM, PARTS, WIDE, CHAINED,
    )  # fmt: skip
    if SPLITS > 1:
        SIZE: tl.constexpr = ROWS * BOTH
        to = parts + tile * SPLITS * SIZE + row[:, None] * BOTH + place[None, :]
        if not arrives_last(product, to, arrived + tile, split, SIZE, SPLITS):
            return
        product = sum_of_shares(to, SIZE, SPLITS)
    if NORM:
        product = product * scale[:, None]
    if BIAS:
        product += tl.load(bias + line, mask=line < outer, other=0.0).to(tl.float32)[None, :]
    kind = out.dtype.element_ty
    product = product.to(kind).to(tl.float32)  # rounded where the modules round
    if GATED:
        halves = tl.permute(tl.reshape(product, [ROWS, 2, LINES]), [0, 2, 1])
        gate, up = tl.split(halves)  # each [ROWS, LINES]
        product = (gate * tl.sigmoid(gate)).to(kind).to(tl.float32) * up
    if ADD:
        product = (product + before).to(kind)
        tl.store(out + goal, product, mask=mask)
        product = tl.where(mask, product.to(tl.float32), 0.0)
        tl.store(out_scaled + goal, (product * norm).to(kind), mask=mask)
        tl.store(squares + row * PARTS + tile, tl.sum(product * product, 1), mask=row < rows)
    else:
        tl.store(out + goal, product.to(kind), mask=mask)
