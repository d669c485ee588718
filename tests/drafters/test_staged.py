"""The staged drafter writes what its draft model alone would write, in fewer passes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.drafters.compared import Compared, drafter_of
from tests.engine.helpers import (
    Ask,
    Models,
    make_llm,
    mixed_requests,
    random_prompt,
    registered,
    run,
    same_results,
)
from tests.tiny import make_tiny, make_tokenizer
from torch import Tensor

from outrider.core.errors import ConfigError
from outrider.core.params import SamplingParams
from outrider.core.request import Request
from outrider.core.tree import TokenTree
from outrider.drafters.draft_model import DraftModelDrafter
from outrider.drafters.growth import Planned
from outrider.drafters.lookup import LookupDrafter
from outrider.drafters.staged import StagedDrafter
from outrider.engine.llm import LLM


class Oracle(LookupDrafter):
    """Guesses a tree whose first path is partly right: what another run drafted here, with an
    error after some tokens. Keeps count of what it is told."""

    name = "oracle"
    drafts: dict[Any, list[int]] = {}  # noqa: RUF012  where -> tokens that were drafted
    right = 99  # tokens of every guess that are right

    def __init__(self, config: Any, target: Any) -> None:
        super().__init__(config, target)
        self.told: list[str] = []

    def lookup(self, request: Request, ahead: list[int], budget: int) -> TokenTree:
        known = self.drafts.get(where(request), [])
        rest = known[len(ahead) :] if known[: len(ahead)] == ahead else []
        tokens = [t if i < self.right else t ^ 1 for i, t in enumerate(rest[:budget])]
        if len(tokens) > 1:  # a second branch is no harm
            tree = TokenTree([*tokens[:-1], 7], [*range(-1, len(tokens) - 2), -1], "oracle")
            assert len(tree) <= budget
            return tree
        return TokenTree.chain(tokens, "oracle")

    def observe(self, spans: Any) -> None:
        self.told.append("observe")

    def review(self, batch: Any, trees: Any, verdicts: Any) -> None:
        self.told.append("review")

    def meanwhile(self, prompts: Any) -> None:
        self.told.append("meanwhile")

    def release(self, request: Request) -> None:
        self.told.append("release")

    def reset(self) -> None:
        self.told.append("reset")


def where(request: Request) -> Any:
    return tuple(request.prompt_ids), request.seed, request.sample, tuple(request.output_ids)


@pytest.fixture(autouse=True)
def oracle() -> Iterator[None]:
    with registered(Oracle, ComparedStaged):
        yield
    Oracle.drafts, Oracle.right = {}, 99


def drafted(llm: LLM, asked: list[Ask]) -> tuple[dict[Any, TokenTree], int, Any]:
    """All drafts by where they were made, the passes of the draft model, and the results."""
    drafter = drafter_of(llm)
    propose, forward = drafter.propose, drafter.runner.forward
    trees: dict[Any, TokenTree] = {}
    passes = []

    def watched(batch: list[Request], budgets: list[int]) -> list[TokenTree]:
        found = propose(batch, budgets)
        trees.update({where(r): tree for r, tree in zip(batch, found, strict=True)})
        return found

    def counted(segments: Any) -> Tensor:
        passes.append(len(segments))
        return forward(segments)

    drafter.propose, drafter.runner.forward = watched, counted
    results = run(llm, asked)
    return trees, len(passes), results


def same_drafts(one: dict[Any, TokenTree], other: dict[Any, TokenTree]) -> None:
    assert one.keys() == other.keys() and len(one) > 5
    for at, tree in one.items():
        assert tree.tokens == other[at].tokens
        assert tree.parents == other[at].parents
        assert tree.confidence == pytest.approx(other[at].confidence, abs=1e-3)


def make(models: Models, method: str, **more: Any) -> LLM:
    config = {"method": method, "model": models.noisy, "num_speculative_tokens": 5, **more}
    return make_llm(models.target, config)


@pytest.mark.parametrize("verification", ["coupled", "traversal"])
def test_drafts_are_those_of_the_draft_model_alone(models: Models, verification: str) -> None:
    asked = mixed_requests(12)
    alone, passes, texts = drafted(make(models, "draft_model", verification=verification), asked)
    Oracle.drafts = {at: tree.tokens for at, tree in alone.items()}
    # Where a guess is right, five tokens take two passes: the oracle leaves the last one out.
    for right, share in ((99, 0.7), (1, 0.9), (0, 1.0)):
        Oracle.right = right
        llm = make(models, "staged", drafter="oracle", verification=verification)
        staged, fewer, same = drafted(llm, asked)
        same_drafts(staged, alone)
        for one, other in zip(same, texts, strict=True):
            assert [o.token_ids for o in one.outputs] == [o.token_ids for o in other.outputs]
        assert fewer <= share * passes


def test_repeated_text_takes_fewer_passes(models: Models) -> None:
    only = dict.fromkeys((5, 77), 30.0)
    params = SamplingParams(temperature=0, seed=1, max_tokens=30, logit_bias=only)
    asked = [(random_prompt(1, 8), params)]
    alone, passes, _ = drafted(make(models, "draft_model"), asked)
    staged, fewer, _ = drafted(make(models, "staged", drafter={"method": "ngram"}), asked)
    same_drafts(staged, alone)
    assert fewer < 0.6 * passes


def test_text_is_that_of_plain_decoding(models: Models) -> None:
    asked = mixed_requests(20)
    llm = make(models, "staged", drafter="ngram")
    same_results(llm, asked, run(llm, asked), run(make_llm(models.target), asked))


class ComparedStaged(Compared, StagedDrafter):
    """Every row that the draft model chooses by, held against a fresh pass."""

    name = "compared_staged"
    options = StagedDrafter.options

    def _take(self, drafts: list[Planned], guesses: list[list[int]], logits: Tensor) -> None:
        rows = iter(logits)
        for draft, guess in zip(drafts, guesses, strict=True):
            for end in range(len(guess) + 1):
                path = draft.path_tokens(draft.frontier[0]) + guess[:end]
                self.compare(draft.request, path, next(rows))
        super()._take(drafts, guesses, logits)


@pytest.mark.parametrize("slots", [64, 400])
def test_next_logits_equal_a_fresh_models(models: Models, slots: int) -> None:
    config = {"method": "compared_staged", "model": models.noisy, "drafter": "ngram"}
    llm = make_llm(
        models.target,
        {**config, "num_speculative_tokens": 5},
        kv_cache_tokens=slots,
        max_num_batched_tokens=16,
    )
    drafter_of(llm).pauses = [i % 3 == 0 for i in range(40)]
    drafter_of(llm).meddles = [i % 4 for i in range(40)]
    asked = [
        ([*random_prompt(1, 12), 5 + i], SamplingParams(seed=i, max_tokens=20, ignore_eos=True))
        for i in range(4)
    ]
    run(llm, asked)
    run(llm, asked)
    assert drafter_of(llm).rows > 50
    assert drafter_of(llm).worst < 1e-4


def test_the_inner_drafter_is_told_everything(models: Models) -> None:
    llm = make(models, "staged", drafter="oracle")
    run(llm, [(random_prompt(1, 6), SamplingParams(seed=1, max_tokens=8))])
    drafter_of(llm).reset()
    told = {"observe", "review", "meanwhile", "release", "reset"}
    assert set(drafter_of(llm).inner.told) == told


def test_a_guess_may_be_limited(models: Models) -> None:
    inner = {"method": "ngram", "prompt_lookup_min": 1, "num_speculative_tokens": 1}
    drafter = drafter_of(make(models, "staged", drafter=inner))
    assert drafter._longest_guess == 1
    assert drafter.inner.least_match == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"drafter": "draft_model"}, "cannot be sped up by 'draft_model', which is no lookup"),
        ({"drafter": {"method": "none"}}, "cannot be sped up by 'none'"),
        ({"drafter": "ngrams"}, "unknown drafter 'ngrams'; did you mean 'ngram'"),
        ({"drafter": {"method": "ngram", "verification": "coupled"}}, "no 'verification'"),
        ({"drafter": {"method": "ngram", "lookup": 3}}, "'lookup'"),
        ({"tree": [2, 2]}, "unknown option of drafter 'staged': 'tree'"),
        ({"model": None}, "drafter 'staged' needs a 'model'"),
    ],
)
def test_what_cannot_be_staged_is_refused(models: Models, options: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(models, "staged", **options)


def test_another_vocabulary_is_refused(models: Models, tmp_path: Path) -> None:
    other = make_tiny("llama", tmp_path / "other")
    tokenizer = make_tokenizer(other)
    tokenizer.add_tokens(["outrider"])
    tokenizer.save_pretrained(other)
    with pytest.raises(ConfigError, match=r"another vocabulary than .* 1 entries differ"):
        make_llm(models.target, {"method": "staged", "model": str(other)})


def test_it_is_a_draft_model(models: Models) -> None:
    drafter = drafter_of(make(models, "staged"))
    assert isinstance(drafter, DraftModelDrafter)
    assert isinstance(drafter.inner, LookupDrafter)  # a default
