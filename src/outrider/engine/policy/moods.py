"""How much slower passes are than calibration has found.

Of what a pass shows, part is the machine's mood, which comes and goes and is the same for all
passes, and part is what calibration has got wrong about passes of this kind, which stays. Decisions
rest on relations between passes alone. So the two are told apart: what is seen of passes with
drafts in a slow minute must not make drafts dear.

That is a Kalman filter over logarithms: the mood wanders from pass to pass; each kind of pass has
an error of its own, which is like that of its neighbours until it is seen. On a machine that many
share, passes of one kind differ more from each other than elsewhere, and are believed less.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

DRIFTS = 0.003  # an error, from one pass to the next
STARTLING = 2.0  # deviations: what is further off may be a hiccup, and counts as this much
UNREST_KEEP = 0.95  # of what is believed of the machine's unrest, per pass


class Nature(NamedTuple):
    """What a machine is like: standard deviations, of logarithms."""

    noise: float = 0.05  # of a pass
    at_first: float = 1.0  # of the mood: it was another one when the machine was calibrated
    wanders: float = 0.05  # the mood, from one pass to the next
    batch: float = 0.2  # of the error that all passes over about so many texts have in common
    shape: float = 0.15  # of the error of each number of rows beyond that
    reach: float = 2.0  # doublings of the rows within which such errors are alike
    most_unrest: float = 1.0


# On a CPU calibration is right about the shape of the curve, and other programs disturb passes.
CPU = Nature(shape=0.06, most_unrest=16.0)
GPU = Nature()


class Moods:
    """Kinds of passes are sizes of batches and, for each, points of the curve over `rows`."""

    def __init__(self, rows: Sequence[int], nature: Nature = CPU) -> None:
        self._nature = nature
        places = np.log2(rows)
        alike = np.exp(-abs(places[:, None] - places) / nature.reach)  # [points, points]
        self._of_batch = nature.batch**2 + nature.shape**2 * alike
        self._first: dict[int, int] = {}  # by size of batch: where its errors are in the state
        # The state: the mood, then the errors of all sizes of batches so far.
        self._mean = np.zeros(1)  # [state]
        self._spread = np.full((1, 1), nature.at_first**2)  # [state, state] covariance
        self._unrest = 1.0  # a factor of the variances of noise and wandering
        self._passes = 0
        self._seen: dict[int, tuple[int, float]] = {}  # by kind: its last pass, and what that took

    def of(self, batch: int) -> np.ndarray:
        """[points]: logs of how much slower than calibrated."""
        points = len(self._of_batch)
        if batch not in self._first:
            return np.full(points, self._mean[0])
        first = self._first[batch]
        return self._mean[0] + self._mean[first : first + points]

    def learn(self, batch: int, point: int, surprise: float) -> None:
        """Log of how much slower a pass was than `of` had it."""
        at = self._place(batch) + point
        self._compare(at, self._mean[0] + self._mean[at] + surprise)
        nature = self._nature
        self._spread[0, 0] += self._unrest * nature.wanders**2
        known = self._spread.diagonal()[1:] < self._of_batch[0, 0]  # better than at first
        errors = 1 + known.nonzero()[0]
        self._spread[errors, errors] += DRIFTS**2
        shared = self._spread[0] + self._spread[at]  # [state]: covariance with what is seen
        total = shared[0] + shared[at] + self._unrest * nature.noise**2
        total = max(total, abs(surprise) * total**0.5 / STARTLING)
        self._mean += shared / total * surprise
        self._spread -= np.outer(shared, shared / total)

    def _compare(self, kind: int, took: float) -> None:
        """With the last pass of the same kind: what calibration got wrong is the same in both."""
        self._passes += 1
        before, last = self._seen.get(kind, (0, took))
        self._seen[kind] = (self._passes, took)
        gap, nature = self._passes - before, self._nature
        usual = 2 * nature.noise**2 + gap * nature.wanders**2
        strange = min((took - last) ** 2 / usual, (2 * STARTLING) ** 2)
        unrest = UNREST_KEEP * self._unrest + (1 - UNREST_KEEP) * strange
        self._unrest = min(max(1.0, unrest), nature.most_unrest)

    def _place(self, batch: int) -> int:
        if batch not in self._first:
            size, points = len(self._mean), len(self._of_batch)
            self._first[batch] = size
            self._mean = np.pad(self._mean, (0, points))
            self._spread = np.pad(self._spread, (0, points))
            self._spread[size:, size:] = self._of_batch
        return self._first[batch]
