"""What the policy hears of the time that passes take."""

from types import SimpleNamespace
from typing import Any

import pytest

from outrider.core.tree import TokenTree
from outrider.engine import stopwatch
from outrider.engine.launched import Launched
from outrider.engine.stopwatch import Stopwatch


class Heard(list[tuple[Any, ...]]):
    def learn(self, *said: Any) -> None:
        self.append(said)


def step_of(rows: int) -> Any:
    item: Any = SimpleNamespace(completes=True, rows=rows, sequence=SimpleNamespace())
    item.sequence.request = SimpleNamespace(slots=[1, 2, 3], output_ids=[1])
    return item


def test_what_a_drafters_model_takes_is_not_the_hosts_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    policy: Any = SimpleNamespace(cost=Heard(), waited=Heard())
    drafting: Any = SimpleNamespace(policy=policy, measures=True, hurried=False)
    runner: Any = SimpleNamespace(runs_ahead=True)
    flight: Any = SimpleNamespace(landed=None)
    clock = Stopwatch(runner, drafting)
    tree = TokenTree.chain([5, 6], "d")
    for rows, started, landed in ((1, 0.0, 1.0), (1, 4.0, 9.0), (7, 10.0, 13.0), (1, 19.0, 20.0)):
        monkeypatch.setattr(stopwatch, "perf_counter", lambda now=landed: now)
        modelled = 2.5 if started == 4.0 else 0.0
        clock.landed(Launched([step_of(rows)], [tree], flight, started, modelled=modelled))
    clock.teach()
    assert policy.cost == [(3, 1, 3, 1.0), (3, 1, 3, 5.0), (3, 1, 3, 1.0)]
    # After a prompt, as at the very first, a pass waits without any draft as well.
    assert policy.waited == [(4.0 - 1.0 - 2.5, 1)]
    assert clock.writing_steps == 3
