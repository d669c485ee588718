"""Which nodes to check: those that make the requests of a pass faster, none at others' expense.

A request that writes 1 + E tokens in a pass of time C goes at (1 + E) / C. What is maximised is the
geometric mean of these speeds. The plain sum of tokens would let one request that copies slow down
seven that do not; the mean of the logarithms weighs everybody's time alike. For one request the two
are the same.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp, inf, log, log1p
from operator import itemgetter

MARGIN = 0.02  # a gain below this is within the error of the estimates, for one text;
MARGIN_EACH = 0.006  # and for each further one,
MOST_MARGIN = 0.03  # up to this,
MOST_AHEAD = 0.2  # or this, where passes without drafts follow each other and drafts interrupt them


@dataclass(frozen=True)
class Choice:
    kept: list[list[int]]  # per tree: node indices, ascending
    log_gain: float  # sum of log(1 + E) over the requests of the trees
    speed: float  # geometric mean of the requests' speeds, in tokens per second


def margin(writers: int, ahead: bool = False) -> float:
    """What drafts must promise beyond a pass without. More for many texts: those that are drafted
    for end one by one, and the last of them leave the device half empty. `ahead`: whether passes
    without drafts start before the last one's tokens are known."""
    return min(MARGIN + MARGIN_EACH * (writers - 1), MOST_AHEAD if ahead else MOST_MARGIN)


def mean_speed(log_gain: float, writers: int, seconds: float) -> float:
    """`log_gain` is the sum of log(1 + E) over the `writers`, E their expected drafted tokens."""
    return exp(log_gain / writers) / seconds


def choose_nodes(
    chances: list[list[float]],
    writers: int,
    rows: int,
    room: int,
    seconds: Callable[[int, int], Sequence[float]],
    log_gain: float = 0.0,
    margin: float = MARGIN,
) -> Choice:
    """Per tree the chance of each node to be on the target's path, parents first.

    The pass writes for `writers` requests, has `rows` without any of these nodes, and at most
    `room` may join; seconds(rows, n) are the times of passes over `rows` to `rows` + n rows, and
    `log_gain` is what is sure to be checked for other requests. A chance never exceeds the
    parent's, and what a node adds to its request's log(1 + E) falls with every node before it; so
    the best n nodes of all trees form trees again. Take them by falling gain, and stop where the
    speed is largest. The whole curve is looked at, since costs go up in steps: more rows may pay
    where one does not.
    """
    gains: list[tuple[float, int, int]] = []  # (negated, tree, node)
    for t, tree in enumerate(chances):
        expected = 1.0
        # By falling chance; a tie goes to the parent, which comes first and stays there.
        for node in sorted(range(len(tree)), key=tree.__getitem__, reverse=True):
            gains.append((-log1p(tree[node] / expected), t, node))
            expected += tree[node]
    # What a node adds falls from one to the next within a tree, so a stable sort keeps their order.
    gains.sort(key=itemgetter(0))
    times = seconds(rows, min(room, len(gains)))
    least = log_gain / writers - log(times[0]) + log1p(margin)
    best, best_gain, best_value, total = 0, log_gain, -inf, log_gain
    for n, (time, (loss, _, _)) in enumerate(zip(times[1:], gains), 1):
        total -= loss
        value = total / writers - log(time)
        if value >= least and value > best_value:
            best, best_gain, best_value = n, total, value
    kept: list[list[int]] = [[] for _ in chances]
    for _, t, node in gains[:best]:
        kept[t].append(node)
    for nodes in kept:
        nodes.sort()
    return Choice(kept, best_gain, mean_speed(best_gain, writers, times[best]))
