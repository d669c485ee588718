"""The target's choice at every row, made on the device: the likeliest token, or the maximum of
scaled logits plus the noise of the row's output position, over the tokens that top-k, top-p and
min-p leave (truncation.py).

The noise is that of sampling/noise.py, bit for bit up to the last place of a float64 logarithm, and
all of it is computed: that takes microseconds here, and the search for the few tokens that need it
would need the host.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from outrider.model.cuda.chain import chained
from outrider.model.cuda.inputs import RowInputs
from outrider.model.cuda.workspace import Workspace

GROUPS = 64  # groups of 64 tokens that one program looks at
AT_ONCE = 16  # of them with noise


def workspace_for(rows: int, vocabulary: int) -> int:
    """Elements of `Workspace.parts` and of `.weights` that choosing needs."""
    return rows * triton.cdiv(vocabulary, 64 * GROUPS)


def choose(logits: Tensor, cuts: Tensor, inputs: RowInputs, work: Workspace) -> Tensor:
    """logits [rows, vocabulary], cuts [rows] float32: least scores that may be drawn -> [rows]
    int64, -1 where a row has no finite maximum."""
    rows, vocabulary = logits.shape
    chunks = triton.cdiv(vocabulary, 64 * GROUPS)
    choices = torch.empty(rows, dtype=torch.int64, device=logits.device)
    _choose_part[(rows, chunks)](
        logits, inputs.packed, cuts, work.parts, work.weights, work.parts, rows,
        VOCABULARY=vocabulary, GROUPS=GROUPS, AT_ONCE=AT_ONCE, CUTS=True, SUMS=False, num_warps=8,
        **chained(logits.device),
    )  # fmt: skip
    _choose_best[(rows,)](
        work.parts, work.weights, choices,
        CHUNKS=chunks, PADDED=triton.next_power_of_2(chunks), num_warps=1,
        **chained(logits.device),
    )  # fmt: skip
    return choices


@triton.jit
def _unit(bits):
    """32 random bits -> float64 strictly between 0 and 1, exactly."""
    return (bits.to(tl.float64) + 0.5) * 2.3283064365386963e-10  # 2 ** -32


@triton.jit
def _exponential(bits):
    """1 - v is exact, so the logarithm is as good as log1p's."""
    return -tl.log(1.0 - _unit(bits))


@triton.jit
def _perturbed(at, token, bits, least, place, temperature, cut, VOCABULARY: tl.constexpr):
    """Scaled logits plus noise, [groups, 16]: every fourth token of some groups; -inf below the
    cut, where NaN is not."""
    z = tl.load(at + token, mask=token < VOCABULARY, other=float("-inf")).to(tl.float32)
    above = tl.where(token % 64 == place[:, None], 0.0, _exponential(bits))
    gumbel = -tl.log(least[:, None] + above)
    score = tl.div_rn(z, temperature + tl.zeros_like(z))
    return tl.where(score < cut, float("-inf"), score + gumbel.to(tl.float32))


@triton.jit
def _higher(best, first, value, token):
    """Of two maxima, element by element, the higher; of equal ones, the lower token. A NaN is +inf
    at no token."""
    broken = value != value
    value = tl.where(broken, float("inf"), value)
    token = tl.where(broken, -1, token)
    wins = (value > best) | ((value == best) & (token < first))
    return tl.where(wins, value, best), tl.where(wins, token, first)


@triton.jit
def _grown(total, best, higher, value):
    """A sum of exp(... - best) that becomes one of exp(... - higher), with one more value."""
    top = tl.where(higher > float("-inf"), higher, 0.0)  # no token so far is possible
    return total * tl.exp(best - top) + tl.exp(value - top)


@triton.jit
def _best_of(best, first):
    """Of many maxima [n], the highest and the lowest token that has it."""
    top = tl.max(best, 0)
    return top, tl.min(tl.where(best == top, first, 1 << 30), 0)


@triton.jit
def _likeliest(at, first_token, TOKENS: tl.constexpr, VOCABULARY: tl.constexpr, SUMS: tl.constexpr):
    """Of neighbouring tokens: the highest logit, its token, the sum of exp(logit - highest)."""
    token = first_token + tl.arange(0, TOKENS)
    z = tl.load(at + token, mask=token < VOCABULARY, other=float("-inf")).to(tl.float32)
    each, where = _higher(float("-inf"), 1 << 30, z, token)
    best, first = _best_of(each, where)
    total = 0.0
    if SUMS:
        total = tl.sum(tl.exp(z - tl.where(best > float("-inf"), best, 0.0)), 0)
    return best, first, total


