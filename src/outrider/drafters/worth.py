"""What more of a draft must promise to be worth its time."""

from typing import NamedTuple


class Worth(NamedTuple):
    """In tokens, as shares of all that the step writes for the request, as far as is known: what is
    gained there is to be had at that price without, too."""

    second: float = 0.0  # of one more for drafting
    row: float = 0.0  # of one node more, which the target's pass must check


FREE = Worth()
