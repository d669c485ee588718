"""Chi-square with a stated false-alarm probability."""

from collections.abc import Hashable, Iterable, Mapping

from scipy import stats

# No more than 20 tests in tests/sampling and tests/verify compare a p-value with this, so that all
# of them together raise a false alarm with probability 1e-6 at most. Seeds are fixed besides.
ALPHA = 5e-8


def p_value(observed: Iterable[Hashable], expected: Mapping[Hashable, float]) -> float:
    """Of the observations under the expected probabilities; cells with fewer than 10 expected
    observations are pooled. Something impossible has p-value 0."""
    seen = list(observed)
    counts = dict.fromkeys(expected, 0)
    for value in seen:
        if not expected.get(value, 0):
            return 0.0
        counts[value] += 1
    cells, rest = [], [0.0, 0.0]
    for value, probability in expected.items():
        cell = [counts[value], probability * len(seen)]
        if cell[1] >= 10:
            cells.append(cell)
        else:
            rest = [rest[0] + cell[0], rest[1] + cell[1]]
    cells += [rest] if rest[1] > 0 else []
    statistic = sum((count - mean) ** 2 / mean for count, mean in cells)
    return float(stats.chi2.sf(statistic, len(cells) - 1))
