"""What the target wrote, held against all that was proposed: the policy learns from it later."""

from collections.abc import Sequence

from outrider.core.request import Request
from outrider.core.tree import TokenTree
from outrider.drafters.merging import unite
from outrider.engine.cutting import Proposal
from outrider.engine.policy.policy import Policy


class Lessons:
    """Noted while a step ends, learned while the next pass is under way, which does not wait for
    it."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._alone: list[tuple[Request, str, TokenTree, list[int]]] = []  # of one drafter each
        self._meetings: list[tuple[Sequence[Proposal], list[int]]] = []  # of several, for one text

    def note(self, request: Request, proposals: Sequence[Proposal], text: list[int]) -> None:
        """The target wrote `text` where these were proposed, checked or not."""
        for drafter, tree, _ in proposals:
            self._alone.append((request, drafter.name, tree, text))
        if len(proposals) > 1 and all(proposal.divisible for proposal in proposals):
            self._meetings.append((list(proposals), text))

    def learn(self) -> None:
        for lesson in self._alone:
            self._policy.learn(*lesson)
        for proposals, text in self._meetings:
            drafters, trees, chances = zip(*proposals, strict=True)
            names = [drafter.name for drafter in drafters]
            self._policy.concord.learn(unite(list(trees)), names, list(chances), text)
        self.forget()
        self._policy.settle()

    def forget(self) -> None:
        self._alone.clear()
        self._meetings.clear()