@triton.jit
def _drawn(
    at, packed, first_group, row, rows, temperature, cut,
    GROUPS: tl.constexpr, AT_ONCE: tl.constexpr, VOCABULARY: tl.constexpr, SUMS: tl.constexpr,
):  # fmt: skip
    """The same of scaled logits with noise. It takes many registers, so few groups at once."""
    seed = tl.load(packed + 11 * rows + row)
    k0, k1 = (seed & 0xFFFFFFFF).to(tl.uint32), (seed >> 32).to(tl.uint32)
    c1 = tl.load(packed + 12 * rows + row).to(tl.uint32)
    c2 = tl.load(packed + 13 * rows + row).to(tl.uint32)
    zero = c1 * 0  # purpose and lane of a choice
    block = tl.arange(0, 16)[None, :]
    best = tl.full([AT_ONCE, 16], float("-inf"), tl.float32)
    first = tl.full([AT_ONCE, 16], 1 << 30, tl.int32)
    total = tl.zeros([AT_ONCE, 16], tl.float32)
    for start in range(first_group, first_group + GROUPS, AT_ONCE):
        group = start + tl.arange(0, AT_ONCE)
        token = group[:, None] * 64 + 4 * block  # the first of four that share a Philox block
        pair = (group // 2).to(tl.uint32) + 0x80000000
        a, b, c, d = tl.philox_impl(pair, c1 + pair * 0, c2 + pair * 0, zero + pair * 0, k0, k1)
        even = group % 2 == 0
        least = _exponential(tl.where(even, a, c)) / 64
        place = (tl.where(even, b, d) & 63).to(tl.int32)
        index = (group[:, None] * 16 + block).to(tl.uint32)
        words = tl.philox_impl(index, c1 + index * 0, c2 + index * 0, zero + index * 0, k0, k1)
        for i in tl.static_range(4):
            value = _perturbed(at, token + i, words[i], least, place, temperature, cut, VOCABULARY)
            higher, first = _higher(best, first, value, token + i)
            if SUMS:
                total = _grown(total, best, higher, value)
            best = higher
    flat = tl.reshape(best, [AT_ONCE * 16])
    top, token = _best_of(flat, tl.reshape(first, [AT_ONCE * 16]))
    if SUMS:
        safe = tl.where(top > float("-inf"), top, 0.0)
        return top, token, tl.sum(tl.reshape(total, [AT_ONCE * 16]) * tl.exp(flat - safe), 0)
    return top, token, 0.0


@triton.jit(do_not_specialize=["rows"])
def _choose_part(
    logits, packed, cuts, part_value, part_token, part_sum, rows,
    VOCABULARY: tl.constexpr, GROUPS: tl.constexpr, AT_ONCE: tl.constexpr, CUTS: tl.constexpr,
    SUMS: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """The best token of some groups; with SUMS also the sum of exp(value - best value) over them.
    Field 10 is the temperature's bits, then seed, output position and sample."""
    row, chunk = tl.program_id(0), tl.program_id(1)
    at = logits + row.to(tl.int64) * VOCABULARY
    temperature = tl.load(packed + 10 * rows + row).to(tl.int32).to(tl.float32, bitcast=True)
    if CHAINED:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    if temperature == 0:
        best, first, total = _likeliest(at, chunk * GROUPS * 64, GROUPS * 64, VOCABULARY, SUMS)
    else:
        cut = tl.load(cuts + row) if CUTS else float("-inf")
        best, first, total = _drawn(
            at, packed, chunk * GROUPS, row, rows, temperature, cut,
            GROUPS, AT_ONCE, VOCABULARY, SUMS,
        )  # fmt: skip
    to = row * tl.num_programs(1) + chunk
    tl.store(part_value + to, best)
    tl.store(part_token + to, first.to(tl.int32).to(tl.float32, bitcast=True))
    if SUMS:
        tl.store(part_sum + to, total)


@triton.jit
def _choose_best(
    part_value, part_token, choices,
    CHUNKS: tl.constexpr, PADDED: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    if CHAINED:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    row = tl.program_id(0)
    chunk = tl.arange(0, PADDED)
    inside = chunk < CHUNKS
    value = tl.load(part_value + row * CHUNKS + chunk, mask=inside, other=float("-inf"))
    token = tl.load(part_token + row * CHUNKS + chunk, mask=inside, other=0.0)
    best = tl.max(value, 0)
    there = tl.where(value == best, token.to(tl.int32, bitcast=True), 1 << 30)
    first = tl.min(there, 0)
    finite = (best > float("-inf")) & (best < float("inf"))
    tl.store(choices + row, tl.where(finite, first, -1).to(tl.int64))
