"""Passes that are filled up with rows of nobody."""

import pytest
from tests.engine.helpers import Models, make_llm

from outrider.core.params import SamplingParams
from outrider.model import runner
from outrider.model.row_sizes import filled_up


@pytest.mark.parametrize("drafter", [None, {"method": "suffix", "num_speculative_tokens": 3}])
def test_rows_of_nobody_change_no_text(
    models: Models, monkeypatch: pytest.MonkeyPatch, drafter: dict[str, object] | None
) -> None:
    """In float32, where texts can be compared; 19 of them, so that most passes have such rows."""
    prompts = [[7, 8, 9 + i % 4, 7, 8] for i in range(19)]
    params = SamplingParams(temperature=0, max_tokens=12)
    written, rows = {}, {}
    for filled in (False, True):
        monkeypatch.setattr(runner, "prepares", lambda *_, filled=filled: filled)
        llm = make_llm(models.target, drafter, max_num_seqs=19)
        results = llm.generate(prompts, params)
        written[filled] = [result.outputs[0].token_ids for result in results]
        rows[filled] = llm.engine.runner._sizes
        assert llm.engine.policy.cost.filled_up(19) == (20 if filled else 19)  # reckoned with
        llm.engine.kv.check()
    assert written[True] == written[False]
    assert 19 in rows[False] and all(filled_up(n) == n for n in rows[True])


def test_blocks_of_reproducible_mode_are_reckoned_with(models: Models) -> None:
    llm = make_llm(models.target, dtype="bfloat16", reproducible=True)
    block = llm.engine.runner.fixed_rows
    assert block > 1
    sizes = [llm.engine.policy.cost.filled_up(rows) for rows in (1, block, block + 1)]
    assert sizes == [block, block, 2 * block]
