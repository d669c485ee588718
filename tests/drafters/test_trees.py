"""Trees of a draft model: lossless in any shape, and worth their nodes."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.drafters.compared import drafter_of
from tests.engine.helpers import (
    Models,
    accept_rate,
    make_llm,
    mixed_requests,
    random_prompt,
    run,
    same_results,
)
from tests.engine.test_lossless import MANY, OPTIONS, chi_square_excess
from tests.tiny import make_tiny, make_tokenizer

from outrider.core.errors import ConfigError
from outrider.core.params import SamplingParams
from outrider.core.request import Request
from outrider.core.tree import TokenTree
from outrider.core.verdict import Verdict
from outrider.drafters.candidates import Found

TREES: list[Any] = [[3, 2, 1], [[0], [1], [0, 0], [0, 1], [0, 0, 0]], "optimal", "confidence"]


@pytest.mark.parametrize("tree", TREES, ids=str)
def test_text_is_that_of_plain_decoding(models: Models, tree: Any) -> None:
    asked = [
        *mixed_requests(12),
        (random_prompt(9, 7), SamplingParams(temperature=0, max_tokens=12)),
    ]
    llm = make_llm(
        models.target, {"model": models.noisy, "num_speculative_tokens": 7, "tree": tree}
    )
    results = run(llm, asked)
    same_results(llm, asked, results, run(make_llm(models.target), asked))
    assert accept_rate(results) > 0.1


def proposed_with(tree: Any, models: Models, nodes: int, depth: int) -> tuple[Any, TokenTree]:
    """The drafter, and its tree of so many nodes, asked to be no deeper than that."""
    llm = make_llm(models.target, {"model": models.target, "tree": tree})
    drafter = drafter_of(llm)
    request = Request("r", random_prompt(3, 7), SamplingParams(temperature=0.0), seed=0)
    llm.engine.kv.open(request)
    llm.engine.kv.reserve(request, len(request.tokens) + nodes)
    (proposed,) = drafter.propose_to([request], [nodes], depth)
    return drafter, proposed


def test_levels_are_counted_though_the_last_of_them_finds_nothing(
    models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By them it is known what a level takes: one that finds nothing takes as long as others."""
    drafter, proposed = proposed_with("confidence", models, nodes=4, depth=3)
    assert max(proposed.depths) <= drafter.levels <= 3
    find = type(drafter)._find
    calls = []

    def found(self: Any, logits: Any, rows: Any, wanted: Any, lanes: Any) -> Any:
        calls.append(1)
        children = find(self, logits, rows, wanted, lanes)
        return [Found([], [])] * len(rows) if len(calls) > 1 else children

    monkeypatch.setattr(type(drafter), "_find", found)
    drafter, proposed = proposed_with("confidence", models, nodes=4, depth=3)
    assert max(proposed.depths) == 1 and drafter.levels == len(calls) == 2


@pytest.mark.parametrize("tree", ["chain", *TREES[:2]], ids=str)
def test_the_depth_of_a_known_shape_is_known(models: Models, tree: Any) -> None:
    for nodes in (1, 3, 4):
        drafter, proposed = proposed_with(tree, models, nodes, 1)
        assert drafter.depth(nodes) == max(proposed.depths)
        assert not drafter.outlines(nodes)
    assert drafter.depth(0) == 0


@pytest.mark.parametrize("tree", ["optimal", "confidence"])
def test_a_shape_that_is_not_given_is_no_deeper_than_it_is_asked_to_be(
    models: Models, tree: str
) -> None:
    for depth in (1, 2, 4):
        drafter, proposed = proposed_with(tree, models, 8, depth)
        deepest = max(proposed.depths)
        assert deepest <= depth  # this model is so unsure that confidence goes nowhere deep
        assert tree == "confidence" or deepest == depth
        assert len(proposed) > depth
    assert [max(shape.depths) for shape in drafter.outlines(16)[:4]] == [1, 2, 3, 4]
    request = Request("r", [1, 2], SamplingParams(), seed=0)
    for _ in range(400):  # nothing is ever accepted: then only the first levels can be
        drafter.review([request], [proposed], [Verdict([], 0)])
    assert max(drafter.outlines(16)[-1].depths) < 3


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_target_as_its_own_drafter_is_followed_to_the_leaves(
    models: Models, temperature: float
) -> None:
    config = {"model": models.target, "num_speculative_tokens": 14, "tree": [2, 2, 2]}
    params = SamplingParams(temperature=temperature, seed=5, max_tokens=21, ignore_eos=True)
    output = run(make_llm(models.target, config), [(random_prompt(2, 9), params)])[0].outputs[0]
    assert output.from_draft == [i % 4 != 0 for i in range(20)] + [False]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_second_guesses_are_worth_something(models: Models, temperature: float) -> None:
    """More of a branching tree is accepted than of a chain that is as deep."""
    asked = [
        (
            random_prompt(i, 9),
            SamplingParams(temperature=temperature, seed=i, max_tokens=24, ignore_eos=True),
        )
        for i in range(6)
    ]
    lengths = []
    for tree in ([1, 1, 1], [3, 2, 1], "confidence"):
        config = {"model": models.noisy, "num_speculative_tokens": 15, "tree": tree}
        results = run(make_llm(models.target, config), asked)
        steps = sum(result.speculation.steps for result in results)
        lengths.append(sum(result.speculation.accepted for result in results) / steps)
    assert lengths[1] > lengths[0] + 0.1
    assert lengths[2] > lengths[0]


