"""The policy and drafters that may be asked for trees of any depth and width."""

import random
from statistics import median
from typing import ClassVar

import pytest
from tests.engine.policy.replay import LINEAR, VOCABULARY, Replay, oracle

from outrider.core.params import SamplingParams
from outrider.core.request import Request
from outrider.core.tree import ROOT, TokenTree
from outrider.drafters.base import DraftConfig, Drafter
from outrider.drafters.shapes import Shape, best_shape, chain
from outrider.drafters.worth import FREE, Worth
from outrider.engine.policy.offer import ENOUGH, Outlook
from outrider.engine.policy.timing import Timing
from outrider.engine.prospects import prospects

RATES = (0.4, 0.25, 0.1, 0.05)  # that the text goes on with the first, second, … guess


class Ranked(Drafter):
    """Its first guess holds rarely, its second not much less often. It says so truly."""

    name = "ranked"
    longest = 16
    texts: dict[str, list[int]]
    branches = True
    asked: ClassVar[list[tuple[int, int]]] = []  # nodes and depth

    def __init__(self, config: DraftConfig, target: object) -> None:
        super().__init__(config, target)  # type: ignore[arg-type]

    def outlines(self, nodes: int) -> list[Shape]:
        deepest = min(nodes, 8) if self.branches else 0
        return [best_shape(RATES, nodes, depth) for depth in range(1, deepest + 1)]

    def propose(self, batch: list[Request], budgets: list[int]) -> list[TokenTree]:
        return [self._filled(request, chain(n)) for request, n in zip(batch, budgets, strict=True)]

    def propose_to(
        self, batch: list[Request], budgets: list[int], depth: int, worth: Worth = FREE
    ) -> list[TokenTree]:
        if not self.branches:
            return self.propose(batch, budgets)
        self.asked.append((max(budgets), depth))
        shapes = [best_shape(RATES, budget, depth) for budget in budgets]
        return [self._filled(r, shape) for r, shape in zip(batch, shapes, strict=True)]

    def _filled(self, request: Request, shape: Shape) -> TokenTree:
        """The text's token stands where luck has put it among the siblings."""
        truth = self.texts[request.id][request.position :]
        shape = shape.cut(len(shape), len(truth))
        holds: list[bool] = []
        for node, parent in enumerate(shape.parents):
            rank = _rank_of_truth(request, request.position + shape.depths[node])
            holds.append((parent == ROOT or holds[parent]) and shape.ranks[node] == rank)
        wrong = VOCABULARY - 1
        tokens = [truth[shape.depths[n] - 1] if held else wrong for n, held in enumerate(holds)]
        return TokenTree(tokens, list(shape.parents), self.name, [RATES[r] for r in shape.ranks])


def _rank_of_truth(request: Request, place: int) -> int:
    luck = random.Random(f"{request.id} {place}").random()
    for rank, rate in enumerate(RATES):
        luck -= rate
        if luck < 0:
            return rank
    return len(RATES)


@pytest.fixture(autouse=True)
def nothing_asked() -> None:
    Ranked.asked.clear()


def test_second_guesses_that_hold_are_asked_for() -> None:
    narrow = type("Narrow", (Ranked,), {"branches": False})
    chains, trees = (Replay([each]).run(1, 600).speed_up for each in (narrow, Ranked))
    assert trees > 1.1 * chains
    nodes, depth = Ranked.asked[-1]
    assert nodes > depth  # wider than a chain


class Weighing(Ranked):
    """The same, but sometimes it sees no further than one level, and says so."""

    name = "weighing"
    seen: ClassVar[list[tuple[Worth, int]]] = []  # what it was told, and how deep it went

    @property
    def weighs(self) -> bool:
        return True

    def depth(self, nodes: int) -> int:
        return min(nodes, 8)

    def propose_to(
        self, batch: list[Request], budgets: list[int], depth: int, worth: Worth = FREE
    ) -> list[TokenTree]:
        far = 1 + batch[0].position % 2
        self.seen.append((worth, far))
        self.levels = min(depth, far)
        return super().propose_to(batch, budgets, min(depth, far), worth)


