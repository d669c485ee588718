"""Who a drafter is: one that has promised something, or a stranger."""

from collections import defaultdict
from collections.abc import Sequence

from outrider.engine.policy.acquaintance import Acquaintance
from outrider.engine.policy.promise import Promise

TRUSTED = 0.8  # of the share of guesses that was promised: who keeps less is judged like others


class Standing:
    def __init__(self) -> None:
        self._promised: dict[str, Sequence[float]] = {}  # what drafters have shown elsewhere
        self.reset()

    def reset(self) -> None:
        self._promises = {name: Promise(shares) for name, shares in self._promised.items()}
        self._acquaintances: defaultdict[str, Acquaintance] = defaultdict(Acquaintance)

    @property
    def promised(self) -> dict[str, Sequence[float]]:
        """By drafter and depth, how often guesses are said to hold, where that was not broken."""
        return {name: promise.shares for name, promise in self._promises.items()}

    def promise(self, drafter: str, shares: Sequence[float]) -> None:
        """It need not show first what it can."""
        self._promised[drafter] = shares
        self._promises[drafter] = Promise(shares)

    def __contains__(self, drafter: str) -> bool:
        """Whether anything is to be learned: of lookups nobody asks who they are."""
        return drafter in self._promises or drafter in self._acquaintances

    def learn(self, drafter: str, held: bool, news: float) -> None:
        """Whether one of the first guesses for a text did."""
        if drafter in self._acquaintances:
            self._acquaintances[drafter].learn(held)
        if drafter in self._promises:
            self._promises[drafter].learn(held, news)

    def settle(self) -> list[str]:
        """At the end of a step. Those whose promise does not hold here: they are strangers now."""
        for promise in self._promises.values():
            promise.settle()
        for acquaintance in self._acquaintances.values():
            acquaintance.settle()
        broken = [name for name, promise in self._promises.items() if promise.broken]
        for drafter in broken:
            del self._promises[drafter]
        return broken

    def trusted(self, drafter: str, share: float) -> bool:
        """Whether it was promised how often its guesses hold, and this share is about as often."""
        promise = self._promises.get(drafter)
        return promise is not None and share > TRUSTED * promise.shares[0]

    def may_guess(self, drafter: str) -> int | None:
        """Nodes that are asked of it, while it is a stranger. A report introduces it."""
        if drafter in self._promises:
            return None
        acquaintance = self._acquaintances[drafter]
        return acquaintance.most if acquaintance.stranger else None
