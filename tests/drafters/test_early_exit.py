"""The target drafts for itself: from its own memory, without a trace in it."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.engine.helpers import (
    Models,
    accept_rate,
    fed_back,
    make_llm,
    mixed_requests,
    random_prompt,
    registered,
    run,
    same_results,
)
from tests.tiny import make_tiny, make_tokenizer
from torch import Tensor
from transformers import AutoModelForCausalLM

from outrider.core.errors import ConfigError
from outrider.core.params import SamplingParams
from outrider.core.request import Request
from outrider.drafters import early_exit
from outrider.drafters.early_exit import EarlyExitDrafter
from outrider.drafters.layer_search import PATIENCE, LayerSearch
from outrider.engine.llm import LLM
from outrider.model.flight import Flight


def make_self_drafting(target: str, length: int = 3, engine: Any = None, **config: Any) -> LLM:
    given = {"method": "early_exit", "num_speculative_tokens": length, **config}
    return make_llm(target, given, **(engine or {}))


def asked_for(count: int, tokens: int, length: int = 6, **options: Any) -> list[Any]:
    options = {"ignore_eos": True, "max_tokens": tokens, **options}
    return [(random_prompt(i, length), SamplingParams(seed=i, **options)) for i in range(count)]


# ---- all layers: the draft is the target ----


@pytest.mark.parametrize("verification", ["coupled", "traversal"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("layers", [{"exit_layer": 2}, {"skip_layers": []}])
def test_a_draft_with_all_layers_is_accepted_in_full(
    models: Models, layers: Any, temperature: float, verification: str
) -> None:
    llm = make_self_drafting(models.target, 3, **layers, verification=verification)
    for result in run(llm, asked_for(3, 1 + 4 * 4, temperature=temperature)):
        assert result.outputs[0].from_draft == [False] + [True, True, True, False] * 4


def test_in_reproducible_mode_as_well(models: Models) -> None:
    llm = make_self_drafting(models.target, 3, {"reproducible": True}, exit_layer=2)
    for result in run(llm, asked_for(2, 1 + 4 * 4)):
        assert result.outputs[0].from_draft == [False] + [True, True, True, False] * 4


# ---- fewer layers: wrong at times, and the text does not show it ----


@pytest.mark.parametrize("reproducible", [False, True])
def test_the_text_is_the_targets_own(models: Models, reproducible: bool) -> None:
    engine = {"reproducible": reproducible}
    asked = mixed_requests(20)
    llm = make_self_drafting(models.target, 3, engine, exit_layer=1)
    results = run(llm, asked)
    assert 0.05 < accept_rate(results) < 0.9
    plain = make_llm(models.target, "none", **engine)
    same_results(llm, asked, results, run(plain, asked))
    same_results(llm, asked[:3], [run(llm, [ask])[0] for ask in asked[:3]], run(plain, asked[:3]))


class Compared(EarlyExitDrafter):
    """Holds every row against a model that has only the first layer. What follows a text of the
    whole model's must be the same: the first layer's KV is that of the text alone."""

    name = "compared_exit"
    shallow = ""

    def __init__(self, config: Any, target: Any) -> None:
        super().__init__(config, target)
        self.rows, self.worst = 0, 0.0

    def _extend(self, drafts: list[Any], logits: Tensor) -> None:
        for draft, row in zip(drafts, logits, strict=True):
            fresh = fed_back(
                self.shallow, [*draft.request.tokens, *draft.path_tokens(draft.frontier[0])]
            )[-1]
            self.worst = max(self.worst, float((fresh - row).abs().max()))
            self.rows += 1
        super()._extend(drafts, logits)


@pytest.fixture(scope="module")
def shallow(models: Models, tmp_path_factory: pytest.TempPathFactory) -> str:
    model = AutoModelForCausalLM.from_pretrained(models.target, dtype=torch.float32)
    model.model.layers = model.model.layers[:1]
    model.config.num_hidden_layers = 1
    if getattr(model.config, "layer_types", None):
        model.config.layer_types = model.config.layer_types[:1]
    folder = tmp_path_factory.mktemp("shallow")
    model.save_pretrained(folder)
    return str(folder)


def test_rows_equal_a_fresh_shallow_models_whatever_happened(models: Models, shallow: str) -> None:
    """Rejections, preemption and prefix hits; the slots are checked whenever the engine rests."""
    Compared.shallow = shallow
    config = {"method": "compared_exit", "exit_layer": 1, "num_speculative_tokens": 3}
    with registered(Compared):
        llm = make_llm(models.target, config, kv_cache_tokens=64, max_num_batched_tokens=16)
    params = {"max_tokens": 20, "ignore_eos": True}
    asked = [([*random_prompt(1, 12), 5 + i], SamplingParams(seed=i, **params)) for i in range(4)]
    results = run(llm, asked)
    drafter: Any = llm.engine.drafter
    assert llm.engine.scheduler.preemptions > 0
    assert any(result.num_cached_tokens for result in results)
    assert 0.02 < accept_rate(results) < 0.9
    assert drafter.rows > 40
    assert drafter.worst < 1e-4


def test_confidence_is_the_drafts_own_probability(models: Models, shallow: str) -> None:
    llm = make_self_drafting(models.target, 1, exit_layer=1)
    drafter: Any = llm.engine.drafter
    request = Request("r", random_prompt(2, 9), SamplingParams(temperature=0.0), seed=0)
    llm.engine.kv.reserve(request, len(request.tokens) + 1)
    (tree,) = drafter.propose([request], [1])
    llm.engine.kv.commit(request, [])
    p = fed_back(shallow, request.tokens)[-1].softmax(-1)
    assert tree.tokens == [int(p.argmax())]
    assert tree.confidence == pytest.approx([float(p.max())], rel=1e-3)


# ---- the search ----


def test_a_search_starts_evenly_between_the_first_layer_and_the_last() -> None:
    assert sorted(LayerSearch(20).best) == [2, 4, 6, 8, 10, 12, 14, 16, 18]
    assert sorted(LayerSearch(3).best) == [1]
    assert LayerSearch(3).done and LayerSearch(2).done and LayerSearch(1).done
    assert not LayerSearch(2).best and not LayerSearch(1).best


def test_a_search_finds_the_layers_that_matter_least() -> None:
    weights = [(7 * layer) % 20 for layer in range(20)]

    def likelihoods(skip: frozenset[int]) -> list[float]:
        lost = sum(weights[layer] for layer in skip)
        return [-lost * (0.9 + 0.2 * (i % 2)) for i in range(8)]

    search = LayerSearch(20)
    wanted = sorted(range(1, 19), key=lambda layer: weights[layer])[: len(search.best)]
    for _ in range(2000):
        if search.done:
            break
        search.judge(likelihoods(search.best), likelihoods(search.candidate))
        assert len(search.candidate) == len(search.best) == 9
        assert not search.candidate & {0, 19}
    assert search.done
    lost = sum(weights[layer] for layer in search.best)
    assert lost <= sum(weights[layer] for layer in wanted) + 6


def test_a_search_gives_up_where_nothing_is_surely_better() -> None:
    search = LayerSearch(20)
    start = search.best
    for _ in range(PATIENCE):  # better by less than its spread, then no better at all
        assert not search.done
        search.judge([0.0] * 4, [1.0, -1.0, 1.0, -0.9])
        search.judge([0.0] * 4, [0.0] * 4)
    assert search.done
    assert search.best == start


def test_a_search_ends_when_drafts_hold() -> None:
    search = LayerSearch(20)
    search.watch(60, 70)
    assert not search.done
    search.watch(300, 300)
    assert search.done


WEAK = {1, 2, 5, 6}  # layers of the toy that hardly do anything


@pytest.fixture(scope="module")
def lopsided(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Eight layers, half of which add next to nothing."""
    folder = make_tiny("llama", Path(tmp_path_factory.mktemp("deep")), seed=3, num_hidden_layers=8)
    make_tokenizer(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    for layer in WEAK:
        model.model.layers[layer].self_attn.o_proj.weight.data *= 0.01
        model.model.layers[layer].mlp.down_proj.weight.data *= 0.01
    model.save_pretrained(folder)
    return str(folder)


def test_the_search_finds_weak_layers_while_it_writes(
    lopsided: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(early_exit, "SEARCH_EVERY", 8)
    llm = make_self_drafting(lopsided, 3)
    drafter: Any = llm.engine.drafter
    start = drafter.skip
    assert start != WEAK and len(start) == 4
    asked = asked_for(2, 90)
    first = run(llm, asked)
    assert drafter.skip == WEAK
    same_results(llm, asked, first, run(make_llm(lopsided, "none"), asked))
    second = run(llm, asked)
    assert accept_rate(second) > 0.9 > accept_rate(first)
    drafter.reset()
    assert drafter.skip == start


def test_the_search_costs_two_small_passes_now_and_then(
    lopsided: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(early_exit, "SEARCH_EVERY", 16)
    llm = make_self_drafting(lopsided, 3)
    rows = _rows_of_passes(llm)
    run(llm, asked_for(1, 66))
    compared = [count for count in rows if count == early_exit.SEARCH_TOKENS]
    assert 4 <= len(compared) <= 2 * 66 / early_exit.SEARCH_EVERY
    assert max(rows) == early_exit.SEARCH_TOKENS
    fixed = make_self_drafting(lopsided, 3, skip_layers=sorted(WEAK))
    rows = _rows_of_passes(fixed)
    run(fixed, asked_for(1, 36))
    assert max(rows) <= 6


def _rows_of_passes(llm: LLM) -> list[int]:
    rows: list[int] = []
    runner = llm.engine.runner
    forward, launch = runner.forward, runner.launch  # of the drafter, of the engine

    def counted(segments: list[Any], *skip: Any) -> Tensor:
        rows.append(sum(len(segment) for segment in segments))
        return forward(segments, *skip)

    def counted_too(segments: list[Any]) -> Flight:
        rows.append(sum(len(segment) for segment in segments))
        return launch(segments)

    runner.forward, runner.launch = counted, counted_too  # type: ignore[method-assign]
    return rows


def test_the_search_waits_for_memory_that_nobody_needs(lopsided: str) -> None:
    llm = make_self_drafting(lopsided, 3, {"kv_cache_tokens": 64})
    kv, drafter = llm.engine.kv, llm.engine.drafter
    assert isinstance(drafter, EarlyExitDrafter) and drafter._search is not None
    run(llm, asked_for(1, 20, length=24))  # most of the pool is a cached text now
    free = kv.available
    assert 0 < free < early_exit.SEARCH_TOKENS
    request = Request("r", [1] * 40, SamplingParams(), 0, output_ids=[9] * 40)
    assert not drafter._compare(request, drafter._search)
    assert kv.available == free


def test_a_comparison_leaves_the_text_alone(lopsided: str) -> None:
    llm = make_self_drafting(lopsided, 3)
    engine, drafter = llm.engine, llm.engine.drafter
    assert isinstance(drafter, EarlyExitDrafter) and drafter._search is not None
    ((prompt, params),) = asked_for(1, 60)
    engine.add(prompt, params)
    request = engine.scheduler.waiting[0].request
    while len(request.output_ids) < early_exit.SEARCH_TOKENS + 2:
        engine.step()
    slots = torch.tensor(request.slots)
    keys = [layer.module.outrider_kv.keys for layer in engine.runner.layers]  # type: ignore
    before = [key[slots] for key in keys]  # each [text, kv heads, head size]
    free = engine.kv.available
    drafter._search._ahead = 1e-6
    assert drafter._compare(request, drafter._search)
    assert drafter._search._ahead != 1e-6  # it did compare
    assert all(torch.equal(key[slots], was) for key, was in zip(keys, before, strict=True))
    assert engine.kv.available == free
    engine.kv.check()


# ---- options ----


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"exit_layer": 1, "skip_layers": [1]}, "either exit_layer or skip_layers, not both"),
        ({"exit_layer": 1, "skip_layers": "search"}, "not both"),
        ({"exit_layer": 0}, "exit_layer=0 must be a whole number from 1 to 2"),
        ({"exit_layer": 3}, "exit_layer=3 must be a whole number from 1 to 2"),
        ({"exit_layer": True}, "exit_layer=True"),
        ({"exit_layer": "1"}, "exit_layer='1'"),
        ({"skip_layers": [2]}, "each from 0 to 1"),
        ({"skip_layers": [-1]}, r"skip_layers=\[-1\]"),
        ({"skip_layers": [True]}, r"skip_layers=\[True\]"),
        ({"skip_layers": "none"}, "must be 'search' or a list"),
        ({"skip_layers": 1}, "must be 'search' or a list"),
        ({"skip_layers": [0, 1]}, "leaves no layer"),
    ],
)
def test_layers_that_make_no_sense_are_refused(models: Models, options: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_self_drafting(models.target, **options)
