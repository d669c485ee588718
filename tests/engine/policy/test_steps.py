"""One step of several drafters and requests: what is counted where, who hears of it."""

from math import log1p
from typing import Any

import pytest
from tests.engine.policy.replay import Oracle, Replay, oracle

from outrider.core.params import SamplingParams
from outrider.core.request import Request
from outrider.core.tree import TokenTree
from outrider.core.verdict import Verdict
from outrider.drafters.base import Drafter
from outrider.engine import calls
from outrider.engine.crew import Plan
from outrider.engine.policy.gate import Pass

TEXT = list(range(100, 140))


class Heard(Oracle):
    """Always right, and notes which trees it hears of."""

    honesty = staticmethod(lambda request: 1.0)

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.heard: list[list[int]] = []

    def review(self, batch: list[Request], trees: list[TokenTree], verdicts: list[Verdict]) -> None:
        self.heard += [tree.tokens for tree in trees]


class Look(Heard):
    name = "look"


class Short(Heard):
    name, longest = "short", 1


class Whole(Heard):
    """Its trees are checked whole and alone."""

    name, divisible, longest = "whole", False, 3


class Better(Whole):
    name, longest = "better", 6


class Costly(Heard):
    name, light, longest = "costly", False, 4


class Step:
    """Requests that each have their own drafters, and all that the policy was asked."""

    def __init__(self, *kinds: type[Drafter], patch: pytest.MonkeyPatch) -> None:
        self.replay = Replay(list(kinds))
        self.drafting, self.policy = self.replay.drafting, self.replay.policy
        self.by_name = {member.name: member for member in self.replay.members}
        self.chosen: list[tuple[Pass, int]] = []  # the pass and the room, each time it chose
        self.asked: list[Pass] = []
        choose, ask = self.policy.choose, self.policy.ask

        def choosing(chances: Any, base: Pass, room: int) -> Any:
            self.chosen.append((base, room))
            return choose(chances, base, room)

        def asking(name: str, outlooks: Any, sizes: Any, base: Pass, *rest: Any) -> Any:
            self.asked.append(base)
            return ask(name, outlooks, sizes, base, *rest)

        patch.setattr(self.policy, "choose", choosing)
        patch.setattr(self.policy, "ask", asking)

    def add(self, *names: str, length: int | None = None) -> Request:
        request = Request(f"{len(self.replay.texts)}", [1, 2], SamplingParams(), seed=0)
        self.replay.texts[request.id] = TEXT
        drafters = tuple(self.by_name[name] for name in names)
        self.drafting.add(request, Plan("+".join(names), drafters, length))
        return request

    def trust(self, name: str) -> None:
        """Others have shown that this drafter is right."""
        tree = TokenTree.chain(TEXT[:8], name, confidence=[0.9] * 8)
        for _ in range(60):
            self.policy.learn(other := Request("", [1], SamplingParams(), 0), name, tree, TEXT)
            self.policy.release(other)

    def propose(self, *batch: Request, room: int = 64) -> list[TokenTree]:
        budgets = [self.drafting.most(request) for request in batch]
        count = len(batch)
        return self.drafting.propose(list(batch), budgets, Pass(count, count, count, 0), room)

    def review(self, batch: list[Request], trees: list[TokenTree]) -> None:
        verdicts = []
        for tree in trees:
            kept = tree.follow(TEXT)
            verdicts.append(Verdict(kept, TEXT[len(kept)]))
        self.drafting.review(batch, trees, verdicts)


def test_drafts_of_a_fixed_length_are_rows_before_the_policy_chooses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    step = Step(Look, patch=monkeypatch)
    trees = step.propose(step.add("look", length=5), step.add("look"), room=12)
    assert len(trees[0]) == 5
    assert step.chosen == [(Pass(2, 7, 2, 0), 7)]
    assert 0 < len(trees[1]) <= 7


def test_whole_trees_are_rows_and_gain_before_the_policy_chooses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    step = Step(Look, Whole, patch=monkeypatch)
    whole, other = step.add("whole"), step.add("look")
    trees = step.propose(whole, other, room=10)
    assert trees[0].tokens == TEXT[:3]
    base, room = step.chosen[-1]
    assert (base.rows, room) == (2 + 3, 10 - 3)
    assert base.log_gain == pytest.approx(log1p(sum(step.policy.chances(whole, "whole", trees[0]))))


