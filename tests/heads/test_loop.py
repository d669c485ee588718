"""Chains that a drafter's loop writes on the device are those of its passes, one by one."""

from typing import Any

import pytest
import torch
from tests.engine.helpers import Models, make_llm, random_prompt, run, same_results
from tests.heads.compared import ROWS
from tests.heads.looped import Watched, make_looped
from tests.heads.untrained import VARIANTS, Heads

from outrider.core.params import SamplingParams
from outrider.drafters import loop_text
from outrider.model.cuda import tree_attention


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter runs one program after the other, those with nothing to do among them."""
    monkeypatch.setattr(tree_attention, "MOST_PARTS", 2)


def asked(count: int, temperature: float | None = None, **options: Any) -> list[Any]:
    """Half of them at temperature 0, unless all have the same."""
    return [
        (
            random_prompt(i, 3 + 5 * (i % 3)),
            SamplingParams(
                temperature=0.9 * (i % 2) if temperature is None else temperature,
                seed=i,
                max_tokens=8,
                ignore_eos=True,
                **options,
            ),
        )
        for i in range(count)
    ]


@pytest.mark.parametrize("variant", list(VARIANTS))
def test_guesses_are_those_of_single_passes(models: Models, heads: Heads, variant: str) -> None:
    config = {"model": heads[variant], "num_speculative_tokens": 4}
    llm = make_looped(models.target, config)
    watched = Watched(llm)
    texts = asked(3)
    results = run(llm, texts)
    assert watched.tokens > 40 and watched.drafter.loop._cuda.replays > 20
    assert watched.other == 0
    same_results(llm, texts, results, run(make_llm(models.target), texts))
