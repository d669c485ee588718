"""The policy at work, on texts that are known and passes whose cost is known."""

import random
from typing import ClassVar

import pytest
from tests.engine.policy.replay import LINEAR, VOCABULARY, Oracle, Replay, luck, oracle

from outrider.core.request import Request
from outrider.core.tree import TokenTree
from outrider.engine.policy.timing import FIRST


def fixed_best(honesty: float, tokens: int) -> float:
    runs = [
        Replay([oracle(honesty)], length=k).run(1, tokens).speed_up for k in (1, 2, 4, 8, 16, 24)
    ]
    return max(runs)


@pytest.mark.parametrize("honesty", [0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0])
def test_never_slower_and_close_to_the_best_fixed_length(honesty: float) -> None:
    """Whatever the drafter claims: here it is always sure of itself."""
    adaptive = Replay([oracle(honesty)]).run(1, 400).speed_up
    assert adaptive >= 0.98
    assert adaptive >= 0.95 * fixed_best(honesty, 400)


@pytest.mark.parametrize("honesty", [0.0, 0.3])
@pytest.mark.parametrize("count", [1, 8, 32])
def test_a_hopeless_drafter_costs_next_to_nothing(honesty: float, count: int) -> None:
    assert Replay([oracle(honesty)], LINEAR).run(count, 200).speed_up >= 0.98


def test_a_drafter_without_confidence_is_judged_by_depth() -> None:
    good = Replay([oracle(0.9, claims=None)]).run(1, 300)
    bad = Replay([oracle(0.1, claims=None)]).run(1, 300)
    assert good.speed_up > 2
    assert bad.speed_up >= 0.98


def test_large_batches_switch_drafting_off_and_small_ones_on_again() -> None:
    replay = Replay([oracle(0.8)])
    assert replay.run(1, 100).drafted > 50
    replay.cost = replay.policy.cost = type(replay.cost)(LINEAR)  # rows are no longer cheap
    busy = replay.run(32, 40)
    assert busy.drafted <= 32 * 40 * 0.05
    replay.cost = replay.policy.cost = type(replay.cost)(replay.measured)
    again = replay.run(1, 100)
    assert again.drafted > 50
    assert again.speed_up > 1.5


def test_a_drafter_that_turns_good_is_noticed_although_nothing_of_it_was_checked() -> None:
    phase = {"honesty": 0.0}
    changing = type("Changing", (Oracle,), {"honesty": lambda request: phase["honesty"]})
    replay = Replay([changing])
    replay.run(1, 200)
    quiet = replay.run(1, 100)
    assert quiet.drafted < 10
    phase["honesty"] = 0.95
    replay.run(1, 100)
    assert replay.run(1, 100).speed_up > 2


def test_requests_are_told_apart() -> None:
    """One of two requests copies; the drafter is as sure of the other."""

    def honesty(request: Request) -> float:
        return 1.0 if int(request.id) % 2 == 0 else 0.0

    split = type("Split", (Oracle,), {"honesty": honesty})
    replay = Replay([split])
    outcome = replay.run(2, 300)
    checked = replay.drafting.decisions
    drafted = sum(nodes * times for nodes, times in checked.nodes[2].items())
    accepted = checked.accepted[2]
    assert outcome.speed_up > 1.1
    assert accepted > 0.6 * drafted  # the hopeless one is given little


class Other(Oracle):
    name = "other"


def test_of_two_drafters_the_better_one_is_believed() -> None:
    liar = type("Liar", (Other,), {"honesty": lambda request: 0.05})
    honest = oracle(0.9)
    both = Replay([liar, honest]).run(1, 300).speed_up
    alone = Replay([honest]).run(1, 300).speed_up
    assert both >= 0.95 * alone


class Short(Oracle):
    """Proposes one token where two may be checked."""

    longest = 2

    def lookup(self, request: Request, ahead: list[int], budget: int) -> TokenTree:
        return super().lookup(request, ahead, 1)


