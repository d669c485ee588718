"""The first half of truncation.py: between which two scores a row's cut lies.

The tokens are counted by steps of their scores. How much a step can weigh at most and at least
follows from how many tokens it holds, so that no sum of probabilities by steps is needed.
"""

import triton
import triton.language as tl

SLACK = tl.constexpr(1e-6)  # far more than what sums of a few hundred float64 are off


@triton.jit
def asked(packed, row, rows, VOCABULARY: tl.constexpr):
    """Temperature, top-k (0: none), top-p (1: none), and the logarithm of min-p."""
    temperature = tl.load(packed + 10 * rows + row).to(tl.int32).to(tl.float32, bitcast=True)
    k = tl.load(packed + 14 * rows + row)
    k = tl.where(k < VOCABULARY, k, 0)
    p = tl.load(packed + 15 * rows + row).to(tl.float64, bitcast=True)
    least = tl.load(packed + 16 * rows + row).to(tl.int32).to(tl.float32, bitcast=True)
    return temperature, k, p, least


@triton.jit
def scores_of(at, token, temperature, VOCABULARY: tl.constexpr):
    z = tl.load(at + token, mask=token < VOCABULARY, other=float("-inf")).to(tl.float32)
    return tl.div_rn(z, temperature + tl.zeros_like(z))


@triton.jit
def share(score, top):
    """exp(score - top) in float64, 0 for what is excluded."""
    distance = score.to(tl.float64) - top.to(tl.float64)
    return tl.exp(tl.where(score > float("-inf"), distance, float("-inf")))


@triton.jit
def is_last(counter, programs):
    """Whether all others have arrived; what they have stored is there then."""
    tl.debug_barrier()  # all that this program has stored is there before it is counted
    last = tl.atomic_add(counter, 1, sem="acq_rel") == programs - 1
    if last:
        tl.store(counter, 0)
    return last


@triton.jit(do_not_specialize=["rows"])
def survey(
    logits, packed, cuts, counts, tops, masses, bounds, arrived, rows,
    VOCABULARY: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr, PADDED: tl.constexpr,
    BINS: tl.constexpr, STEPS: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """The bounds of a row's cut by top-k and top-p; the cut itself as far as min-p tells it.

    A chunk does not know the row's highest score, so its steps are counted from its own. All lie on
    the same grid, the multiples of 1 / STEPS.
    """
    row, chunk = tl.program_id(0), tl.program_id(1)
    temperature, k, p, least = asked(packed, row, rows, VOCABULARY)
    if CHAINED:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    if (temperature == 0) | ((k == 0) & (p >= 1) & (least == float("-inf"))):
        tl.store(cuts + row, float("-inf"))
        return
    token = chunk * CHUNK + tl.arange(0, CHUNK)
    at = logits + row.to(tl.int64) * VOCABULARY
    score = scores_of(at, token, temperature, VOCABULARY)
    top = tl.max(score, 0)
    depth = tl.floor(top * STEPS) - tl.floor(score * STEPS)
    near = (depth >= 0) & (depth < BINS - 1)  # neither NaN nor -inf is
    part = row * CHUNKS + chunk
    many = tl.histogram(tl.where(near, depth, BINS - 1).to(tl.int32), BINS)
    tl.store(counts + part * BINS + tl.arange(0, BINS), many)
    tl.store(tops + part, top)
    tl.store(masses + part, tl.sum(share(score, top), 0))
    if not is_last(arrived + row, CHUNKS):
        return
    each = tl.arange(0, PADDED)
    there = each < CHUNKS
    each += row * CHUNKS
    heights = tl.load(tops + each, mask=there, other=float("-inf"), cache_modifier=".cg")
    shares = tl.load(masses + each, mask=there, other=0.0, cache_modifier=".cg")
    top = tl.max(heights, 0)
    mass = tl.sum(shares * share(heights, top), 0)
    low, high = _bounds(
        counts + row * CHUNKS * BINS, tops + row * CHUNKS, top, mass, k, p,
        VOCABULARY, CHUNKS, BINS, STEPS,
    )  # fmt: skip
    tl.store(bounds + 4 * row, low)
    tl.store(bounds + 4 * row + 1, high)
    tl.store(bounds + 4 * row + 2, top.to(tl.float64))
    tl.store(bounds + 4 * row + 3, mass)
    tl.store(cuts + row, top + least)


@triton.jit
def _bounds(
    counts, tops, top, mass, k, p,
    VOCABULARY: tl.constexpr, CHUNKS: tl.constexpr, BINS: tl.constexpr, STEPS: tl.constexpr,
):  # fmt: skip
    """The cut lies at or above the first, which is a step's lower end, and below the second."""
    step = tl.arange(0, BINS)
    highest = tl.floor(top * STEPS)
    many = tl.zeros([BINS], tl.int32)
    for first in range(0, CHUNKS, 16):
        chunk = first + tl.arange(0, 16)
        own = tl.load(tops + chunk, mask=chunk < CHUNKS, other=float("-inf"), cache_modifier=".cg")
        lower = highest - tl.floor(own * STEPS)  # that the chunk's first step lies
        lower = tl.where(lower < BINS, lower, BINS).to(tl.int32)
        place = step[None, :] - lower[:, None]
        mask = (chunk < CHUNKS)[:, None] & (place >= 0) & (step < BINS - 1)[None, :]
        at = counts + chunk[:, None] * BINS + place
        many += tl.sum(tl.load(at, mask=mask, other=0, cache_modifier=".cg"), 0)
    start = highest.to(tl.float64)
    reached = tl.cumsum(many, 0)
    if k > 0:
        bottom = tl.minimum(tl.sum((reached < k).to(tl.int32), 0), BINS - 2)
        # top-p goes by what top-k leaves, so that it needs all of that.
        upper = tl.where(p < 1, float("inf"), (start - bottom + 1) / STEPS)
    else:
        # What is left out weighs at most 1 - p, and with the least that is kept more than that. All
        # tokens of a step weigh no more than at its upper end, no less than at its lower end.
        rest = (1 - p) * mass
        many = tl.where(step == BINS - 1, VOCABULARY - tl.max(reached, 0), many)
        distance = (start - step) / STEPS - top.to(tl.float64)
        least = tl.where(step == BINS - 1, 0.0, many * tl.exp(distance))
        most = tl.cumsum(many * tl.exp(distance + 1 / STEPS), 0, reverse=True)
        least = tl.cumsum(least, 0, reverse=True)
        bottom = tl.sum((most > rest * (1 - SLACK)).to(tl.int32), 0) - 1
        bottom = tl.minimum(tl.maximum(bottom, 0), BINS - 2)
        out = tl.sum((least > rest * (1 + SLACK)).to(tl.int32), 0) - 2
        upper = (start - tl.maximum(out, -1)) / STEPS
    return (start - bottom) / STEPS, upper
