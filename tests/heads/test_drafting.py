"""A trained drafter's logits are those of a fresh one, whatever happened on the way."""

import shutil
from array import array
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from tests.drafters.compared import drafter_of
from tests.engine.helpers import Models, accept_rate, make_llm, random_prompt, run, same_results
from tests.heads.compared import ROWS, make_comparing, mtp_row
from tests.heads.untrained import VARIANTS, Heads

from outrider.core.errors import ConfigError
from outrider.core.params import SamplingParams
from outrider.drafters import feature_drafter
from outrider.drafters import level as level_module
from outrider.drafters.slot_memory import pass_over
from outrider.model.runner import SCRAP
from outrider.model.segment import Segment

# Few tokens are possible, so that heads that have learned nothing are right now and then.
FEW = dict.fromkeys((5, 17, 42), 30.0)

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
        "n": st.integers(1, 2),  # samples that share even the prompt's last slot
        "pauses": st.lists(st.booleans(), max_size=60),
        "meddles": st.lists(st.integers(0, 3), max_size=60),
        "seed": st.integers(0, 99),
    }
)


@pytest.mark.parametrize("kind", list(ROWS))
@settings(
    max_examples=8,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(plan=scenarios)
def test_next_logits_equal_a_fresh_drafters(
    models: Models, heads: Heads, kind: str, plan: dict[str, Any]
) -> None:
    llm = make_comparing(
        kind,
        models.target,
        heads[kind],
        plan["k"],
        draft={"tree": plan["tree"]},
        kv_cache_tokens=plan["slots"],
        max_num_batched_tokens=plan["rows"],
        enable_prefix_caching=plan["prefix"],
    )
    drafter_of(llm).pauses = list(plan["pauses"])
    drafter_of(llm).meddles = list(plan["meddles"])
    options = {
        "max_tokens": 7,
        "ignore_eos": True,
        "temperature": 0.0 if plan["greedy"] else 1.0,
        "logit_bias": FEW,
        "n": plan["n"],
    }
    start = random_prompt(plan["seed"], 1 + plan["shared"])
    asked = [
        (start + random_prompt(i, length), SamplingParams(seed=i, **options))
        for i, length in enumerate(plan["lengths"])
    ]
    run(llm, asked)
    run(llm, asked[::-1])  # from the cache
    assert drafter_of(llm).rows > 0
    assert drafter_of(llm).worst < 1e-4


# Nodes above are computed again: always, or never. Only heads with layers have such a choice.
CASES = [
    *((kind, tree, 10**6) for kind in ROWS for tree in ("chain", [2, 2, 1], "confidence")),
    *(("eagle3", tree, 0) for tree in ([2, 2, 1], "confidence")),
    *((variant, [2, 1, 1], 10**6) for variant in VARIANTS if variant not in ROWS),
]


@pytest.mark.parametrize(("variant", "tree", "again"), CASES)
def test_through_chains_trees_rejections_preemptions_hits_and_pauses(
    models: Models,
    heads: Heads,
    variant: str,
    tree: Any,
    again: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(level_module, "ROW_IN_TOKENS", again)
    kind = VARIANTS[variant][0]
    options = {"kv_cache_tokens": 56, "max_num_batched_tokens": 16}
    llm = make_comparing(kind, models.target, heads[variant], 6, draft={"tree": tree}, **options)
    drafter_of(llm).pauses = [i % 5 == 0 for i in range(60)]
    drafter_of(llm).meddles = [(0, 2, 0, 1, 0, 3)[i % 6] for i in range(60)]
    asked = [
        (
            [*random_prompt(1, 12), 5 + i],
            SamplingParams(seed=i, max_tokens=20, ignore_eos=True, logit_bias=FEW),
        )
        for i in range(4)
    ]
    results = run(llm, asked)
    assert accept_rate(results) > 0.05
    assert llm.engine.scheduler.preemptions > 0
    assert any(result.num_cached_tokens for result in results)
    assert drafter_of(llm).paused > 0
    assert drafter_of(llm).worst < 1e-4
    if tree == "chain":
        same_results(llm, asked, results, run(make_llm(models.target), asked))


# How checkpoints name what `speculators` calls by the names of our untrained head.
STYLES: dict[str, tuple[str, dict[str, str], dict[str, bool]]] = {
    "DeepSeek": (
        "model.layers.2.",
        {
            "input_proj": "eh_proj",
            "token_layernorm": "enorm",
            "hidden_layernorm": "hnorm",
            "final_layernorm": "shared_head.norm",
        },
        {"blind_start": True},
    ),
    "Qwen": (
        "mtp.layers.0.",
        {
            "input_proj": "..fc",
            "token_layernorm": "..pre_fc_norm_embedding",
            "hidden_layernorm": "..pre_fc_norm_hidden",
            "final_layernorm": "..norm",
        },
        {},
    ),
    "MiMo": ("model.mtp_layers.0.", {}, {"embedding_first": False, "blind_start": True}),
}


@pytest.mark.parametrize("style", list(STYLES))
def test_mtp_heads_of_the_targets_own_checkpoint(
    models: Models, heads: Heads, tmp_path: Path, style: str
) -> None:
    prefix, names, flags = STYLES[style]
    folder = Path(shutil.copytree(models.target, tmp_path / "with"))
    tensors = load_file(folder / "model.safetensors")
    for name, tensor in load_file(Path(heads["mtp"]) / "model.safetensors").items():
        part, _, last = name.removeprefix("mtp_layers.0.").rpartition(".")
        full = f"{prefix}{names.get(part, part)}.{last}".replace("layers.0...", "")
        tensors[full] = tensor
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})

    def row(_: str, __: str, tokens: list[int], path: list[int]) -> Any:
        return mtp_row(models.target, heads["mtp"], tokens, path, **flags)

    options = {"model": None, "tree": [2, 1, 1]}
    llm = make_comparing("mtp", str(folder), None, 4, row, draft=options)
    few = SamplingParams(seed=1, max_tokens=12, ignore_eos=True, logit_bias=FEW)
    assert accept_rate(run(llm, [(random_prompt(1, 12), few)])) > 0.05
    assert drafter_of(llm).worst < 1e-4


