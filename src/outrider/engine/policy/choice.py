"""Which nodes to check: those that make the requests of a pass faster, none at others' expense.

A request that writes 1 + E tokens in a pass of time C goes at (1 + E) / C. What is maximised is the
geometric mean of these speeds. The plain sum of tokens would let one request that copies slow down
seven that do not; the mean of the logarithms weighs everybody's time alike. For one request the two
are the same.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import exp, log1p

import numpy as np

MARGIN = 0.02  # a gain below this is within the error of the estimates


@dataclass(frozen=True)
class Choice:
    kept: list[list[int]]  # per tree: node indices, ascending
    log_gain: float  # sum of log(1 + E) over the requests of the trees
    speed: float  # geometric mean of the requests' speeds, in tokens per second


def mean_speed(log_gain: float, writers: int, seconds: float) -> float:
    """`log_gain` is the sum of log(1 + E) over the `writers`, E their expected drafted tokens."""
    return exp(log_gain / writers) / seconds


def choose_nodes(
    chances: list[list[float]],
    writers: int,
    rows: int,
    room: int,
    seconds: Callable[[int, int], np.ndarray],
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
    order: list[list[int]] = []  # per tree: nodes by falling chance; a tie goes to the parent
    gains: list[float] = []
    for tree in chances:
        order.append(np.argsort(-np.array(tree), kind="stable").tolist())
        expected = 0.0
        for node in order[-1]:
            gains.append(log1p(tree[node] / (1 + expected)))
            expected += tree[node]
    flat = np.array(gains)
    best_first = np.argsort(-flat, kind="stable")[:room]  # [nodes]
    total = log_gain + np.concatenate([[0.0], flat[best_first].cumsum()])  # [1 + nodes]
    times = seconds(rows, len(flat[best_first]))
    values = total / writers - np.log(times)
    best = int(values.argmax())
    if values[best] < values[0] + log1p(margin):
        best = 0
    chosen = set(best_first[:best].tolist())
    kept, first = [], 0
    for nodes in order:
        kept.append(sorted(node for i, node in enumerate(nodes) if first + i in chosen))
        first += len(nodes)
    return Choice(kept, float(total[best]), mean_speed(float(total[best]), writers, times[best]))
