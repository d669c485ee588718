"""What a drafter hands to its loop on the device, and what it gets back."""

from array import array
from typing import NamedTuple

from outrider.core.request import Request
from outrider.model.segment import Segment

TEXTS = (1, 2, 4, 8, 16, 32, 64)  # that one run drafts for; what is captured is for one of these
ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)  # that it reads before
ROWS_OF_A_TEXT = 64
MOST_GUESSES = 64


class Text(NamedTuple):
    """A text that is drafted for."""

    request: Request
    rows: Segment  # what of it the drafter has yet to read
    features: array  # per row the slot whose feature it reads
    slots: array  # of the text and of the tokens to be guessed, as far as the drafter needs them
    guesses: int


class Guesses(NamedTuple):
    tokens: list[int]
    confidence: list[float]


class Shape(NamedTuple):
    """Of a drafter's attention and of its logits."""

    heads: int
    kv_heads: int
    value_size: int
    vocabulary: int  # the target's
    text_rows: int = 1  # that one pass has below each text
    widest: int = 0  # product of its layers, where their kernels are fused


def bucket(sizes: tuple[int, ...], size: int) -> int:
    """The smallest that is large enough."""
    return next(each for each in sizes if each >= size)


def unreadable(rows: list[int]) -> list[int]:
    """Of texts with so many new rows, those that the loop cannot read itself: the longest ones, as
    few as possible. Of these at most one row may be left to it."""
    left, late = list(rows), []
    for i in sorted(range(len(rows)), key=lambda i: -rows[i]):
        if left[i] <= ROWS_OF_A_TEXT and sum(left) <= ROWS[-1]:
            break
        left[i] = 1
        late.append(i)
    return late
