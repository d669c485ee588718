"""Calls of single drafters: what they take is noted, what they propose is checked."""

from time import perf_counter

from outrider.core.errors import OutriderError
from outrider.core.request import Request
from outrider.core.tree import TokenTree
from outrider.drafters.base import Drafter
from outrider.drafters.worth import FREE, Worth
from outrider.engine.cutting import Proposal
from outrider.engine.policy.policy import Policy
from outrider.engine.policy.timing import ROUTINE


class Calls:
    def __init__(self, policy: Policy, vocabulary: int) -> None:
        self._policy, self._vocabulary = policy, vocabulary
        self.model_seconds = 0.0  # spent by drafters that run a model

    def __call__(
        self,
        drafter: Drafter,
        batch: list[Request],
        budgets: list[int],
        backlog: int,
        depth: int | None = None,
        worth: Worth = FREE,
    ) -> dict[Request, Proposal]:
        """Have it propose for a batch, of which it has so much to read; the policy asks for a
        depth. Requests for which it has nothing are left out."""
        prepared, start = drafter.prepared, perf_counter()
        if depth is None:
            trees = drafter.propose(batch, budgets)
        else:
            trees = drafter.propose_to(batch, budgets, depth, worth)
        seconds = perf_counter() - start
        if drafter.prepared == prepared:  # what is built once does not tell what the next one takes
            levels = drafter.levels if drafter.weighs else depth or drafter.depth(max(budgets))
            self._learn(drafter.name, seconds, len(batch), levels, backlog)
        if not drafter.light:
            self.model_seconds += seconds
            silent = [request for request, tree in zip(batch, trees) if not len(tree)]
            self._policy.learn_silence(drafter.name, silent)
        found = {}
        for request, tree, most in zip(batch, trees, budgets, strict=True):
            self._check(drafter, tree, most)
            if len(tree):
                chances = self._policy.chances(request, drafter.name, tree)
                found[request] = Proposal(drafter, tree, chances)
        return found

    def _learn(self, drafter: str, seconds: float, texts: int, levels: int, backlog: int) -> None:
        timing = self._policy.timings[drafter]
        if backlog <= ROUTINE + texts:
            timing.learn(seconds, texts, levels)
        else:
            timing.learn_reading(seconds, backlog, texts, levels)

    def _check(self, drafter: Drafter, tree: TokenTree, budget: int) -> None:
        tokens = tree.tokens
        known = not tokens or (min(tokens) >= 0 and max(tokens) < self._vocabulary)
        if len(tree) > budget or not known:
            raise OutriderError(
                f"drafter {drafter.name!r} proposed {len(tree)} nodes {tree.tokens} for a "
                f"budget of {budget} and {self._vocabulary} token ids; this is its fault"
            )
