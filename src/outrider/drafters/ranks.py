"""The best tree shape for the acceptance that has been seen."""

from collections.abc import Callable
from itertools import accumulate

from outrider.core.tree import ROOT, TokenTree
from outrider.core.verdict import Verdict
from outrider.drafters.level_times import LevelTimes
from outrider.drafters.shapes import Shape, best_shape, fastest_shape

PRIOR = (0.6, 0.14, 0.06, 0.04, 0.03, 0.02, 0.015, 0.01)  # a usual draft model's
WEIGHT = 8.0  # observations that the prior is worth
KEEP = 0.998  # of what was seen, per proposal that comes back
RENEW = 32  # steps until shapes are computed anew


class RankAcceptance:
    """How often the child of each rank is chosen, once its parent is.

    A rank that is never proposed fades back to its prior, and so is tried again.
    """

    def __init__(self) -> None:
        self._hits = [0.0] * len(PRIOR)
        self._trials = [0.0] * len(PRIOR)

    def learn(self, tree: TokenTree, verdict: Verdict) -> None:
        kept = set(verdict.kept)
        self._hits = [KEEP * hits for hits in self._hits]
        self._trials = [KEEP * trials for trials in self._trials]
        for reached in (ROOT, *verdict.kept):
            for rank, child in enumerate(tree.children.get(reached, ())[: len(PRIOR)]):
                self._trials[rank] += 1
                self._hits[rank] += child in kept

    @property
    def rates(self) -> list[float]:
        """By rank, never rising: a better guess that looks worse has been unlucky."""
        rates = [
            (hits + WEIGHT * prior) / (trials + WEIGHT)
            for hits, trials, prior in zip(self._hits, self._trials, PRIOR, strict=True)
        ]
        return list(accumulate(rates, min))


class MeasuredShapes:
    """Shapes from the past steps' acceptance, and the pass costs where they are known."""

    def __init__(self, level_times: LevelTimes | None = None) -> None:
        self.acceptance = RankAcceptance()
        self.level_times = level_times or LevelTimes()  # of draft passes after the first
        self._shapes: dict[tuple[int, int], Shape] = {}  # by nodes and depth, like the next
        self._likeliest: dict[tuple[int, int], Shape] = {}
        self._age = 0

    def learn(self, trees: list[TokenTree], verdicts: list[Verdict]) -> None:
        for tree, verdict in zip(trees, verdicts, strict=True):
            self.acceptance.learn(tree, verdict)
        self._age += 1
        if self._age >= RENEW:
            self._age = 0
            self._shapes.clear()
            self._likeliest.clear()

    def likeliest(self, nodes: int, depth: int) -> Shape:
        """The one with most accepted."""
        key = (nodes, depth)
        if key not in self._likeliest:
            self._likeliest[key] = best_shape(self.acceptance.rates, nodes, depth)
        return self._likeliest[key]

    def shape(self, nodes: int, depth: int, pass_seconds: Callable[[int], float] | None) -> Shape:
        """The fastest where costs are known; else the one with most accepted."""
        key = (nodes, depth)
        if key not in self._shapes:
            if pass_seconds is None or not self.level_times:
                self._shapes[key] = self.likeliest(nodes, depth)
            else:
                rates, level = self.acceptance.rates, self.level_times.of(1)
                self._shapes[key] = fastest_shape(rates, nodes, depth, pass_seconds, level)
        return self._shapes[key]