def test_a_shape_is_learned_from_what_is_accepted(models: Models, tmp_path: Path) -> None:
    """The tree of a drafter that is always right goes as deep as it may; a bad one's is bushy."""
    config = {"num_speculative_tokens": 5, "tree": "optimal", "depth": 4}
    params = SamplingParams(seed=3, max_tokens=70, ignore_eos=True)
    other = make_tiny("llama", tmp_path / "other", seed=99)
    make_tokenizer(other)
    shapes = {}
    for name, model in (("target", models.target), ("other", str(other))):
        llm = make_llm(models.target, {**config, "model": model})
        drafter = drafter_of(llm)
        drafter.pass_seconds = None  # only acceptance decides
        before = drafter.measured.shape(5, 4, None)
        run(llm, [(random_prompt(i, 6), params) for i in range(3)])
        shapes[name] = drafter.measured.shape(5, 4, None)
        drafter.reset()
        assert drafter.measured.shape(5, 4, None) == before
    assert max(shapes["target"].depths) == 4
    assert max(shapes["other"].depths) < 4


def test_the_cost_of_passes_shrinks_the_shape(models: Models) -> None:
    config = {"model": models.noisy, "num_speculative_tokens": 6, "tree": "optimal"}
    ask = (random_prompt(1, 6), SamplingParams(seed=1, max_tokens=12, ignore_eos=True))
    sizes = []
    for cost in (lambda rows: 1.0, lambda rows: 1.0 * rows):
        llm = make_llm(models.target, config)
        drafter_of(llm).pass_seconds = cost
        result = run(llm, [ask])[0]
        sizes.append(result.speculation.drafted / result.speculation.steps)
    assert sizes[1] < sizes[0]


# ---- trees under traversal ----


@pytest.mark.parametrize("tree", [[2, 2, 1], "optimal"], ids=str)
def test_drawn_trees_have_the_targets_distribution(models: Models, tree: Any) -> None:
    """Against exact enumeration; false alarm 1e-6 with all tests that use this function."""
    config = {"model": models.small_noisy, "verification": "traversal", "tree": tree}
    config["num_speculative_tokens"] = 5
    assert chi_square_excess(models.small, config, {}, 960) < 1


@pytest.mark.slow
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("tree", [[2, 2, 1], "optimal"], ids=str)
def test_drawn_trees_have_exactly_the_targets_distribution(
    models: Models, tree: Any, options: str
) -> None:
    config = {"model": models.small_noisy, "verification": "traversal", "tree": tree}
    config["num_speculative_tokens"] = 5
    assert chi_square_excess(models.small, config, OPTIONS[options], MANY // 2) < 1


def test_drawn_siblings_share_a_row_of_q_and_differ(models: Models) -> None:
    config = {"model": models.noisy, "verification": "traversal", "tree": [3, 2]}
    llm = make_llm(models.target, {**config, "num_speculative_tokens": 9})
    drafter = drafter_of(llm)
    seen: list[TokenTree] = []
    propose = drafter.propose
    drafter.propose = lambda *args: (seen.extend(propose(*args)), seen[-len(args[0]) :])[1]
    asked = [
        (random_prompt(1, 6), SamplingParams(seed=1, max_tokens=12, ignore_eos=True)),
        (random_prompt(2, 6), SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)),
        (random_prompt(3, 6), SamplingParams(seed=2, top_k=2, max_tokens=12, ignore_eos=True)),
    ]
    run(llm, asked)
    drawn = [tree for tree in seen if tree.q is not None]
    assert 0 < len(drawn) < len(seen)  # nobody draws at temperature 0
    for tree in drawn:
        assert not tree.with_replacement
        for siblings in tree.children.values():
            assert len({tree.tokens[node] for node in siblings}) == len(siblings)
            assert all(torch.equal(tree.q[node], tree.q[siblings[0]]) for node in siblings)
        assert tree.q.sum(-1).tolist() == pytest.approx([1.0] * len(tree))
        assert all(tree.q[node, token] > 0 for node, token in enumerate(tree.tokens))
    assert any(len(tree.children[-1]) == 2 for tree in drawn)  # top_k left no third token


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tree": "confidence", "verification": "traversal"}, "would bias the text"),
        ({"tree": "bushy"}, "tree='bushy' must be a list"),
        ({"tree": [2], "depth": 3}, "depth=3 belongs to tree='optimal' or 'confidence'"),
        ({"tree": "optimal", "depth": 0}, "depth=0 must be a whole number of at least 1"),
        ({"tree": "optimal", "depth": True}, "depth=True must be a whole number"),
    ],
)
def test_trees_that_make_no_sense_are_refused(models: Models, options: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_llm(models.target, {"model": models.noisy, **options})