def test_two_halves_of_the_truth_are_merged() -> None:
    """Each drafter is right half of the time, and never both: their trees together are."""

    def first(request: Request) -> float:
        return float(luck(request, -request.position) < 0.5)

    def second(request: Request) -> float:
        return 1 - first(request)

    even = type("Even", (Short,), {"honesty": first})
    odd = type("Odd", (Short,), {"honesty": second, "name": "other"})
    both = Replay([even, odd]).run(1, 300).speed_up
    assert both > 1.05 * Replay([even]).run(1, 300).speed_up


class Counted(Oracle):
    """Remembers for how many requests it was asked."""

    calls: ClassVar[list[int]] = []

    def propose(self, batch: list[Request], budgets: list[int]) -> list[TokenTree]:
        self.calls.append(len(batch))
        return super().propose(batch, budgets)


class Costly(Counted):
    """Not a lookup: the policy thinks before it asks."""

    name = "costly"
    light = False


def costing(seconds: float, kind: type[Oracle], monkeypatch: pytest.MonkeyPatch) -> Replay:
    """Of a drafter whose level takes so long."""
    replay = Replay([kind])
    timing = replay.policy.timings[kind.name]
    monkeypatch.setattr(type(timing), "learn", lambda *args: None)  # no clock in this test
    timing.per_request = seconds
    timing._per_level, timing._calls = {1: seconds}, FIRST
    return replay


