"""What a trained drafter's drafts take is learned for the levels that they had."""

from pathlib import Path
from typing import Any

import pytest
from tests.engine.helpers import Models, make_llm, random_prompt, run
from tests.heads.untrained import Heads

from outrider.core.params import SamplingParams
from outrider.drafters import growing
from outrider.drafters.growing import GrowingDrafter
from outrider.engine.policy.timing import Timing


def test_trees_that_stop_of_themselves_are_timed_by_the_levels_they_had(
    models: Models, heads: Heads, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while nothing is known of what one more level takes."""
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path))
    monkeypatch.setattr(growing, "going_on", lambda drafts, times: [])
    had, timed = [0], []
    level, learn, learn_reading = GrowingDrafter.level, Timing.learn, Timing.learn_reading

    def counted(self: GrowingDrafter, drafts: Any) -> Any:
        had[0] += 1
        return level(self, drafts)

    def noted(levels: int) -> None:
        if had[0]:  # else it was a lookup
            timed.append((levels, had[0]))
            had[0] = 0

    def learned(self: Timing, seconds: float, requests: int, levels: int) -> None:
        noted(levels)
        learn(self, seconds, requests, levels)

    def read(self: Timing, seconds: float, rows: int, requests: int, levels: int) -> None:
        noted(levels)
        learn_reading(self, seconds, rows, requests, levels)

    monkeypatch.setattr(GrowingDrafter, "level", counted)
    monkeypatch.setattr(Timing, "learn", learned)
    monkeypatch.setattr(Timing, "learn_reading", read)
    drafter = {"method": "eagle3", "model": heads["eagle3"], "tree": "confidence"}
    asked = [(random_prompt(i, 9), SamplingParams(seed=i, max_tokens=30)) for i in range(4)]
    for _ in ("rehearsed", "from the cache"):
        timed.clear()
        run(make_llm(models.target, {"method": "auto", "drafters": ["suffix", drafter]}), asked)
        assert len(timed) > 2
        assert all(levels == passes for levels, passes in timed), timed
