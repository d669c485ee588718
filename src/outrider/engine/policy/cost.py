"""What a pass costs: measured at start, corrected by every step after that."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import exp, inf, log, log2

import numpy as np

from outrider.engine.policy.moods import CPU, Moods, Nature

STALE = 64  # passes with drafts until one without is worth having, to see what it takes now;
SOON = 16  # and until it was seen
FIRST = 3  # times
TOLD = 256  # instead of STALE, and FIRST once, where calibration has looked at as many texts


@dataclass(frozen=True)
class Crowd:
    """Passes over several texts, as calibration found them."""

    texts: int
    rows: list[int]  # of all of them, ascending from one each
    seconds: list[float]


@dataclass(frozen=True)
class Measured:
    """Seconds of passes as calibration found them; what goes into the cache."""

    rows: list[int]  # ascending, from 1
    seconds: list[float]  # of a pass over so many rows of one sequence, at `context`
    context: int
    per_sequence: float = 0.0  # for each sequence beyond the first
    per_key: float = 0.0  # for each token of context beyond `context`
    crowds: list[Crowd] = field(default_factory=list)  # by rising number of texts


def as_many(rows: int) -> int:
    return rows


@dataclass
class PassCost:
    """Predicts the time of a pass. Only relations between costs matter to the policy, so a machine
    that is slow for a while changes nothing.

    As many rows cost one text less than many, and what a further row costs depends on that, too. So
    there is a curve for each size of batch, by its bits: the measured one, corrected by what passes
    have shown."""

    measured: Measured
    fixed: bool = False  # nothing is learned
    nature: Nature = CPU  # of the machine
    filled_up: Callable[[int], int] = as_many  # the rows that a pass over so many really has
    # By bits of the batch size:
    _plain: dict[int, int] = field(default_factory=dict)  # passes without drafts,
    _drafted: dict[int, int] = field(default_factory=dict)  # and with, since the last of those
    _curves: dict[int, list[float]] = field(default_factory=dict)
    _pass_sizes: list[int] = field(default_factory=list)  # by rows, as far as it was asked for
    # By the batch size itself: how much slower passes without drafts are.
    _plainly: dict[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._points = self.measured.rows
        self._base = smooth(self.measured.seconds)
        self._moods = Moods(self._points, self.nature)
        crowds = self.measured.crowds
        self._sizes = [0.0, *(log2(crowd.texts) for crowd in crowds)]
        lone = np.zeros(len(self._points))
        self._departures = np.stack([lone, *map(self._departure, crowds)])  # [sizes, points]

    def _departure(self, crowd: Crowd) -> np.ndarray:
        """[points]: logs of how far passes over so many texts are from what those over one say."""
        alone = np.interp(crowd.rows, self._points, self._base)
        seconds = np.array(smooth(crowd.seconds))
        fixed = (crowd.texts - 1) * self.measured.per_sequence
        fixed *= seconds[0] / (alone[0] + fixed)  # as in a pass without drafts
        departures = np.log((seconds - fixed) / alone)
        return np.interp(np.log(self._points), np.log(crowd.rows), departures)

    def _slower(self, bits: int) -> np.ndarray:
        """[points]: logs of how much slower than the curve of a lone text: by what calibration has
        found of as many texts, or of more and fewer, and by what passes have shown since."""
        place = float(np.interp(bits - 1, self._sizes, range(len(self._sizes))))
        below = int(place)
        part, above = place - below, min(below + 1, len(self._sizes) - 1)
        found = (1 - part) * self._departures[below] + part * self._departures[above]
        return found + self._moods.of(bits)

    def _curve(self, sequences: int) -> list[float]:
        """[points]: seconds for a batch of about so many."""
        bits = sequences.bit_length()
        if bits not in self._curves:
            self._curves[bits] = self._corrected(bits)
        return self._curves[bits]

    def _corrected(self, bits: int) -> list[float]:
        # No pass has fewer rows than texts: below that nothing is seen, and the slope goes on.
        least = max(0, bisect_right(self._points, 1 << (bits - 1)) - 1)
        slower = self._slower(bits).tolist()
        return smooth(
            [base * exp(slower[max(point, least)]) for point, base in enumerate(self._base)]
        )

    def seconds(self, rows: int, sequences: int = 1, keys: int = 0) -> float:
        """Of a pass over so many rows in all; `keys` is the context of all sequences."""
        points, curve, rows = self._points, self._curve(sequences), self.filled_up(rows)
        # Between two points, or beyond the last as between the last two.
        right = min(max(1, bisect_left(points, rows)), len(points) - 1)
        cost = curve[right]
        if right:
            slope = (curve[right] - curve[right - 1]) / (points[right] - points[right - 1])
            cost += (max(rows, points[0]) - points[right]) * slope
        known = self.measured
        extra_keys = max(0, keys - sequences * known.context)
        # What depends neither on rows nor on drafts, corrected like a pass without drafts.
        fixed = (sequences - 1) * known.per_sequence + extra_keys * known.per_key
        if fixed == 0:
            return cost
        if sequences not in self._plainly:
            plain = self._point_of(sequences, sequences)
            self._plainly[sequences] = exp(self._slower(sequences.bit_length())[plain])
        return cost + fixed * self._plainly[sequences]

    def growing(self, rows: int, more: int, sequences: int = 1, keys: int = 0) -> list[float]:
        """1 + more: of passes over `rows` rows, one more, and so on. Products over drafts take
        nothing up to the rows that a pass has anyway."""
        if self.filled_up is as_many:
            return self._line(rows, more, sequences, keys)
        known = self._pass_sizes
        known += map(self.filled_up, range(len(known), rows + more + 1))
        sizes = known[rows : rows + more + 1]
        first = sizes[0]
        times = self._line(first, sizes[-1] - first, sequences, keys)
        return [times[size - first] for size in sizes]

    def _line(self, rows: int, more: int, sequences: int, keys: int) -> list[float]:
        """The same from a size on that passes have, as if they could have all above it."""
        cost, points = self.seconds(rows, sequences, keys), self._points
        curve = self._curve(sequences)
        found = [cost]
        right = min(max(1, bisect_left(points, rows + 1)), len(points) - 1)
        while len(found) <= more:
            slope = 0.0
            if right:
                slope = (curve[right] - curve[right - 1]) / (points[right] - points[right - 1])
            last = right == len(points) - 1
            steps = more + 1 - len(found)
            if not last:
                steps = min(steps, points[right] - (rows + len(found) - 1))
            found += [cost + slope * step for step in range(1, steps + 1)]
            cost = found[-1]
            right += not last
        return found

    def learn(self, rows: int, sequences: int, keys: int, seconds: float) -> None:
        """A pass over so many rows took so long."""
        if self.fixed:
            return
        bits, point = sequences.bit_length(), self._point_of(rows, sequences)
        surprise = log(max(seconds, 1e-9) / self.seconds(rows, sequences, keys))
        self._moods.learn(bits, point, surprise)
        if rows > sequences:
            self._drafted[bits] = self._drafted.get(bits, 0) + 1
        else:
            self._plain[bits], self._drafted[bits] = self._plain.get(bits, 0) + 1, 0
        self._curves.clear()
        self._plainly.clear()

    def _point_of(self, rows: int, sequences: int) -> int:
        """The point that such a pass tells about. What drafts of many texts take must not change
        what is believed of a pass without: so those tell of more rows than that has, while there is
        such a point, and a pass without tells of at most as many."""
        size, plain = self.filled_up(max(rows, 1)), self.filled_up(sequences)
        distances = [
            abs(log(point / size)) if (point > plain) == (size > plain) else inf
            for point in self._points
        ]
        nearest = min(distances)
        return distances.index(nearest) if nearest < inf else len(self._points) - 1

    def plain_is_due(self, sequences: int) -> bool:
        """Whether it is time to see what such a pass takes without drafts: then this one should be
        without, and the next ones need not be. Of one text calibration has told, and of many it
        may have: then it is only to be seen whether that holds."""
        if self.fixed or sequences == 1:
            return False
        bits = sequences.bit_length()
        told = bits - 1 <= self._sizes[-1]
        first, later = (1, TOLD) if told else (FIRST, STALE)
        wait = later if self._plain.get(bits, 0) >= first else SOON
        due = self._drafted.get(bits, 0) >= wait
        if due:  # what it took is told after the next pass has begun
            self._drafted[bits] = 0
        return due

    def curve(self) -> list[tuple[int, float]]:
        """(rows, seconds) of a lone text, as believed now."""
        return list(zip(self._points, self._curve(1), strict=True))


def smooth(values: Sequence[float]) -> list[float]:
    """The nearest sequence that never falls: more rows cannot be cheaper, only measured so.

    Pools neighbours that fall into their mean.
    """
    pools: list[tuple[float, int]] = []
    for value in values:
        pools.append((float(value), 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (a, n), (b, m) = pools[-2], pools[-1]
            pools[-2:] = [((a * n + b * m) / (n + m), n + m)]
    return [value for value, count in pools for _ in range(count)]