def test_a_drafter_that_weighs_is_told_prices_and_goes_as_far_as_it_likes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Weighing.seen.clear()
    timed: list[int] = []
    monkeypatch.setattr(
        Timing, "learn", lambda self, seconds, requests, levels: timed.append(levels)
    )
    replay = Replay([Weighing])
    replay.run(1, 300)
    worth, _ = Weighing.seen[len(Weighing.seen) // 2]
    assert 0 < worth.row < 0.1 and 1 / 240 < worth.second < 1 / 50  # of one pass
    late = Ranked.asked[len(Ranked.asked) // 2 :]
    assert {nodes for nodes, _ in late[:-8]} == {Weighing.longest}  # near its end a text has less
    assert {depth for _, depth in late} == {1, 2}
    # Its levels are timed by how many it drafted, not by how deep it might have gone.
    assert timed == [depth for _, depth in Ranked.asked]


def test_a_drafter_that_weighs_is_told_what_lookups_promise() -> None:
    told = []
    for honesty in (0.0, 0.5):
        Weighing.seen.clear()
        Replay([oracle(honesty), Weighing]).run(1, 300)
        late = Weighing.seen[len(Weighing.seen) // 2 :]
        told.append([sum(worth.promised.values()) for worth, _ in late])
    hopeless, good = told
    assert max(hopeless) < 0.1 and median(good) > 0.3 and len(good) > 10


def test_where_every_row_costs_a_pass_no_tree_is_asked_for() -> None:
    outcome = Replay([Ranked], LINEAR).run(8, 200)
    assert outcome.speed_up >= 0.98
    assert outcome.drafted <= 0.05 * outcome.tokens


def test_a_request_is_promised_no_more_than_it_has_room_for() -> None:
    replay = Replay([Ranked])
    replay.run(1, 50)
    one, many = (Request(name, [1], SamplingParams(), seed=0) for name in "ab")
    nothing = {one: 0.0, many: 0.0}
    sizes, (small, large) = prospects(
        replay.policy, replay.members[0], {one: 1, many: 8}, {one: 0, many: 0}, nothing, {}, nothing
    )
    assert max(size.nodes for size in sizes) == 8
    assert len(set(small.gains)) == 1  # one node, whatever the tree
    assert max(large.gains) > max(small.gains)


def test_of_a_trusted_drafter_more_is_hoped_for_where_nothing_was_seen_of_it() -> None:
    replay = Replay([Ranked])
    [drafter] = replay.members
    request = Request("a", [1], SamplingParams(), seed=0)

    def outlook() -> Outlook:
        nothing = {request: 0.0}
        unread = {request: 0}
        _, [found] = prospects(replay.policy, drafter, {request: 8}, unread, nothing, {}, nothing)
        return found

    assert outlook().hoped is None  # a stranger is hoped for in the first place
    replay.policy.promise(drafter.name, (0.5, 0.5))
    new = outlook()
    assert new.hoped is not None and min(new.hoped) > max(new.gains[:1])
    for _ in range(ENOUGH):
        replay.policy.learn(request, drafter.name, TokenTree.chain([5], drafter.name), [5])
    assert outlook().hoped is None


class Beside:
    """Three texts: of the second and the third something is proposed, and the third one's prompt
    must be read before it can be drafted for."""

    def __init__(self) -> None:
        self.replay = Replay([Ranked])
        self.replay.run(1, 50)
        [self.drafter] = self.replay.members
        self.batch = [Request(name, [1], SamplingParams(), seed=0) for name in "abc"]
        self.backlogs = dict(zip(self.batch, (0, 4, 400), strict=True))

    def gains(self, found: float, promised: float | None = None) -> list[list[float]]:
        """Per text: the tokens expected of a draft of each size."""
        budget = dict.fromkeys(self.batch, 8)
        without = dict(zip(self.batch, (0.0, found, found), strict=True))
        easy = without if promised is None else dict.fromkeys(self.batch, promised)
        _, outlooks = prospects(
            self.replay.policy, self.drafter, budget, self.backlogs, without, {}, easy
        )
        return [list(outlook.gains) for outlook in outlooks]


def test_beside_another_draft_one_counts_where_that_misses_unless_a_prompt_is_unread() -> None:
    three = Beside()
    alone, beside, unread = map(max, three.gains(0.5))
    assert max(alone, 0.5) < beside < alone + 0.5
    assert unread == alone
    assert 5.0 < max(three.gains(5.0)[1]) < 5.2


def test_more_is_expected_where_lookups_promise_much() -> None:
    three = Beside()
    unread = [three.gains(found)[2] for found in (0.0, 0.5, 1.5)]
    assert unread[0] == unread[1]
    assert min(unread[2]) > min(unread[1])
    assert three.gains(0.0, promised=1.5)[2] == unread[2]  # though nothing stands beside it


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("divisible", False),
        ("following", object()),
        ("config", DraftConfig("ranked", None, "traversal")),
    ],
)
def test_who_is_checked_alone_joins_nobody(
    monkeypatch: pytest.MonkeyPatch, name: str, value: object
) -> None:
    three = Beside()
    assert three.gains(0.5)[1] != three.gains(0.5)[0]
    monkeypatch.setattr(three.drafter, name, value)
    assert three.gains(0.5)[1] == three.gains(0.5)[0]
