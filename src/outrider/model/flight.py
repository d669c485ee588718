"""A pass that was started, and on a GPU may still be under way."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor


@dataclass(eq=False)
class Flight:
    """`logits` [rows that need them, vocabulary]: on a GPU they may be read by what is launched
    before the next pass. `landed` waits for the pass and gives the token that it chose at every
    row, as the segments ask (`Choosing`), -1 where no score is finite; None where it chose none."""

    logits: Tensor
    landed: Callable[[], list[int]] | None = None
    in_blocks: bool = False  # several passes: the last one alone leaves its choices to the next
