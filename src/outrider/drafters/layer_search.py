"""Which layers may be left out of a draft: a search on the text that is written anyway."""

import random
from math import sqrt

SHARE = 0.45  # of the layers are skipped
PATIENCE = 48  # changes in a row that did not help: the search is over
GOOD_ENOUGH = 0.95  # share of tokens foreseen at which it is over, too
JUDGED = 64  # tokens that this share must be of
SURE = 2.0  # standard errors by which a change must be better
WINDOWS = 3  # texts after which a change that may be better, but not surely, is dropped


class LayerSearch:
    """A set of layers, and one change of it at a time that has to prove itself on the same text.

    Two sets are compared by the log-likelihood that drafts without them give to the text. Counting
    the tokens they foresee would not tell bad sets from worse ones, where a search has to start.
    The first and the last layer stay: they turn tokens into the model's own terms and back.
    """

    def __init__(self, layers: int) -> None:
        self._inner = range(1, layers - 1)
        count = min(len(self._inner), round(SHARE * layers))
        spread = {1 + (2 * i + 1) * len(self._inner) // (2 * count) for i in range(count)}
        self.best = frozenset(spread)
        self.candidate = self.best
        self._random = random.Random(layers)
        self._failures = 0
        self._held = self._reached = 0
        self._next_candidate()

    @property
    def done(self) -> bool:
        """Nothing is left to try, nothing helps any more, or nothing needs to."""
        stuck = self.candidate == self.best or self._failures >= PATIENCE
        foreseen = self._reached >= JUDGED and self._held >= GOOD_ENOUGH * self._reached
        return stuck or foreseen

    def watch(self, held: int, reached: int) -> None:
        """Of the tokens drafted with the best set, so many held when it was their turn."""
        self._held += held
        self._reached += reached

    def judge(self, best: list[float], candidate: list[float]) -> None:
        """The log-likelihoods of the same tokens, once by either set."""
        ahead = [b - a for a, b in zip(best, candidate, strict=True)]
        self._ahead += sum(ahead)
        self._spread += sum(x * x for x in ahead)
        self._windows += 1
        if self._ahead > SURE * sqrt(self._spread):
            self.best = self.candidate
            self._held = self._reached = self._failures = 0
        elif self._ahead > 0 and self._windows < WINDOWS:
            return  # too close to tell
        else:
            self._failures += 1
        self._next_candidate()

    def _next_candidate(self) -> None:
        """One layer that was skipped is run, and another one is skipped for it."""
        self._ahead = self._spread = 0.0
        self._windows = 0
        inside = sorted(self.best)
        outside = [layer for layer in self._inner if layer not in self.best]
        if inside and outside:
            swap = {self._random.choice(inside), self._random.choice(outside)}
            self.candidate = self.best ^ swap
