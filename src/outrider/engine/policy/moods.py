"""How much slower passes are than calibration has found.

Of what a pass shows, part is the machine's mood, which comes and goes and is the same for all
passes, and part is what calibration has got wrong about passes of this kind, which stays. Decisions
rest on relations between passes alone. So the two are told apart: what is seen of passes with
drafts in a slow minute must not make drafts dear.

That is a Kalman filter over logarithms: the mood wanders from pass to pass; each kind of pass has
an error of its own, which is like that of its neighbours until it is seen.
"""

from collections.abc import Sequence

import numpy as np

# Standard deviations, of logarithms.
NOISE = 0.05  # of a pass
AT_FIRST = 1.0  # of the mood: it was another one when the machine was calibrated
WANDERS = 0.05  # the mood, from one pass to the next
DRIFTS = 0.003  # an error, from one pass to the next
BATCH = 0.2  # of the error that all passes over about so many texts have in common
SHAPE = 0.15  # of the error of each number of rows beyond that
REACH = 2.0  # doublings of the rows within which such errors are alike
STARTLING = 2.0  # deviations: what is further off may be a hiccup, and counts as this much


class Moods:
    """Kinds of passes are sizes of batches and, for each, points of the curve over `rows`."""

    def __init__(self, rows: Sequence[int]) -> None:
        places = np.log2(rows)
        alike = np.exp(-abs(places[:, None] - places) / REACH)  # [points, points]
        self._of_batch = BATCH**2 + SHAPE**2 * alike
        self._first: dict[int, int] = {}  # by size of batch: where its errors are in the state
        # The state: the mood, then the errors of all sizes of batches so far.
        self._mean = np.zeros(1)  # [state]
        self._spread = np.full((1, 1), AT_FIRST**2)  # [state, state] covariance

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
        self._spread[0, 0] += WANDERS**2
        known = self._spread.diagonal()[1:] < BATCH**2 + SHAPE**2  # better than at first
        errors = 1 + known.nonzero()[0]
        self._spread[errors, errors] += DRIFTS**2
        shared = self._spread[0] + self._spread[at]  # [state]: covariance with what is seen
        total = shared[0] + shared[at] + NOISE**2
        total = max(total, abs(surprise) * total**0.5 / STARTLING)
        self._mean += shared / total * surprise
        self._spread -= np.outer(shared, shared / total)

    def _place(self, batch: int) -> int:
        if batch not in self._first:
            size, points = len(self._mean), len(self._of_batch)
            self._first[batch] = size
            self._mean = np.pad(self._mean, (0, points))
            self._spread = np.pad(self._spread, (0, points))
            self._spread[size:, size:] = self._of_batch
        return self._first[batch]
