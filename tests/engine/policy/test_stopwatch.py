"""What the policy hears of the time that passes take."""

from array import array
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from tests.engine.helpers import Models, make_llm

from outrider.core.tree import TokenTree
from outrider.engine import stopwatch
from outrider.engine.launched import Launched
from outrider.engine.policy.timing import Waiting
from outrider.engine.stopwatch import Stopwatch
from outrider.model.segment import Segment


class Heard(list[tuple[Any, ...]]):
    def learn(self, *said: Any) -> None:
        self.append(said)


FLIGHT: Any = SimpleNamespace(landed=None)


def make() -> tuple[Any, Any, Stopwatch]:
    """A policy, a runner and the clock between them."""
    policy: Any = SimpleNamespace(cost=Heard(), waited=Heard(), proof=Heard())
    drafting: Any = SimpleNamespace(policy=policy, measures=True, hurried=False)
    drafting.can_wait = lambda request: request.slots != [4]
    runner: Any = SimpleNamespace(runs_ahead=True, prepared=3)
    return policy, runner, Stopwatch(runner, drafting)


def step_of(rows: int) -> Any:
    item: Any = SimpleNamespace(completes=True, rows=rows, sequence=SimpleNamespace())
    item.sequence.request = SimpleNamespace(slots=[1, 2, 3], output_ids=[1])
    return item


def test_what_a_drafters_model_takes_is_not_the_hosts_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    policy, _, clock = make()
    tree = TokenTree.chain([5, 6], "d")
    for rows, started, landed in ((1, 0.0, 1.0), (1, 4.0, 9.0), (7, 10.0, 13.0), (1, 19.0, 20.0)):
        monkeypatch.setattr(stopwatch, "perf_counter", lambda now=landed: now)
        modelled = 2.5 if started == 4.0 else 0.0
        clock.landed(Launched([step_of(rows)], [tree], FLIGHT, started, modelled=modelled))
    clock.teach()
    assert policy.cost == [(3, 1, 3, 1.0), (3, 1, 3, 5.0), (3, 1, 3, 1.0)]
    # After a prompt, as at the very first, a pass waits without any draft as well.
    assert policy.waited == [(4.0 - 1.0 - 2.5, 1)]
    assert clock.writing_steps == 3


def test_passes_that_waited_for_a_graph_to_be_captured_tell_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    policy, runner, clock = make()
    tree = TokenTree.chain([5, 6], "d")
    for prepared, started, landed in ((3, 0.0, 1.0), (4, 19.0, 20.0), (4, 21.0, 23.0)):
        runner.prepared = prepared
        monkeypatch.setattr(stopwatch, "perf_counter", lambda now=landed: now)
        clock.landed(Launched([step_of(1)], [tree], FLIGHT, started))
    clock.teach()
    assert policy.cost == [(3, 1, 3, 1.0), (3, 1, 3, 2.0)]
    assert policy.waited == [(1.0, 1)]


def test_on_a_cpu_the_first_pass_over_a_number_of_rows_tells_nothing(models: Models) -> None:
    """Products of that size are prepared in it, and used again by all others."""
    llm = make_llm(models.target, None)
    runner = llm.engine.runner

    def prepares(rows: int) -> bool:
        before = runner.prepared
        slots = array("q", range(1, 1 + rows))
        runner.forward([Segment.chain([5] * rows, slots, array("q"), 0)])
        return runner.prepared > before

    assert [prepares(rows) for rows in (11, 11, 13, 11, 13)] == [True, False, True, False, False]


def test_the_shortest_of_the_first_waits_counts_and_none_before_them() -> None:
    """On a GPU one wait of 17 ms, behind something that is built once, had kept drafts away."""
    waiting = Waiting()
    for seconds in (17.0, 0.5):
        waiting.learn(seconds, 1)
        assert waiting.seconds(1) == 0.0
    waiting.learn(0.8, 1)
    assert waiting.seconds(1) == waiting.seconds(64) == 0.5
    waiting.learn(9.0, 64)  # of another size of batch, of which too little is known
    assert waiting.seconds(64) == 0.5
    waiting.learn(0.6, 1)
    assert waiting.seconds(1) == pytest.approx(0.51)


@pytest.mark.parametrize("ahead", [True, False])
def test_of_many_passes_without_drafts_few_are_learned_from(
    monkeypatch: pytest.MonkeyPatch, ahead: bool
) -> None:
    """But on a CPU all of those that come soon after drafts: they are compared with these."""
    policy, runner, clock = make()
    runner.runs_ahead = ahead
    near = stopwatch.NEAR
    for second, nodes in enumerate([1, *[0] * (near + 2 * stopwatch.SELDOM)]):
        monkeypatch.setattr(stopwatch, "perf_counter", lambda now=second: now)
        tree = TokenTree.chain([5] * nodes, "d")
        clock.landed(Launched([step_of(1)], [tree], FLIGHT, float(second)))
        clock.teach()
    plain = [said for said in policy.cost if said[0] == 1]
    assert len(plain) == 2 + (0 if ahead else near)
    assert len(policy.cost) == len(plain) + 1


def test_what_drafts_bring_by_the_clock_is_told_with_what_comes_after_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """From one pass to the next, and not after prompts; the first passes after drafts had to wait
    for them."""
    policy, runner, clock = make()
    drafted = [1, 0, 0, 0, 1]
    for now, nodes in enumerate(drafted):
        monkeypatch.setattr(stopwatch, "perf_counter", lambda now=now: float(now))
        tree = TokenTree.chain([5] * nodes, "d")
        clock.landed(Launched([step_of(1)], [tree], FLIGHT, float(now)), 1 + nodes)
    assert policy.proof == [
        (1, 1, 1.0, True),
        (1, 1, 1.0, True),
        (1, 1, 1.0, False),
        (1, 2, 1.0, True),
    ]
    plain = Launched([step_of(1)], [TokenTree.empty()], FLIGHT, 9.0)
    clock.landed(replace(plain, routine=False), 1)  # something was built in it
    clock.landed(replace(plain, settled=False), 1)  # the engine may have been idle before it
    promised = step_of(1)
    promised.sequence.request.slots = [4]
    clock.landed(replace(plain, work=[promised]), 1)  # drafts that nobody has decided on
    runner.runs_ahead = False
    clock.landed(plain, 1)  # a CPU does one thing after the other, and parts are enough
    assert len(policy.proof) == 4
    runner.runs_ahead = True
    clock.landed(plain, 1)
    assert len(policy.proof) == 5
