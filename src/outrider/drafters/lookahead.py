"""Lookahead decoding: every pass also writes ahead of the text, and what it finds is drafted."""

from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

from outrider.core.errors import ConfigError
from outrider.core.request import Request
from outrider.core.tree import ROOT, TokenTree
from outrider.core.verdict import Verdict
from outrider.drafters.base import DraftConfig, Drafter
from outrider.drafters.jacobi import Ngram, NgramPool, Window
from outrider.model.loading import LoadedModel

PRIOR = 4  # how many observations the first guess at a chance is worth
RANKS = 3  # guesses beyond are taken together
NO_GUESS = -1  # the rank of a node that only the window holds


class LookaheadDrafter(Drafter):
    """One tree holds both branches of the method.

    The window's first tokens are a chain below the root, and from each hangs the rest of its
    column: every node then sees, and stands, just where the method wants it. Guesses, the n-grams
    that start with the root's token, are further chains. What they share is computed once.
    """

    name = "lookahead"
    # On the default model 1.82 tokens a pass from 12 nodes; twice the nodes give 1.94.
    options = {"window": 3, "ngram": 4, "guesses": 6, "prompt": True}  # noqa: RUF012
    light = True
    divisible = False  # a column that is cut is a column that does not grow
    reads_choices = True  # at the window's columns, which no text reaches

    def __init__(self, config: DraftConfig, target: LoadedModel) -> None:
        super().__init__(config, target)
        self.window = self._whole_number("window", least=1)
        self.ngram = self._whole_number("ngram", least=2)
        self.guesses = self._whole_number("guesses", least=1)
        if not isinstance(self.option("prompt"), bool):
            raise ConfigError(f"prompt={self.option('prompt')!r} must be True or False")
        self.longest = (self.ngram - 1) * (self.window + self.guesses)
        self._states: dict[Request, _State] = {}

    @classmethod
    def audit_config(cls, target: str) -> dict[str, Any]:
        # Whole trees in every step, whatever they cost.
        defaults = cls.options
        full = (defaults["ngram"] - 1) * (defaults["window"] + defaults["guesses"])
        return {"method": cls.name, "num_speculative_tokens": full}

    def _whole_number(self, name: str, least: int) -> int:
        value = self.option(name)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ConfigError(f"{name}={value!r} must be a whole number of at least {least}")
        return value

    def depth(self, nodes: int) -> int:
        """The window's last column hangs from the end of the chain of first tokens."""
        return min(nodes, self.window + self.ngram - 2)

    def propose(self, batch: list[Request], budgets: list[int]) -> list[TokenTree]:
        return [self._tree(request, k) for request, k in zip(batch, budgets, strict=True)]

    def _tree(self, request: Request, budget: int) -> TokenTree:
        state = self._state(request)
        text = request.tokens
        state.pool.read(text, 0 if self.option("prompt") else len(request.prompt_ids))
        width = self._width(budget)
        state.window.move_to(len(text))
        state.window.fill(width, partial(state.random.choice, text))
        growth = _Growth(budget)
        tops = growth.add_window(state.window.columns[:width])
        growth.add_guesses(state.pool.after(text[-1]))
        kinds = growth.kinds()
        confidence = [state.experience.chance(kind) for kind in kinds]
        tree = TokenTree(growth.tokens, growth.parents, self.name, confidence)
        state.proposed = _Proposal(tree, kinds, tops)
        return tree

    def _state(self, request: Request) -> "_State":
        if request not in self._states:
            window = Window(self.ngram - 1, len(request.tokens))
            pool = NgramPool(self.ngram, self.guesses)
            self._states[request] = _State(window, pool, _Experience(), Random(0))
        return self._states[request]

    def _width(self, budget: int) -> int:
        """Columns within a budget. The window keeps its share; but guesses are what is accepted,
        so that the first unit is theirs."""
        units = min(budget, self.longest) // (self.ngram - 1)
        return units * self.window // (self.window + self.guesses)

    def review(self, batch: list[Request], trees: list[TokenTree], verdicts: list[Verdict]) -> None:
        for request, tree, verdict in zip(batch, trees, verdicts, strict=True):
            state = self._states.get(request)
            proposed = state and state.proposed
            if not state or not proposed or verdict.choices is None:
                continue
            state.proposed = None
            if tree.tokens == proposed.tree.tokens and tree.parents == proposed.tree.parents:
                state.experience.learn(proposed, verdict)
                for ngram in state.window.write([verdict.choices[t + 1] for t in proposed.tops]):
                    state.pool.add(ngram)

    def release(self, request: Request) -> None:
        self._states.pop(request, None)


Kind = tuple[int, int]  # a node's rank among the guesses, and its depth


@dataclass
class _Proposal:
    tree: TokenTree
    kinds: list[Kind]
    tops: list[int]  # the node of each column's last token


@dataclass
class _State:
    """All that is remembered of one request. Its random tokens decide nothing but guesses."""

    window: Window
    pool: NgramPool
    experience: "_Experience"
    random: Random
    proposed: _Proposal | None = None


class _Growth:
    """A tree that is being put together; equal paths are one."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self._ranks: list[int] = []
        self._depths: list[int] = []
        self._nodes: dict[tuple[int, int], int] = {}  # (parent, token) -> node

    def add_window(self, columns: list[list[int]]) -> list[int]:
        """The node of each column's last token; the budget is wide enough."""
        tops, foot = [], ROOT
        for first, *rest in columns:
            foot = node = self._add(foot, first, NO_GUESS)
            for token in rest:
                node = self._add(node, token, NO_GUESS)
            tops.append(node)
        return tops

    def add_guesses(self, guesses: list[Ngram]) -> None:
        """As far as the budget goes."""
        for rank, guess in enumerate(guesses):
            node = ROOT
            for token in guess:
                if len(self.tokens) == self.budget and (node, token) not in self._nodes:
                    break
                node = self._add(node, token, rank)

    def _add(self, parent: int, token: int, rank: int) -> int:
        node = self._nodes.setdefault((parent, token), len(self.tokens))
        if node == len(self.tokens):
            self.tokens.append(token)
            self.parents.append(parent)
            self._ranks.append(rank)
            self._depths.append(1 if parent == ROOT else self._depths[parent] + 1)
        elif self._ranks[node] == NO_GUESS:
            self._ranks[node] = rank
        return node

    def kinds(self) -> list[Kind]:
        return [
            (min(rank, RANKS - 1), depth)
            for rank, depth in zip(self._ranks, self._depths, strict=True)
        ]


class _Experience:
    """How often nodes of a kind held when the text reached their parents."""

    def __init__(self) -> None:
        self._seen: dict[Kind, list[int]] = {}  # held, reached

    def chance(self, kind: Kind) -> float:
        held, reached = self._seen.get(kind, (0, 0))
        return (held + PRIOR * _first_guess(*kind)) / (reached + PRIOR)

    def learn(self, proposed: _Proposal, verdict: Verdict) -> None:
        tree = proposed.tree
        written = [*(tree.tokens[node] for node in verdict.kept), verdict.next_token]
        for parent, token in zip([ROOT, *verdict.kept], written, strict=True):
            for node in tree.children.get(parent, ()):
                seen = self._seen.setdefault(proposed.kinds[node], [0, 0])
                seen[0] += tree.tokens[node] == token
                seen[1] += 1


def _first_guess(rank: int, depth: int) -> float:
    """A guess that has held so far will mostly go on; the window is still far from the text."""
    if rank == NO_GUESS:
        return 0.05
    return 0.7 if depth > 1 else 0.4 / (1 + rank)
