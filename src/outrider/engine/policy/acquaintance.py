"""How much is asked of a drafter that costs time, and of which nothing is known."""

from dataclasses import dataclass

ENOUGH = 16  # nodes: who was given so many has shown what it can


@dataclass
class Acquaintance:
    """A stranger may make one guess. Who is right may make twice as many the next time, and who is
    wrong half as many: trees that a hopeless drafter grows level by level cost the most of it."""

    most: int = 1  # nodes

    @property
    def stranger(self) -> bool:
        return self.most < ENOUGH

    def learn(self, held: bool) -> None:
        """Whether one of its first guesses held; of one that is known that says nothing new."""
        if self.stranger:
            self.most = 2 * self.most if held else max(1, self.most // 2)