@pytest.mark.parametrize(("honesty", "seconds", "often"), [(0.0, 5.0, False), (0.95, 5.0, True)])
def test_a_drafter_that_costs_time_is_asked_where_it_pays(
    honesty: float, seconds: float, often: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = type("Kind", (Costly,), {"honesty": lambda request: honesty, "calls": []})
    replay = costing(seconds, kind, monkeypatch)
    outcome = replay.run(1, 600)
    passes = sum(replay.drafting.decisions.nodes[1].values())
    if often:
        assert len(kind.calls) > 0.9 * passes
        assert outcome.speed_up > 2
    else:
        assert len(kind.calls) < 0.1 * passes  # the first guess, and then ever rarer trials
        assert outcome.speed_up >= 0.97


class Silent(Costly):
    """Is so unsure of every token that it proposes none."""

    def propose(self, batch: list[Request], budgets: list[int]) -> list[TokenTree]:
        self.calls.append(len(batch))
        return [TokenTree.empty()] * len(batch)


@pytest.mark.parametrize("texts", [1, 8])
def test_a_drafter_that_never_proposes_anything_is_soon_left_alone(
    texts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it gains is seen by nobody's verdict, and it would be unknown forever."""
    kind = type("Kind", (Silent,), {"calls": []})
    costing(0.5, kind, monkeypatch).run(texts, 600)
    assert 0 < len(kind.calls) < 40  # of 600 steps


class Starting(Costly):
    """Its first calls read a text, or build something: they say nothing about the next ones."""

    backlogs: ClassVar[list[int]] = [400, 0, 0, 3]
    built: ClassVar[list[int]] = [1, 1, 2, 2]

    def backlog(self, request: Request) -> int:
        return self.backlogs[min(len(self.calls), 3)]

    @property
    def prepared(self) -> int:
        return self.built[min(len(self.calls), 3)]


def test_first_calls_do_not_tell_what_a_drafter_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = type("Kind", (Starting,), {"honesty": lambda request: 0.95, "calls": []})
    replay = Replay([kind])
    timing = replay.policy.timings["costly"]
    learned_after: list[int] = []
    monkeypatch.setattr(type(timing), "learn", lambda *args: learned_after.append(len(kind.calls)))
    replay.run(1, 100)
    # The first reads 400 tokens, and during the second something is built.
    assert learned_after[0] == 3 and len(learned_after) == len(kind.calls) - 2 > 5


@pytest.mark.parametrize(("texts", "reads"), [(1, False), (8, True)])
def test_what_many_texts_have_to_be_read_is_no_part_of_a_level(
    texts: int, reads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten rows of one text are little beside its draft; ten of each of eight are not."""
    kind = type(
        "Kind",
        (Costly,),
        {"honesty": lambda request: 0.95, "calls": [], "backlog": lambda self, request: 10},
    )
    replay = Replay([kind])
    timing, heard = type(replay.policy.timings["costly"]), []
    monkeypatch.setattr(timing, "learn", lambda self, s, texts, levels: heard.append((texts, "")))
    monkeypatch.setattr(
        timing, "learn_reading", lambda self, s, rows, texts, levels: heard.append((texts, "read"))
    )
    replay.run(texts, 60)
    assert (texts, "read" if reads else "") in heard
    assert (texts, "" if reads else "read") not in heard


class Bushy(Costly):
    """Eight nodes are two levels: four guesses at the next token, and four at the one after."""

    name = "bushy"
    longest = 8

    def depth(self, nodes: int) -> int:
        return 1 if nodes <= 4 else 2

    def lookup(self, request: Request, ahead: list[int], budget: int) -> TokenTree:
        first, second = self.texts[request.id][request.position :][:2]
        tokens = [*range(first, first + 4), *range(second, second + 4)]
        whole = TokenTree([t % VOCABULARY for t in tokens], [-1] * 4 + [0] * 4, self.name)
        return whole.select([*range(budget)])


@pytest.mark.parametrize(("seconds", "often"), [(5.0, True), (40.0, False)])
def test_a_tree_is_asked_for_where_its_levels_pay(
    seconds: float, often: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two tokens in two draft passes. Eight of each, which a chain of as many nodes would give,
    pay at either price."""
    kind = type("Kind", (Bushy,), {"calls": []})
    replay = Replay([kind])
    timing, levels = replay.policy.timings["bushy"], []
    monkeypatch.setattr(type(timing), "learn", lambda self, *args: levels.append(args[-1]))
    timing._per_level, timing._calls = {1: seconds}, FIRST
    replay.run(1, 600)
    passes = sum(replay.drafting.decisions.nodes[1].values())
    assert len(kind.calls) > 0.9 * passes if often else len(kind.calls) < 0.1 * passes
    assert set(levels) <= {1, 2}
    assert not often or levels.count(2) > 0.9 * len(levels)


def test_a_fixed_length_is_not_touched() -> None:
    replay = Replay([oracle(0.0)], length=5)
    outcome = replay.run(1, 50)
    assert outcome.drafted >= 5 * 40


def test_the_same_texts_and_costs_give_the_same_choices() -> None:
    random.seed(3)  # must not matter
    one, two = (Replay([oracle(0.6)]).run(3, 100) for _ in range(2))
    assert one == two


def test_a_lookup_that_gains_nothing_is_seldom_asked_where_its_time_would_show() -> None:
    """In a large batch the time per request is short; alone, a look costs next to nothing."""
    kind = type("Slow", (Counted,), {"honesty": lambda request: 0.0, "calls": []})
    replay = Replay([kind])
    timing = replay.policy.timings[kind.name]
    timing.per_request = 5.0  # a tenth of a pass
    timing.learn = lambda *args: None  # type: ignore[method-assign]  # no clock in this test
    replay.run(8, 100)
    assert sum(kind.calls) < 0.35 * 8 * 100
    asked = sum(kind.calls)
    replay.policy.draft_always()  # as audits have it
    replay.run(8, 100)
    assert sum(kind.calls) - asked >= 8 * 98


def test_who_keeps_the_device_waiting_thinks_seldom_of_what_does_not_pay() -> None:
    kind = type("Hopeless", (Counted,), {"honesty": lambda request: 0.0, "calls": []})
    calm, hurried = Replay([kind]), Replay([kind])
    for replay in (calm, hurried):
        timing = replay.policy.timings[kind.name]
        timing.per_request = 0.0  # a look costs nothing
        timing.learn = lambda *args: None  # type: ignore[method-assign]  # no clock in this test
    calm.run(4, 200)
    asked = len(kind.calls)
    hurried.drafting.hurried = True
    hurried.run(4, 200)
    assert len(kind.calls) - asked < asked / 4
    # What pays is thought of all the same.
    good = Replay([oracle(0.9)])
    good.drafting.hurried = True
    assert good.run(1, 300).speed_up > 0.97 * Replay([oracle(0.9)]).run(1, 300).speed_up
