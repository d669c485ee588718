"""The draft model's memory stays in step with the text, whatever happened on the way."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.drafters.compared import drafter_of, make_compared
from tests.engine.helpers import (
    Models,
    accept_rate,
    make_llm,
    random_prompt,
    run,
    same_results,
)
from tests.tiny import VOCAB, make_tiny, make_tokenizer
from torch import Tensor

from outrider.core.errors import ConfigError
from outrider.core.params import SamplingParams
from outrider.drafters import level as level_module

scenarios = st.fixed_dictionaries(
    {
        "lengths": st.lists(st.integers(1, 24), min_size=2, max_size=4),
        "shared": st.integers(0, 12),  # tokens that all prompts start with: prefix hits
        "slots": st.sampled_from([48, 64, 400]),
        "rows": st.sampled_from([4, 9, 64]),
        "k": st.integers(1, 8),
        "tree": st.sampled_from(["chain", [3, 2, 1], "optimal", "confidence"]),
        "greedy": st.booleans(),
        "prefix": st.booleans(),
        "pauses": st.lists(st.booleans(), max_size=60),
        "meddles": st.lists(st.integers(0, 3), max_size=60),
        "seed": st.integers(0, 99),
    }
)


@settings(
    max_examples=20,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(scenarios)
def test_next_logits_equal_a_fresh_models(models: Models, plan: dict[str, Any]) -> None:
    llm = make_compared(
        models,
        plan["k"],
        {"tree": plan["tree"]},
        kv_cache_tokens=plan["slots"],
        max_num_batched_tokens=plan["rows"],
        enable_prefix_caching=plan["prefix"],
    )
    drafter_of(llm).pauses = list(plan["pauses"])
    drafter_of(llm).meddles = list(plan["meddles"])
    options = {"max_tokens": 7, "ignore_eos": True, "temperature": 0.0 if plan["greedy"] else 1.0}
    start = random_prompt(plan["seed"], 1 + plan["shared"])
    asked = [
        (start + random_prompt(i, length), SamplingParams(seed=i, **options))
        for i, length in enumerate(plan["lengths"])
    ]
    run(llm, asked)
    run(llm, asked[::-1])  # from the cache
    assert drafter_of(llm).rows > 0
    assert drafter_of(llm).worst < 1e-4


@pytest.mark.parametrize("again", [0, 10**6])  # nodes above are computed again: always, or never
@pytest.mark.parametrize("tree", ["chain", [2, 2, 1], "confidence"])
def test_the_property_covers_rejections_preemptions_hits_pauses_and_meddling(
    models: Models, tree: Any, again: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(level_module, "ROW_IN_TOKENS", again)
    llm = make_compared(models, 6, {"tree": tree}, kv_cache_tokens=60, max_num_batched_tokens=16)
    drafter_of(llm).pauses = [i % 5 == 0 for i in range(60)]
    drafter_of(llm).meddles = [(0, 2, 0, 1, 0, 3)[i % 6] for i in range(60)]
    asked = [
        ([*random_prompt(1, 12), 5 + i], SamplingParams(seed=i, max_tokens=20, ignore_eos=True))
        for i in range(4)
    ]
    results = run(llm, asked)
    assert 0.05 < accept_rate(results) < 0.9
    assert llm.engine.scheduler.preemptions > 0
    assert any(result.num_cached_tokens for result in results)
    assert drafter_of(llm).paused > 0
    assert len(drafter_of(llm).meddles) < 45
    assert drafter_of(llm).worst < 1e-4


def counted_rows(drafter: Any) -> list[int]:
    """Filled with the rows of every pass of the draft model."""
    rows: list[int] = []
    forward = drafter.runner.forward

    def counted(segments: list[Any]) -> Tensor:
        rows.append(sum(len(segment) for segment in segments))
        return forward(segments)

    drafter.runner.forward = counted
    return rows


def test_what_was_computed_once_is_not_computed_again(models: Models) -> None:
    """A step costs the accepted tokens and the draft's own rows, not the text."""
    llm = make_compared(models, 3)
    rows = counted_rows(drafter_of(llm))
    params = SamplingParams(seed=1, max_tokens=30, ignore_eos=True)
    llm.generate(random_prompt(3, 40), params, use_tqdm=False)
    assert rows[0] == 41  # the prompt and the first token, once
    assert max(rows[1:]) <= 2  # the target's own token, and one accepted in full before it


