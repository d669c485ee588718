"""The engine with all that the host prepares for a GPU, and a device that knows nothing else."""

import random
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from tests.engine.helpers import (
    Ask,
    Models,
    make_llm,
    mixed_requests,
    random_prompt,
    run,
    same_results,
)
from tests.engine.packed_graphs import PackedGraphs

from outrider.core.params import SamplingParams
from outrider.engine.llm import LLM


@pytest.fixture(autouse=True)
def no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())


def make_packed(models: Models, drafter: Any, **options: Any) -> tuple[LLM, PackedGraphs]:
    llm = make_llm(models.target, drafter, **options)
    engine = llm.engine
    graphs = PackedGraphs(engine.runner, engine.config.max_num_seqs, engine.max_model_len)
    engine.runner.graphs = graphs
    engine.scheduler.replayed_rows = engine.runner.replayed_rows
    return llm, graphs


@pytest.mark.parametrize("drafter", [None, "auto", "ngram"])
def test_all_kinds_of_requests(models: Models, drafter: str | None) -> None:
    asked = mixed_requests(16)
    llm, _ = make_packed(models, drafter, max_num_seqs=5)
    results = run(llm, asked)
    same_results(llm, asked, results, run(make_llm(models.target), asked))
    llm.engine.kv.check()


@pytest.mark.parametrize("seed", range(4))
def test_requests_come_and_go(models: Models, seed: int) -> None:
    """Prompts shared and cached, several samples of one, aborts, texts read again; in fewer lines
    of the table than there have been texts."""
    rng = random.Random(seed)
    prompts = [random_prompt(seed, 12)] * 3 + [random_prompt(i, 3 + 4 * i) for i in range(4)]
    asked: list[Ask] = []
    for i in range(16):
        options: dict[str, Any] = {
            "temperature": rng.choice([0.0, 0.9]),
            "n": rng.choice([1, 1, 2]),
        }
        length = rng.randint(2, 20)
        params = SamplingParams(seed=i, max_tokens=length, ignore_eos=rng.random() < 0.5, **options)
        asked.append((rng.choice(prompts), params))
    truth = run(make_llm(models.target), asked)
    drafter = "auto" if seed % 2 else None
    llm, graphs = make_packed(models, drafter, kv_cache_tokens=90, max_num_seqs=8)
    engine, waiting = llm.engine, list(enumerate(asked))
    done: dict[tuple[str, int], list[int]] = {}
    aborted: set[str] = set()
    while waiting or not engine.idle:
        for _ in range(rng.randint(0, 2)):
            if waiting:
                i, (prompt, params) = waiting.pop(0)
                engine.add(prompt, params, str(i), streamed=rng.random() < 0.5)
        if rng.random() < 0.03 and engine.jobs:
            aborted.add(victim := rng.choice(list(engine.jobs)))
            engine.abort(victim)
        for delta in engine.step():
            done.setdefault((delta.request_id, delta.index), []).extend(delta.token_ids)
    assert graphs.went_on > 4 or drafter
    for i, result in enumerate(truth):
        for output in result.outputs:
            got = done.get((str(i), output.index), [])
            assert got == output.token_ids[: len(got)]
            assert str(i) in aborted or len(got) == len(output.token_ids)
    engine.kv.check()
