"""What a pass costs: measured at start, corrected by every step after that."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import exp, log

KEEP = 0.95  # of an estimate per step, where a new measurement comes in
TRUST = 10  # measurements of a point until its own correction counts as much as the common one
OUTLIER = 3.0  # a step this many times slower or faster than predicted says nothing of the pass


@dataclass(frozen=True)
class Measured:
    """Seconds of passes as calibration found them; what goes into the cache."""

    rows: list[int]  # ascending, from 1
    seconds: list[float]  # of a pass over so many rows of one sequence, at `context`
    context: int
    per_sequence: float = 0.0  # for each sequence beyond the first
    per_key: float = 0.0  # for each token of context beyond `context`


@dataclass
class PassCost:
    """Predicts the time of a pass. Only relations between costs matter to the policy, so a machine
    that is slow for a while changes nothing.

    As many rows cost one text less than many, and what a further row costs depends on that, too. So
    there is a curve for each size of batch, by its bits: the measured one, corrected by the passes
    that had about as many texts."""

    measured: Measured
    fixed: bool = False  # nothing is learned
    _common: float = 0.0  # log of how much slower passes are than measured
    # By bits of the batch size, the same at each point of the curve, and how often it was seen.
    _own: dict[int, list[float]] = field(default_factory=dict)
    _seen: dict[int, list[int]] = field(default_factory=dict)
    _curves: dict[int, list[float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._points = self.measured.rows
        self._base = smooth(self.measured.seconds)

    def _curve(self, sequences: int) -> list[float]:
        """[points]: seconds for a batch of about so many."""
        bits = sequences.bit_length()
        if bits not in self._curves:
            self._curves[bits] = self._corrected(bits)
        return self._curves[bits]

    def _corrected(self, bits: int) -> list[float]:
        none = [0] * len(self._points)
        corrected = []
        for base, own, seen in zip(
            self._base, self._own.get(bits, none), self._seen.get(bits, none), strict=True
        ):
            share = seen / (seen + TRUST)
            corrected.append(base * exp(self._common + share * (own - self._common)))
        # No pass has fewer rows than texts: what is believed of that must not spoil the rest.
        start = max(0, bisect_right(self._points, 1 << (bits - 1)) - 1)
        return corrected[:start] + smooth(corrected[start:])

    def seconds(self, rows: int, sequences: int = 1, keys: int = 0) -> float:
        """Of a pass over so many rows in all; `keys` is the context of all sequences."""
        points, curve = self._points, self._curve(sequences)
        # Between two points, or beyond the last as between the last two.
        right = min(max(1, bisect_left(points, rows)), len(points) - 1)
        cost = curve[right]
        if right:
            slope = (curve[right] - curve[right - 1]) / (points[right] - points[right - 1])
            cost += (max(rows, points[0]) - points[right]) * slope
        known = self.measured
        extra_keys = max(0, keys - sequences * known.context)
        # What depends neither on rows nor on drafts, scaled like the rest.
        fixed = (sequences - 1) * known.per_sequence + extra_keys * known.per_key
        return cost + fixed * exp(self._common)

    def growing(self, rows: int, more: int, sequences: int = 1, keys: int = 0) -> list[float]:
        """1 + more: of passes over `rows` rows, one more, and so on."""
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
        predicted = self.seconds(rows, sequences, keys)
        if seconds <= 0 or not 1 / OUTLIER < seconds / predicted < OUTLIER:
            seconds = predicted * (OUTLIER if seconds > predicted else 1 / OUTLIER)
        error = log(seconds / predicted)
        distances = [abs(log(point / max(rows, 1))) for point in self._points]
        nearest = distances.index(min(distances))
        was = self._common
        self._common += (1 - KEEP) * error
        bits = sequences.bit_length()
        own = self._own.setdefault(bits, [0.0] * len(self._points))
        seen = self._seen.setdefault(bits, [0] * len(self._points))
        # A point's own correction starts from the common one and moves as fast: with one point in
        # use the two stay equal, and the shape of the curve stays as measured.
        own[nearest] = (own[nearest] if seen[nearest] else was) + (1 - KEEP) * error
        seen[nearest] += 1
        self._curves.clear()

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
