"""How much is asked of a drafter that costs time, and of which nothing is known."""

from dataclasses import dataclass

KNOWN = 16  # nodes: who may make so many was right in four more steps than it was wrong in


@dataclass
class Acquaintance:
    """A stranger may make one guess. After a step in which it was right it may make twice as many,
    after one in which it was wrong half as many: a hopeless drafter's trees are what it costs most
    with, and one that is good has soon shown it."""

    most: int = 1  # nodes
    _drafts: int = 0  # of the step under way,
    _held: int = 0  # and those of them of which a first guess held

    @property
    def stranger(self) -> bool:
        return self.most < KNOWN

    def learn(self, held: bool) -> None:
        """Whether one of its first guesses for a text did."""
        self._drafts += 1
        self._held += held

    def settle(self) -> None:
        """At the end of a step. Who is known stays so."""
        if self._drafts and self.stranger:
            right = 2 * self._held >= self._drafts
            self.most = 2 * self.most if right else max(1, self.most // 2)
        self._drafts = self._held = 0
