"""Drafters that copy: what followed elsewhere, in text that is already there."""

from outrider.core.request import Request
from outrider.core.tree import TokenTree
from outrider.drafters.base import Drafter


class LookupDrafter(Drafter):
    """A lookup takes microseconds and no pass of any model, so it is asked in every step."""

    light = True
    longest = 24

    def propose(self, batch: list[Request], budgets: list[int]) -> list[TokenTree]:
        return [self.lookup(request, [], k) for request, k in zip(batch, budgets, strict=True)]

    def lookup(self, request: Request, ahead: list[int], budget: int) -> TokenTree:
        """What may follow the request's text and, after it, the drafted tokens `ahead`.

        `ahead` is not committed: it may shape this answer, but nothing may be remembered of it.
        """
        raise NotImplementedError
