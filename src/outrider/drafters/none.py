"""Plain decoding: the empty tree."""

from outrider.core.request import Request
from outrider.core.tree import TokenTree
from outrider.drafters.base import Drafter


class NoDrafter(Drafter):
    name = "none"
    longest = 0
    light = True

    def propose(self, batch: list[Request], budgets: list[int]) -> list[TokenTree]:
        return [TokenTree.empty() for _ in batch]