def test_a_target_without_mtp_heads_says_so(models: Models) -> None:
    with pytest.raises(ConfigError, match="carries no MTP head"):
        make_llm(models.target, "mtp")


@pytest.mark.parametrize("dtype", [None, "float32"])
@pytest.mark.parametrize("kind", list(ROWS))
def test_another_precision_than_the_targets(
    models: Models, heads: Heads, kind: str, dtype: str | None
) -> None:
    """Low precision throughout, and a drafter that is more precise than its target; in
    reproducible mode bits do not depend on it."""
    options = {"dtype": "bfloat16", "reproducible": True}
    config = {"model": heads[kind], "num_speculative_tokens": 3, "dtype": dtype}
    params = SamplingParams(seed=1, max_tokens=9, ignore_eos=True, logit_bias=FEW)
    asked = [(random_prompt(i, 6), params) for i in range(2)]
    plain = run(make_llm(models.target, **options), asked)
    results = run(make_llm(models.target, config, **options), asked)
    assert sum(result.speculation.accepted for result in results) > 0
    assert [r.outputs[0].token_ids for r in results] == [r.outputs[0].token_ids for r in plain]


def test_the_confidence_head_says_how_sure_a_chain_is(models: Models, heads: Heads) -> None:
    llm = make_llm(models.target, {"model": heads["dspark"], "num_speculative_tokens": 4})
    drafter: Any = llm.engine.drafter
    said: list[float] = []
    level, trees = drafter._level, []
    propose = drafter.propose

    def watched(guess: Any, states: Any, before: Any) -> Any:
        said.append(float(drafter.head.confidence(states, before)[0]))
        return level(guess, states, before)

    drafter._level = watched
    drafter.propose = lambda *given: trees.append(propose(*given)) or trees[-1]
    run(llm, [(random_prompt(1, 5), SamplingParams(seed=1, max_tokens=9, ignore_eos=True))])
    confidence = [x for (tree,) in trees for x in tree.confidence]
    assert len(confidence) > 10 and confidence == pytest.approx(said)


@pytest.mark.parametrize("tree", ["chain", "confidence"])
def test_rows_of_nobody_change_no_guess(
    models: Models, heads: Heads, tree: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which fill up a drafter's products on a CPU in bfloat16; here in float32, to compare."""
    asked = [
        (random_prompt(i, 5 + i), SamplingParams(temperature=0, max_tokens=10, logit_bias=FEW))
        for i in range(6)
    ]
    proposed: dict[bool, list[list[int]]] = {}
    for filled in (False, True):
        monkeypatch.setattr(feature_drafter, "prepares", lambda *_, filled=filled: filled)
        config = {"model": heads["eagle3"], "num_speculative_tokens": 5, "tree": tree}
        llm = make_llm(models.target, config)
        drafter = drafter_of(llm)
        propose, trees = drafter.propose, proposed.setdefault(filled, [])

        def noting(batch: Any, budgets: Any, propose: Any = propose, trees: Any = trees) -> Any:
            made = propose(batch, budgets)
            trees += [tree.tokens for tree in made]
            return made

        monkeypatch.setattr(drafter, "propose", noting)
        run(llm, asked)
        assert bool(drafter.prepared) is filled
    assert proposed[True] == proposed[False] and any(proposed[True])


def test_rows_of_nobody_write_nobodys_slot() -> None:
    segment = Segment.chain([5, 6], array("q", [8, 9]), array("q", [7]), logits_from=0)
    step = pass_over([segment], torch.device("cpu"), beyond=3)
    assert step.write_slots.tolist() == [8, 9, SCRAP, SCRAP, SCRAP]
