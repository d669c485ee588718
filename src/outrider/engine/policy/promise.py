"""What a drafter has shown elsewhere, and whether it shows as much here."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log

from outrider.engine.policy.acceptance import HIGHEST

SURE = 3.0  # the odds that it does, as a logarithm: at first, and at most; below -SURE it does not
WORSE = 0.2  # of the promised share of guesses holds where the texts are not what it has learned


@dataclass
class Promise:
    """By depth, how often guesses hold once one came so deep. Of two suppositions about these texts
    the likelier one is believed: that as many hold here, or that hardly any do."""

    shares: Sequence[float]
    _odds: float = SURE
    _news: float = 0.0  # of the step under way

    def learn(self, held: bool, weight: float) -> None:
        """Whether one of the first guesses for a text did."""
        share = max(1 - HIGHEST, min(self.shares[0], HIGHEST))
        few = WORSE * share
        self._news += weight * log(share / few if held else (1 - share) / (1 - few))

    def settle(self) -> None:
        """At the end of a step. A single one of many texts decides nothing: they may be of one
        kind, or copies of each other."""
        self._odds = min(SURE, self._odds + max(-SURE, self._news))
        self._news = 0.0

    @property
    def broken(self) -> bool:
        return self._odds < -SURE
