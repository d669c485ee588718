"""Several drafters as one: who they are, and what they propose together at a fixed length."""

from typing import Any

import pytest
from tests.engine.helpers import Models, make_llm, mixed_requests, registered, run, same_results

from outrider.core.errors import ConfigError
from outrider.core.params import SamplingParams
from outrider.core.request import Request
from outrider.core.tree import TokenTree
from outrider.core.verdict import Verdict
from outrider.drafters.lookup import LookupDrafter
from outrider.engine.llm import LLM


class First(LookupDrafter):
    name = "first"

    def lookup(self, request: Request, ahead: list[int], budget: int) -> TokenTree:
        return TokenTree([5, 6, 7], [-1, 0, 1], self.name, confidence=[0.9, 0.5, 0.1])


class Second(LookupDrafter):
    name = "second"

    def lookup(self, request: Request, ahead: list[int], budget: int) -> TokenTree:
        return TokenTree([5, 8], [-1, 0], self.name, confidence=[0.8, 0.75])


class Noting(LookupDrafter):
    """Proposes where `every` divides the position, and notes what it hears of that."""

    every: int

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.heard: list[tuple[int, list[int], str, int]] = []

    def lookup(self, request: Request, ahead: list[int], budget: int) -> TokenTree:
        return TokenTree.chain([self.every] * (request.position % self.every == 0), self.name)

    def review(self, batch: list[Request], trees: list[TokenTree], verdicts: list[Verdict]) -> None:
        for request, tree, verdict in zip(batch, trees, verdicts, strict=True):
            self.heard.append((request.position, tree.tokens, tree.source, verdict.next_token))


class Two(Noting):
    name, every = "two", 2


class Three(Noting):
    name, every = "three", 3


def members(llm: LLM) -> list[str]:
    return [member.name for member in llm.engine.drafter.members]


def test_the_lookups_by_default_and_a_draft_model_where_one_is_named(models: Models) -> None:
    assert members(make_llm(models.target, "auto")) == ["suffix", "documents"]
    named = make_llm(models.target, {"method": "auto", "model": models.noisy})
    assert members(named) == ["suffix", "documents", "draft_model"]
    assert named.engine.drafter.bytes_per_slot > 0
    chosen = make_llm(models.target, {"method": "auto", "drafters": ["ngram", "lookahead"]})
    assert members(chosen) == ["ngram", "lookahead"]


@pytest.mark.parametrize("drafters", [[], "ngram", ["auto"], ["ngram", "ngram"], ["ngrm"]])
def test_members_that_cannot_be_are_refused(models: Models, drafters: object) -> None:
    with pytest.raises(ConfigError):
        make_llm(models.target, {"method": "auto", "drafters": drafters})


def test_at_a_fixed_length_the_likeliest_nodes_of_the_union_are_proposed(models: Models) -> None:
    with registered(First, Second):
        llm = make_llm(models.target, {"method": "auto", "drafters": ["first", "second"]})
    request = Request("r", [1, 2], SamplingParams(), seed=0)
    (tree,) = llm.engine.drafter.propose([request], [3])
    assert (tree.tokens, tree.parents) == ([5, 6, 8], [-1, 0, 0])  # 0.9, 0.45, 0.6; 7 has 0.045
    (tree,) = llm.engine.drafter.propose([request], [2])
    assert tree.tokens == [5, 8]


@pytest.mark.parametrize("length", [None, 2])
def test_members_hear_what_the_target_said_to_their_own_trees(
    models: Models, length: int | None
) -> None:
    config = {"method": "auto", "drafters": ["two", "three"], "num_speculative_tokens": length}
    with registered(Two, Three):
        llm = make_llm(models.target, config)
    llm.engine.policy.draft_always()
    params = SamplingParams(temperature=0.0, max_tokens=14, ignore_eos=True, logit_bias={9: 100.0})
    run(llm, [([1, 2], params)])  # writes nothing but 9
    two, three = llm.engine.drafter.members
    # At 6 and 12 the two are merged; the first token is the prompt's and the last is not drafted.
    assert two.heard == [(at, [2], "two", 9) for at in (2, 4, 8, 10)]
    assert three.heard == [(at, [3], "three", 9) for at in (3, 9)]


@pytest.mark.parametrize("length", [None, 4])
def test_the_text_is_the_targets_own(models: Models, length: int | None) -> None:
    asked = mixed_requests(12)
    config = {"method": "auto", "model": models.noisy, "num_speculative_tokens": length}
    llm = make_llm(models.target, config)
    llm.engine.policy.draft_always()
    results = run(llm, asked)
    assert sum(result.speculation.accepted for result in results) > 0
    same_results(llm, asked, results, run(make_llm(models.target), asked))
