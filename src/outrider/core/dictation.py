"""A text that a request is made to write, so that speeds are compared over the same text."""

from dataclasses import dataclass


@dataclass
class Dictation:
    """In low precision a near tie may be decided by the shape of a pass, and from there on two
    engines write different texts, of which one may be much easier to draft for. A dictated text
    takes as many passes as an engine's drafts deserve, and nobody is lucky."""

    tokens: list[int]
    overruled: int = 0  # choices of the target that were not the dictated token

    def decide(self, position: int, chosen: int) -> int:
        """What is written at an output position where the target has chosen this token."""
        if position >= len(self.tokens):  # beyond a stop, which nobody will see
            return chosen
        self.overruled += chosen != self.tokens[position]
        return self.tokens[position]
