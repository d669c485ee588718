"""Hidden states of the target, by slot: those of the slot's text, whatever happened on the way."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.engine.helpers import Models, Trees, make_llm, random_prompt, reference, registered, run
from tests.tiny import make_tiny
from torch import Tensor

from outrider.core.errors import ConfigError
from outrider.core.params import SamplingParams
from outrider.core.request import Request
from outrider.core.tree import TokenTree
from outrider.engine.llm import LLM


class Watching(Trees):
    """Holds what it is given against transformers' own hidden states, before every draft."""

    name = "watching"
    options = {"model": None}  # noqa: RUF012
    needs_hidden = (1, "final", 0)

    def __init__(self, config: Any, target: Any) -> None:
        super().__init__(config, target)
        self.worst, self.rows = 0.0, 0

    def project(self, states: Tensor) -> Tensor:
        return states * 2

    def propose(self, batch: list[Request], budgets: list[int]) -> list[TokenTree]:
        for request in batch:
            got = self.features.at(request.slots)
            expected = 2 * hidden_states(self.option("model"), request.tokens[:-1])
            self.worst = max(self.worst, float((got - expected).abs().max()))
            self.rows += len(got)
        return super().propose(batch, budgets)


@torch.inference_mode()
def hidden_states(folder: str, tokens: list[int]) -> Tensor:
    """[tokens, 3 * hidden size], in the order that `Watching` asks for."""
    ids = torch.tensor([tokens])
    states = reference(folder)(ids, use_cache=False, output_hidden_states=True).hidden_states
    return torch.cat([states[1][0], states[-1][0], states[0][0]], -1)


def watching(model: str, **options: Any) -> LLM:
    config = {"method": "watching", "model": model, "num_speculative_tokens": 5}
    with registered(Watching):
        return make_llm(model, config, **options)


def texts(llm: LLM, count: int = 4) -> Any:
    asked = [
        ([*random_prompt(1, 12), 5 + i], SamplingParams(seed=i, max_tokens=20, ignore_eos=True))
        for i in range(count)
    ]
    Trees.learn(asked, run(make_llm(llm.model_name), asked))
    return run(llm, asked)


@pytest.mark.parametrize("reproducible", [False, True])
def test_states_are_those_of_the_slots_text(models: Models, reproducible: bool) -> None:
    llm = watching(
        models.target, kv_cache_tokens=50, max_num_batched_tokens=16, reproducible=reproducible
    )
    results = texts(llm)
    drafter: Any = llm.engine.drafter
    assert llm.engine.scheduler.preemptions > 0
    assert any(result.num_cached_tokens for result in results)
    assert sum(r.speculation.accepted for r in results) > 0
    assert drafter.rows > 400
    assert drafter.worst < 1e-3  # of about 10


@pytest.mark.parametrize("family", ["gpt2", "gemma2", "opt", "qwen3_moe"])
def test_other_families_show_theirs(family: str, tmp_path: Path) -> None:
    folder = str(make_tiny(family, tmp_path))
    llm = watching(folder)
    texts(llm, 2)
    drafter: Any = llm.engine.drafter
    assert drafter.rows > 50
    assert drafter.worst < 1e-3


def test_their_memory_is_counted(models: Models) -> None:
    plain, with_states = make_llm(models.target), watching(models.target)
    assert with_states.engine.runner.bytes_per_slot == plain.engine.runner.bytes_per_slot + 3 * 128


def test_a_layer_that_the_target_lacks_is_refused(models: Models) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Watching, "needs_hidden", (2,))
        with pytest.raises(ConfigError, match=r"layer 2 .* has only 2 layers"):
            watching(models.target)
