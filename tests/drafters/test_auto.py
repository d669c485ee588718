"""Several drafters as one: who they are, and what they propose together at a fixed length."""

import pytest
from tests.engine.helpers import Models, make_llm, mixed_requests, registered, run, same_results

from outrider.core.errors import ConfigError
from outrider.core.params import SamplingParams
from outrider.core.request import Request
from outrider.core.tree import TokenTree
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


@pytest.mark.parametrize("length", [None, 4])
def test_the_text_is_the_targets_own(models: Models, length: int | None) -> None:
    asked = mixed_requests(12)
    config = {"method": "auto", "model": models.noisy, "num_speculative_tokens": length}
    llm = make_llm(models.target, config)
    llm.engine.policy.draft_always()
    results = run(llm, asked)
    assert sum(result.speculation.accepted for result in results) > 0
    same_results(llm, asked, results, run(make_llm(models.target), asked))