def test_accepted_nodes_of_a_tree_are_not_computed_again(models: Models) -> None:
    llm = make_compared(models, 6, {"tree": [2, 1, 1]})
    drafter = drafter_of(llm)
    read: list[int] = []
    original = drafter._read

    def noted(requests: list[Any]) -> Tensor:
        read.extend(len(r.tokens) - drafter.entries.valid(r) for r in requests)
        return original(requests)

    drafter._read = noted
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    result = llm.generate(random_prompt(3, 20), params, use_tqdm=False)[0]
    assert result.speculation.accepted > 10
    assert max(read[1:]) <= 2


# ---- vocabularies ----


@pytest.fixture(scope="module")
def widths(models: Models, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The target's own weights with less and with more padding behind the real tokens."""
    folders = {}
    for name, width in (("narrow", VOCAB - 16), ("wide", VOCAB + 24)):
        folder = Path(tmp_path_factory.mktemp(name))
        _with_width(models.target, folder, width)
        folders[name] = str(folder)
    return folders


def _with_width(source: str, folder: Path, width: int) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    model.resize_token_embeddings(width, mean_resizing=False)
    model.save_pretrained(folder)
    make_tokenizer(folder)


@pytest.mark.parametrize("verification", ["coupled", "traversal"])
@pytest.mark.parametrize("name", ["narrow", "wide"])
def test_padded_vocabularies_are_handled(
    models: Models, widths: dict[str, str], name: str, verification: str
) -> None:
    config = {"model": widths[name], "num_speculative_tokens": 3, "verification": verification}
    llm = make_llm(models.target, config)
    asked = [
        (random_prompt(i, 6), SamplingParams(seed=i, max_tokens=16, ignore_eos=True))
        for i in range(4)
    ]
    results = run(llm, asked)
    assert accept_rate(results) > 0.5  # the same weights: only padding is in the way
    if verification == "coupled":
        same_results(llm, asked, results, run(make_llm(models.target), asked))


def test_ids_that_the_draft_model_lacks_do_no_harm(models: Models, widths: dict[str, str]) -> None:
    """Padding of the target beyond the draft's: in the prompt, and written by the target."""
    llm = make_llm(models.target, {"model": widths["narrow"], "num_speculative_tokens": 3})
    last = VOCAB - 1
    asked = [
        ([last, 5, last - 3], SamplingParams(seed=1, max_tokens=12, logit_bias={last: 8.0})),
        (random_prompt(2, 6), SamplingParams(seed=2, max_tokens=12, ignore_eos=True)),
    ]
    results = run(llm, asked)
    assert last in results[0].outputs[0].token_ids
    same_results(llm, asked, results, run(make_llm(models.target), asked))


def test_other_widths_without_tokenizers_are_refused(models: Models, tmp_path: Path) -> None:
    other = make_tiny("llama", tmp_path / "other", vocab_size=5, pad_token_id=None)
    with pytest.raises(ConfigError, match=r"has 5 token ids and .* 4"):
        make_llm(models.small, {"model": str(other)})


def test_a_draft_model_must_be_named(models: Models) -> None:
    with pytest.raises(ConfigError, match="needs a 'model'"):
        make_llm(models.target, "draft_model")


def test_drafts_end_where_the_draft_models_context_ends(models: Models, tmp_path: Path) -> None:
    short = make_tiny("llama", tmp_path / "short", seed=3, max_position_embeddings=24)
    make_tokenizer(short)
    llm = make_llm(models.target, {"model": str(short), "num_speculative_tokens": 4})
    asked = [(random_prompt(1, 12), SamplingParams(seed=1, max_tokens=40, ignore_eos=True))]
    results = run(llm, asked)
    output = results[0].outputs[0]
    assert len(output.token_ids) == 40
    assert any(output.from_draft) and not any(output.from_draft[24 - 12 + 1 :])
    same_results(llm, asked, results, run(make_llm(models.target), asked))
