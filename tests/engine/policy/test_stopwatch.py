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


def test_what_a_drafters_model_takes_is_not_the_hosts_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    policy: Any = SimpleNamespace(cost=Heard(), waited=Heard())
    drafting: Any = SimpleNamespace(policy=policy, measures=True, hurried=False)
    runner: Any = SimpleNamespace(runs_ahead=True)
    item: Any = SimpleNamespace(completes=True, rows=1, sequence=SimpleNamespace())
    item.sequence.request = SimpleNamespace(slots=[1, 2, 3], output_ids=[1])
    flight: Any = SimpleNamespace(landed=None)
    clock = Stopwatch(runner, drafting)
    tree = TokenTree.chain([5, 6], "d")
    for started, landed in ((0.0, 1.0), (4.0, 9.0)):
        monkeypatch.setattr(stopwatch, "perf_counter", lambda now=landed: now)
        clock.landed(Launched([item], [tree], flight, started, modelled=2.5 if started else 0.0))
    clock.teach()
    assert policy.cost == [(3, 1, 3, 1.0), (3, 1, 3, 5.0)]
    assert policy.waited[1] == (4.0 - 1.0 - 2.5, 1)
    assert clock.writing_steps == 2
