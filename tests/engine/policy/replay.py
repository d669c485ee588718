"""Drafting without a model: texts that are known beforehand, passes that cost what a table says.

Under coupled verification the text does not depend on the drafts, so it may as well be given.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace

from outrider.core.params import SamplingParams
from outrider.core.request import Request
from outrider.core.tree import TokenTree
from outrider.core.verdict import Verdict
from outrider.drafters.base import DraftConfig, Drafter
from outrider.drafters.lookup import LookupDrafter
from outrider.engine.drafting import Drafting
from outrider.engine.policy.cost import Measured, PassCost
from outrider.engine.policy.gate import Pass
from outrider.engine.policy.policy import Policy

VOCABULARY = 1000
# As of a small model on two cores: a second row costs a third more, the next ones little.
STEPPED = Measured([1, 2, 4, 8, 16, 32, 64], [50, 66, 70, 78, 92, 140, 240], context=256)
# As of a busy server: every row costs the same.
LINEAR = Measured([1, 64], [1, 64], context=256)


class Oracle(LookupDrafter):
    """Knows the texts, and tells the truth as often as `honesty` says; claims to be sure."""

    name = "oracle"
    texts: dict[str, list[int]]
    honesty: Callable[[Request], float]
    claims: float | None = 0.9

    def __init__(self, config: DraftConfig, target: object) -> None:
        super().__init__(config, target)  # type: ignore[arg-type]

    def lookup(self, request: Request, ahead: list[int], budget: int) -> TokenTree:
        start, honesty = request.position, type(self).honesty(request)
        truth = self.texts[request.id][start : start + budget]
        tokens = [
            token if luck(request, place) < honesty else VOCABULARY - 1
            for place, token in enumerate(truth, start)
        ]
        sure = None if self.claims is None else [self.claims] * len(tokens)
        return TokenTree.chain(tokens, self.name, confidence=sure)


def luck(request: Request, place: int) -> float:
    """A number in [0, 1) for each place of each text, whatever was drafted there before."""
    return random.Random(f"{request.id} {place}").random()


def oracle(honesty: float, **attributes: object) -> type[Oracle]:
    return type("Oracle", (Oracle,), {"honesty": lambda request: honesty, **attributes})


@dataclass
class Outcome:
    time: float
    plain: float
    tokens: int
    drafted: int

    @property
    def speed_up(self) -> float:
        return self.plain / self.time


class Replay:
    """Drafts for `count` texts at a time, on a machine that costs what `measured` says."""

    def __init__(
        self, drafters: list[type[Drafter]], measured: Measured = STEPPED, length: int | None = None
    ) -> None:
        self.measured = measured
        self.cost = PassCost(measured)
        self.policy = Policy(lambda: measured)
        self.policy.cost = PassCost(measured, fixed=True)
        runner = SimpleNamespace(loaded=None, vocabulary=VOCABULARY, runs_ahead=False)
        self.drafting = Drafting(DraftConfig(), runner, self.policy)  # type: ignore[arg-type]
        self.members = [each(DraftConfig(each.name), None) for each in drafters]  # type: ignore[arg-type]
        self.length = length
        self.texts: dict[str, list[int]] = {}
        for member in self.members:
            member.texts = self.texts  # type: ignore[attr-defined]
        self.rng = random.Random(0)
        self.draft_time: dict[str, float] = {}  # by drafter, per level; for costly ones

    def run(self, count: int, tokens: int) -> Outcome:
        from outrider.engine.crew import Plan

        requests = []
        for i in range(count):
            name = f"{len(self.texts)}"
            self.texts[name] = [self.rng.randrange(VOCABULARY - 1) for _ in range(tokens)]
            request = Request(name, [1, 2, 3], SamplingParams(), seed=i)
            self.drafting.add(request, Plan("replay", tuple(self.members), self.length))
            requests.append(request)
        outcome = Outcome(0.0, 0.0, 0, 0)
        while requests:
            outcome.plain += self.cost.seconds(len(requests)) * self._step(requests, outcome)
            for request in [r for r in requests if r.position >= tokens]:
                self.drafting.release(request)
                requests.remove(request)
        return outcome

    def _step(self, requests: list[Request], outcome: Outcome) -> float:
        """One pass; the mean number of tokens that it wrote for a request."""
        room = {r: len(self.texts[r.id]) - r.position - 1 for r in requests}
        drafting = [r for r in requests if room[r] > 0]
        count = len(requests)
        trees = self.drafting.propose(
            drafting,
            [min(self.drafting.most(r), room[r]) for r in drafting],
            Pass(count, count, count, 0),
            512 - count,
        )
        self.drafting.learn()
        outcome.time += self.cost.seconds(count + sum(len(tree) for tree in trees))
        verdicts, written = [], 0
        tree_of = dict(zip(drafting, trees, strict=True))
        for request in requests:
            rest = self.texts[request.id][request.position :]
            kept = tree_of[request].follow(rest[:-1]) if request in tree_of else []
            verdicts.append(Verdict(kept, rest[len(kept)]))
            written += len(kept) + 1
        said = dict(zip(requests, verdicts, strict=True))
        self.drafting.review(drafting, trees, [said[r] for r in drafting])
        for request in requests:
            kept = said[request].kept
            for node in kept:
                request.append(tree_of[request].tokens[node])
            request.append(said[request].next_token)
        outcome.tokens += written
        outcome.drafted += sum(len(tree) for tree in trees)
        return written / count