def test_a_later_whole_tree_was_asked_for_since_it_promises_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    step = Step(Whole, Better, patch=monkeypatch)
    step.trust("whole")
    step.trust("better")
    (tree,) = step.propose(step.add("whole", "better"))
    assert tree.source == "better" and len(tree) == 6


def test_a_drafter_that_costs_time_is_weighed_against_what_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = Step(Look, patch=monkeypatch)
    looked_up, _ = before.propose(before.add("look"), before.add())
    step = Step(Look, Costly, patch=monkeypatch)
    step.propose(step.add("look"), step.add("costly"))
    (base,) = step.asked
    assert base.rows == 2 + len(looked_up) > 2
    assert base.log_gain > 0


def test_beside_lookups_that_have_something_for_everybody_a_no_says_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    step = Step(Look, Costly, patch=monkeypatch)
    told: list[bool] = []
    doubt = step.policy.doubts["costly"]
    monkeypatch.setattr(type(doubt), "answered", lambda *args: told.append(args[-1]))
    step.trust("look")
    both = step.add("look", "costly")
    step.propose(both)
    step.propose(both, step.add("costly"))
    told = [each for each in told if isinstance(each, bool)]  # not of lookups
    assert told == [False, True]


def test_what_a_drafter_reads_first_is_told_from_what_it_drafts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    step = Step(Costly, patch=monkeypatch)
    drafter, request = step.by_name["costly"], step.add("costly", length=4)
    ticks = iter([0.0, 12.0, 20.0, 24.0])
    monkeypatch.setattr(calls, "perf_counter", lambda: next(ticks))
    timing = step.policy.timings["costly"]
    for backlog in (600, 1):
        monkeypatch.setattr(drafter, "backlog", lambda request, rows=backlog: rows)
        step.propose(request)
    assert timing.per_row == pytest.approx(12.0 / 600)
    assert timing.seconds(1, 4) == pytest.approx(4.0)


def test_only_the_owner_of_what_was_checked_hears_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    step = Step(Short, Whole, patch=monkeypatch)
    step.trust("whole")
    batch = [step.add("short", "whole"), step.add("short")]
    trees = step.propose(*batch)
    step.review(batch, trees)
    assert step.by_name["whole"].heard == [TEXT[:3]]  # type: ignore[attr-defined]
    assert step.by_name["short"].heard == [TEXT[:1]]  # type: ignore[attr-defined]


def test_what_was_not_checked_is_learned_from_too_and_before_the_request_is_forgotten() -> None:
    replay = Replay([oracle(0.0)])  # wrong, and soon not checked any more
    replay.run(1, 300)
    drafting, policy = replay.drafting, replay.policy
    request = Request("last", [1, 2], SamplingParams(), seed=0)
    replay.texts["last"] = TEXT
    drafting.add(request, Plan("oracle", tuple(replay.members), None))
    (tree,) = drafting.propose([request], [8], Pass(1, 1, 1, 0), 64)
    assert len(tree) == 0
    before = policy.tracks["oracle"].levels[0].hits
    drafting._proposals[request][0].tree.tokens[0] = TEXT[0]  # for once it would have been right
    drafting.review([request], [tree], [Verdict([], TEXT[0])])
    drafting.release(request)
    drafting.learn()
    assert policy.tracks["oracle"].levels[0].hits > before
    assert not policy._records


def test_what_comes_too_late_for_a_pass_counts_from_its_second_level(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The pass under way itself tells the first token; waiting for that alone gains nothing."""
    step = Step(Look, Short, patch=monkeypatch)
    step.trust("look")
    step.trust("short")
    base = Pass(1, 1, 1, 0)
    for name, late, waits in (("short", False, 1), ("short", True, 0), ("look", True, 8)):
        (tree,) = step.drafting.propose([step.add(name)], [8], base, 64, late)
        assert len(tree) == waits


def test_what_reading_must_pay_goes_by_what_is_left_of_a_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    step = Step(Costly, patch=monkeypatch)
    endless, short = step.add("costly"), step.add("costly")
    object.__setattr__(short.params, "max_tokens", 10)
    short.append(TEXT[0])
    told: list[Any] = []
    price = step.policy.price
    monkeypatch.setattr(step.policy, "price", lambda *args: told.append(args[-1]) or price(*args))
    step.propose(endless, short)
    [(unlimited, left)] = told
    assert unlimited > 1_000_000 and left == 9
