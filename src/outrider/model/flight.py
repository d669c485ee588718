"""A pass that was started, and on a GPU may still be under way."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

GoOn = Callable[[list[int], list[int]], "Flight"]


@dataclass(eq=False)
class Flight:
    """`logits` [rows that need them, vocabulary]: on a GPU they may be read by what is launched
    before the next pass. `landed` waits for the pass and gives the token that it chose at every
    row, as the segments ask (`Choosing`), -1 where no score is finite; None where it chose none."""

    logits: Tensor
    landed: Callable[[], list[int]] | None = None
    hands_on: bool = True  # whether the next pass can read its choices on the device
    replayed: bool = True  # whether it was launched as graphs, where it chose tokens
    # Starts the pass after this one, if none has started since: after each of these rows, the token
    # that it will have chosen, in these slots. None where that needs segments.
    go_on: GoOn | None = None


Rows = TypeVar("Rows", bound=Sequence | Tensor)


def joined(flights: list[Flight], whose: list[int], wanted: list[int]) -> Flight:
    """Several passes as if they were one. For each segment, in order: which pass it is in, behind
    those before it, and how many rows of it were asked for."""

    def in_order(rows: list[Rows]) -> list[Rows]:
        taken = [0] * len(rows)
        parts = []
        for flight, count in zip(whose, wanted, strict=True):
            parts.append(rows[flight][taken[flight] : taken[flight] + count])
            taken[flight] += count
        return parts  # type: ignore[return-value]

    logits = torch.cat(in_order([flight.logits for flight in flights]))
    waits = [flight.landed for flight in flights]

    def landed() -> list[int]:
        return [token for part in in_order([wait() for wait in waits if wait]) for token in part]

    known = None if None in waits else landed
    return Flight(logits, known, False, all(flight.replayed for flight in flights))
