"""What more of a draft must promise to be worth its time."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from outrider.core.request import Request


class Worth(NamedTuple):
    """In tokens, as shares of all that the step writes for the request, as far as is known: what is
    gained there is to be had at that price without, too."""

    second: float = 0.0  # of one more for drafting
    row: float = 0.0  # of one node more, which the target's pass must check
    # What others have proposed already promises so many for each: they are written anyway.
    promised: Mapping[Request, float] = MappingProxyType({})


FREE = Worth()
