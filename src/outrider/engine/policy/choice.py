"""Which nodes to check: those that raise the expected tokens per second of the whole pass."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

MARGIN = 0.02  # a gain below this is within the error of the estimates


@dataclass(frozen=True)
class Choice:
    kept: list[list[int]]  # per tree: node indices, ascending
    rate: float  # tokens per second expected of the pass


def choose_nodes(
    chances: list[list[float]],
    tokens: float,
    rows: int,
    room: int,
    seconds: Callable[[np.ndarray], np.ndarray],
) -> Choice:
    """Per tree the chance of each node to be on the target's path, parents first.

    The pass writes `tokens` and has `rows` without any of these nodes; at most `room` may join.
    A chance never exceeds the parent's, so the best n nodes of all trees form trees again: take
    them by falling chance, and stop where (tokens so far) / (time of the pass) is largest. The
    whole curve is looked at, since costs go up in steps: more rows may pay where one does not.
    """
    flat = np.array([chance for tree in chances for chance in tree])  # [nodes]
    order = np.argsort(-flat, kind="stable")[:room]  # a tie goes to the parent, which comes first
    gained = np.concatenate([[0.0], flat[order].cumsum()])  # [1 + nodes]
    rates = (tokens + gained) / seconds(rows + np.arange(len(gained)))
    best = int(rates.argmax())
    if rates[best] < (1 + MARGIN) * rates[0]:
        best = 0
    chosen = set(order[:best].tolist())
    kept, first = [], 0
    for tree in chances:
        kept.append([node for node in range(len(tree)) if first + node in chosen])
        first += len(tree)
    return Choice(kept, float(rates[best]))
