"""The second half of truncation.py: which of the scores between two bounds is the cut.

Scores are compared as whole numbers in the same order, whose range is halved until one is left.
"""

import triton
import triton.language as tl

from outrider.model.cuda.cut_bounds import asked, is_last, scores_of, share


@triton.jit
def _weight(score, top, p, ONE: tl.constexpr):
    """In proportion to the probability; 1 where only top-k asks."""
    return tl.where(p < 1, share(score, top) * ONE + 0.5, 1.0).to(tl.int64)


@triton.jit
def _key(score):
    """float32 -> int64 in the same order; -0.0 is 0.0."""
    bits = tl.where(score == 0, 0.0, score).to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64)


@triton.jit
def _score_of(key):
    bits = key.to(tl.int32)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _listed(scores, weights, place, listed):
    there = place < listed
    score = tl.load(scores + place, mask=there, other=float("-inf"), cache_modifier=".cg")
    return score, tl.load(weights + place, mask=there, other=0, cache_modifier=".cg")


@triton.jit
def _amount(score, weight, key, COUNTING: tl.constexpr):
    """How many of some tokens, or of what weight, have at least this key's score."""
    each = weight * 0 + 1 if COUNTING else weight
    return tl.sum(tl.where(_key(score) >= key, each, 0), 0)


@triton.jit
def _amount_from(
    key, base, list_of, row_of, COUNTING: tl.constexpr, VOCABULARY: tl.constexpr,
    BLOCK: tl.constexpr, ONE: tl.constexpr,
):  # fmt: skip
    """The same of all tokens between the bounds, plus `base`."""
    first_scores, first_weights, scores, weights, listed = list_of
    logits, unlisted, temperature, p, top, low, high = row_of
    amount = base + _amount(first_scores, first_weights, key, COUNTING)
    for start in range(BLOCK, listed, BLOCK):
        place = start + tl.arange(0, BLOCK)
        score, weight = _listed(scores, weights, place, listed)
        amount += _amount(score, weight, key, COUNTING)
    for start in range(0, unlisted, BLOCK):
        score = scores_of(logits, start + tl.arange(0, BLOCK), temperature, VOCABULARY)
        score = tl.where((score >= low) & (score < high), score, float("-inf"))
        amount += _amount(score, _weight(score, top, p, ONE), key, COUNTING)
    return amount


@triton.jit
def _search(
    low, high, goal, base, list_of, row_of,
    COUNTING: tl.constexpr, VOCABULARY: tl.constexpr, BLOCK: tl.constexpr, ONE: tl.constexpr,
):  # fmt: skip
    """The highest key from which on the amount reaches the goal; `low` where none does."""
    while low < high:
        middle = (low + high + 1) >> 1
        amount = _amount_from(
            middle, base, list_of, row_of, COUNTING, VOCABULARY, BLOCK, ONE
        )  # fmt: skip
        enough = amount.to(tl.float64) >= goal
        low = tl.where(enough, middle, low)
        high = tl.where(enough, high, middle - 1)
    return low


@triton.jit(do_not_specialize=["rows"])
def settle(
    logits, packed, cuts, bounds, scores, weights, found, above, arrived, rows,
    VOCABULARY: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr, CAPACITY: tl.constexpr,
    BLOCK: tl.constexpr, ONE: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """List the tokens between the bounds; the last program finds the cut among them."""
    row, chunk = tl.program_id(0), tl.program_id(1)
    temperature, k, p, _ = asked(packed, row, rows, VOCABULARY)
    if CHAINED:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    if (temperature == 0) | ((k == 0) & (p >= 1)):
        return
    low, high = tl.load(bounds + 4 * row), tl.load(bounds + 4 * row + 1)
    top, mass = tl.load(bounds + 4 * row + 2).to(tl.float32), tl.load(bounds + 4 * row + 3)
    logits += row.to(tl.int64) * VOCABULARY
    scores += row * CAPACITY
    weights += row * CAPACITY
    first = chunk * CHUNK
    all_scores = scores_of(logits, first + tl.arange(0, CHUNK), temperature, VOCABULARY)
    if tl.max(all_scores, 0) >= low:  # seldom; so in small pieces, which need few registers
        for start in range(first, first + CHUNK, BLOCK):
            score = scores_of(logits, start + tl.arange(0, BLOCK), temperature, VOCABULARY)
            weight = _weight(score, top, p, ONE)
            between = (score >= low) & (score < high)
            before = tl.atomic_add(found + row, tl.sum(between.to(tl.int32), 0))
            place = before + tl.cumsum(between.to(tl.int32), 0) - 1
            fits = between & (place < CAPACITY)
            tl.store(scores + place, score, mask=fits)
            tl.store(weights + place, weight, mask=fits)
            tl.atomic_add(above + row, tl.sum(tl.where(score >= high, weight, 0), 0))
    if not is_last(arrived + row, CHUNKS):
        return
    number, heavier = tl.atomic_xchg(found + row, 0), tl.atomic_xchg(above + row, 0)
    listed = tl.where(number <= CAPACITY, number, 0)
    unlisted = tl.where(number <= CAPACITY, 0, VOCABULARY)
    first_scores, first_weights = _listed(scores, weights, tl.arange(0, BLOCK), listed)
    list_of = (first_scores, first_weights, scores, weights, listed)
    row_of = (logits, unlisted, temperature, p, top, low, high)
    cut = _key(low.to(tl.float32))
    highest = _key(tl.minimum(high.to(tl.float32), top))
    if k > 0:
        cut = _search(
            cut, highest, k.to(tl.float64), heavier, list_of, row_of,
            True, VOCABULARY, BLOCK, ONE,
        )  # fmt: skip
    if p < 1:
        goal = p * mass * ONE
        if k > 0:  # a share of what top-k leaves
            left = _amount_from(
                cut, heavier, list_of, row_of, False, VOCABULARY, BLOCK, ONE
            )  # fmt: skip
            goal = p * left.to(tl.float64)
        cut = _search(
            cut, highest, goal, heavier, list_of, row_of, False, VOCABULARY, BLOCK, ONE
        )  # fmt: skip
    tl.store(cuts + row, tl.maximum(_score_of(cut), tl.load(cuts + row)))
