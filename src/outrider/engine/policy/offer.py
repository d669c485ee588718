"""How long a draft to ask of a drafter that costs time, and for whom."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from outrider.drafters.worth import Worth
from outrider.engine.policy.cost import PassCost
from outrider.engine.policy.gate import Pass, reading_seconds

ENOUGH = 3  # drafts for a text, to say how it goes with them


class Outlook(NamedTuple):
    """One request, as far as it matters here."""

    # Tokens expected with a draft of each size on offer: of the draft, or of both where it joins
    # what is proposed for it already;
    gains: Sequence[float] | np.ndarray
    without: float  # of that alone
    room: int  # nodes that it may have
    proposed: int = 0  # nodes of that, in whose place the draft would come
    seen: int = ENOUGH  # drafts of this drafter for it
    # `gains` if it is easier than those that a trusted drafter has seen; None: it was seen itself.
    hoped: Sequence[float] | np.ndarray | None = None


class Size(NamedTuple):
    """Of a draft: its nodes are rows of the target's pass, its depth is, for a drafter with a
    model, the number of passes."""

    nodes: int
    depth: int


class Price(NamedTuple):
    """What drafts take, in seconds."""

    once: float
    level: Callable[[int], float]  # for each level of drafts for so many requests
    reading: Sequence[float]  # per request: a step's share of what must be read of its text first,
    whole: Sequence[float]  # and all of that

    def seconds(self, chosen: Sequence[int], depth: int) -> float:
        """Of drafting for these requests, so deep."""
        reading = sum(self.reading[i] for i in chosen)
        return self.once + depth * self.level(len(chosen)) + reading


class Offer(NamedTuple):
    """What to ask for: drafts of this size for each of the requests `chosen`."""

    speed: float
    size: Size
    chosen: list[int]
    worth: Worth  # of what such a draft is made of


def best_offer(
    outlooks: list[Outlook], sizes: list[Size], base: Pass, cost: PassCost, price: Price
) -> Offer | None:
    """The size and the requests that promise the highest speed; None without any. It is put
    together in every step: so all sizes and numbers of requests at once."""
    count = len(outlooks)
    gains = np.array([outlook.gains for outlook in outlooks])  # [requests, sizes]
    without = np.array([outlook.without for outlook in outlooks])
    rooms = np.array([outlook.room for outlook in outlooks])
    proposed = np.array([outlook.proposed for outlook in outlooks])
    nodes, depths = np.array(sizes).T  # [sizes] each
    more = np.log1p(gains) - np.log1p(without)[:, None]  # [requests, sizes]
    # From here on rows are numbers of requests: those that gain most come first, for each size.
    order = np.argsort(-more, axis=0, kind="stable")
    more = np.take_along_axis(more, order, 0)
    log_gain = base.log_gain + more.cumsum(0)
    # Of lookups' nodes some may be kept as well; what they are worth then is not known.
    rows = (np.minimum(nodes, rooms[order]) - proposed[order]).cumsum(0)
    fewest = min(0, int(rows.min()))
    most = int(rows.max()) - fewest
    times = cost.growing(base.rows + fewest, most, base.sequences, base.keys)
    levels = np.array([price.level(number) for number in range(1, count + 1)])
    seconds = np.array(times)[rows - fewest] - reading_seconds(base, cost) + price.once
    seconds += levels[:, None] * depths + np.array(price.reading)[order].cumsum(0)
    speeds = np.where(more > 0, np.exp(log_gain / base.writers) / seconds, 0.0)
    size, number = np.unravel_index(speeds.T.argmax(), speeds.T.shape)  # the smallest of equals
    speed = float(speeds[number, size])
    if speed == 0.0:
        return None
    chosen = order[: number + 1, size].tolist()
    # The mean of log(1 + E) over all writers must rise by more than the log of the step's time. A
    # first row for each text may be dear, but is wanted anyway.
    share = base.writers / float(seconds[number, size])
    first = min(len(chosen), len(times) - 2)
    row = (times[-1] - times[first]) / (len(times) - 1 - first)
    return Offer(speed, sizes[size], chosen, Worth(share, share * row))
