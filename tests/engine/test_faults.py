"""The checks can fail: each fault planted in the engine is noticed by one of them."""

from array import array
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.drafters.compared import drafter_of, make_compared
from tests.engine.helpers import (
    Ask,
    Models,
    drafting,
    finish,
    make_llm,
    random_prompt,
    run,
    same_results,
)
from tests.engine.test_lossless import _close, _pattern, chi_square_excess, drawn

import outrider.engine.engine as engine_module
import outrider.engine.report as report_module
import outrider.model.radix as radix_module
import outrider.model.segment as segment_module
import outrider.verify as verify_module
from outrider.core.outputs import RequestOutput
from outrider.core.params import SamplingParams
from outrider.core.request import Request
from outrider.core.tree import TokenTree
from outrider.core.verdict import Verdict
from outrider.drafters import candidates as draft_module
from outrider.engine.llm import LLM
from outrider.engine.sequence import Sequence
from outrider.model.kv import KVCache
from outrider.model.segment import Segment
from outrider.sampling.rows import Row

Patch = pytest.MonkeyPatch

# ---- the checks, as the other tests of this folder make them ----


class World:
    def __init__(
        self, models: Models, plain: LLM, asked: list[Ask], expected: list[RequestOutput]
    ) -> None:
        self.models = models
        self.plain = plain
        self.asked = asked
        self.expected = expected

    def check_text(self, name: str) -> None:
        """Texts equal those of plain decoding, and the slots add up after every step."""
        chosen = [0, 4, 5, 7, 9, 13]
        llm = make_llm(self.models.target, drafting(self.models, name, 5))
        ids = [llm.engine.add(*self.asked[i]) for i in chosen]
        results = finish(llm.engine)
        same_results(
            self.plain,
            [self.asked[i] for i in chosen],
            [results[request_id] for request_id in ids],
            [self.expected[i] for i in chosen],
        )

    def check_ends(self) -> None:
        """The end token ends the text, also inside a draft."""
        params = SamplingParams(seed=1, max_tokens=20, logit_bias={0: 4.0})
        config = {"model": self.models.target, "num_speculative_tokens": 8}
        asked = [(random_prompt(i, 8), params) for i in range(6)]
        for result in run(make_llm(self.models.target, config), asked):
            assert 0 not in result.outputs[0].token_ids[:-1]

    def check_full_acceptance(self) -> None:
        config = {"model": self.models.target, "num_speculative_tokens": 3}
        params = SamplingParams(seed=1, max_tokens=20, ignore_eos=True)
        result = run(make_llm(self.models.target, config), [(random_prompt(1, 8), params)])[0]
        assert result.outputs[0].from_draft == _pattern(result.outputs[0], 3)

    def check_permutation(self) -> None:
        params = [SamplingParams(seed=seed, max_tokens=8) for seed in range(3)]
        asked = [(random_prompt(1, 8), one) for one in params]
        llm = make_llm(self.models.target, drafting(self.models, "ngram", 3))
        straight, turned = run(llm, asked), run(llm, asked[::-1])
        same_results(self.plain, asked, turned[::-1], straight)

    def check_draft_logits(self) -> None:
        llm = make_compared(self.models, kv_cache_tokens=64, max_num_batched_tokens=16)
        params = SamplingParams(seed=1, max_tokens=12, ignore_eos=True)
        for i in range(3):
            run(llm, [(random_prompt(4 * i + j, 10), params) for j in range(3)])
        assert drafter_of(llm).worst < 1e-4

    def check_logprobs(self) -> None:
        ask = (random_prompt(2, 9), SamplingParams(seed=3, max_tokens=16, logprobs=2))
        llm = make_llm(self.models.target, drafting(self.models, "draft_model", 3))
        _close(run(llm, [ask])[0].outputs[0], run(self.plain, [ask])[0].outputs[0])

    def check_distribution(self) -> None:
        drafter = drawn(self.models, "model")
        assert chi_square_excess(self.models.small, drafter, {}, 640) < 1

    def check_prefix_hits(self) -> None:
        cached = make_llm(self.models.target)
        cold = make_llm(self.models.target, enable_prefix_caching=False)
        params = SamplingParams(seed=3, max_tokens=8, ignore_eos=True)
        for i in range(3):
            ask = (random_prompt(8, 10) + random_prompt(i, 10), params)
            same_results(cold, [ask], run(cached, [ask]), run(cold, [ask]))


@pytest.fixture
def world(models: Models, plain: LLM, asked: list[Ask], expected: list[RequestOutput]) -> World:
    return World(models, plain, asked, expected)


# ---- the faults ----


def keep_one_slot_too_many(patch: Patch) -> None:
    commit = KVCache.commit

    def wrong(kv: KVCache, request: Request, keep: list[int], ahead: int = 0) -> None:
        spare = [i for i in range(len(request.reserved)) if i not in keep]
        commit(kv, request, keep + spare[:1] if keep else keep)

    patch.setattr(KVCache, "commit", wrong)


def keep_one_slot_too_few(patch: Patch) -> None:
    commit = KVCache.commit
    patch.setattr(
        KVCache,
        "commit",
        lambda kv, r, keep, ahead=0: commit(kv, r, keep[:-1] if keep[1:] else keep),
    )


def keep_the_slot_beside(patch: Patch) -> None:
    commit = KVCache.commit

    def wrong(kv: KVCache, request: Request, keep: list[int], ahead: int = 0) -> None:
        beside = [i - 1 if i == keep[-1] and i - 1 not in keep else i for i in keep]
        commit(kv, request, beside)

    patch.setattr(KVCache, "commit", wrong)


def write_kv_to_the_wrong_slot(patch: Patch) -> None:
    right = engine_module.segment_of

    def wrong(item: Any, tree: Any) -> Segment:
        segment = right(item, tree)
        nodes = len(tree)
        if nodes > 1:
            first = len(segment) - nodes
            slots = segment.slots
            segment.slots = slots[:first] + slots[first + 1 :] + slots[first : first + 1]
        return segment

    patch.setattr(engine_module, "segment_of", wrong)


def show_siblings(patch: Patch) -> None:
    patch.setattr(
        segment_module,
        "ancestor_mask",
        lambda parents: torch.ones(len(parents), len(parents), dtype=torch.bool).tril(),
    )


def place_nodes_by_index(patch: Patch) -> None:
    patch.setattr(
        Segment,
        "positions",
        property(lambda self: [len(self.context) + i for i in range(len(self))]),
    )


def read_the_row_before(patch: Patch) -> None:
    walk = verify_module.walk

    def wrong(trees: list[TokenTree], choices: Any) -> list[Verdict]:
        roots = {start for start, _ in verify_module.spans(trees)}
        return walk(trees, lambda at: choices([row if row in roots else row - 1 for row in at]))

    patch.setattr(verify_module, "walk", wrong)


def key_noise_by_batch_index(patch: Patch) -> None:
    choose = verify_module.choose

    def wrong(scores: torch.Tensor, rows: list[Row]) -> torch.Tensor:
        order = list(dict.fromkeys(row.request for row in rows))
        stand_ins: list[Any] = [
            SimpleNamespace(
                position=row.position,
                request=SimpleNamespace(
                    seed=row.request.seed,
                    sample=order.index(row.request),
                    params=row.request.params,
                ),
            )
            for row in rows
        ]
        return choose(scores, stand_ins)

    patch.setattr(verify_module, "choose", wrong)


def penalise_the_whole_tree(patch: Patch) -> None:
    tree_rows, process = verify_module.tree_rows, verify_module.process
    drafted: dict[Request, list[int]] = {}

    def noted(trees: list[TokenTree], requests: list[Request]) -> list[Row]:
        drafted.update({request: tree.tokens for tree, request in zip(trees, requests)})
        return tree_rows(trees, requests)

    def wrong(logits: torch.Tensor, rows: list[Row], counts: Any) -> torch.Tensor:
        whole = [
            Row(r.request, drafted[r.request] if r.request.params.penalised else r.path)
            for r in rows
        ]
        return process(logits, whole, counts)

    patch.setattr(verify_module, "tree_rows", noted)
    patch.setattr(verify_module, "process", wrong)


def ignore_the_end_inside_a_draft(patch: Patch) -> None:
    append = Sequence.append

    def wrong(self: Sequence, token: int, from_draft: bool, logprobs: Any = None) -> bool:
        stop_ids = self.request.stop_ids
        if from_draft:
            self.request.stop_ids = frozenset()
        try:
            return append(self, token, from_draft, logprobs)
        finally:
            self.request.stop_ids = stop_ids

    patch.setattr(Sequence, "append", wrong)


def forget_that_a_slot_was_handed_out_again(patch: Patch) -> None:
    reserve = KVCache.reserve

    def wrong(kv: KVCache, request: Request, count: int) -> bool:
        done = reserve(kv, request, count)
        kv.generation.clip(max=1, out=kv.generation)
        return done

    patch.setattr(KVCache, "reserve", wrong)


def lose_the_slots_of_rejected_nodes(patch: Patch) -> None:
    def wrong(kv: KVCache, request: Request, keep: list[int], ahead: int = 0) -> None:
        request.slots.extend(request.reserved[i] for i in keep)
        request.reserved = array("q")

    patch.setattr(KVCache, "commit", wrong)


def report_the_row_before(patch: Patch) -> None:
    logprobs = report_module.logprobs
    patch.setattr(
        report_module, "logprobs", lambda scores, *rest: logprobs(scores.roll(1, 0), *rest)
    )


def flatten_q(patch: Patch) -> None:
    distribution = draft_module.distribution
    patch.setattr(draft_module, "distribution", lambda scores, rows: distribution(scores / 3, rows))


def draft_greedily_but_claim_to_draw(patch: Patch) -> None:
    patch.setattr(
        draft_module, "perturbed_top", lambda scores, stream, count, sure: scores.topk(count)
    )


def match_any_prefix(patch: Patch) -> None:
    patch.setattr(
        radix_module,
        "_common_length",
        lambda edge, tokens, start: min(len(edge), len(tokens) - start),
    )


FAULTS: list[tuple[Callable[[Patch], None], Callable[[World], None]]] = [
    (keep_one_slot_too_many, lambda w: w.check_text("draft_model")),
    (keep_one_slot_too_few, World.check_full_acceptance),
    (keep_the_slot_beside, lambda w: w.check_text("trees")),
    (write_kv_to_the_wrong_slot, lambda w: w.check_text("draft_model")),
    (show_siblings, lambda w: w.check_text("trees")),
    (place_nodes_by_index, lambda w: w.check_text("trees")),
    (read_the_row_before, lambda w: w.check_text("ngram")),
    (key_noise_by_batch_index, World.check_permutation),
    (key_noise_by_batch_index, lambda w: w.check_text("none")),
    (penalise_the_whole_tree, lambda w: w.check_text("trees")),
    (ignore_the_end_inside_a_draft, World.check_ends),
    (forget_that_a_slot_was_handed_out_again, World.check_draft_logits),
    (lose_the_slots_of_rejected_nodes, lambda w: w.check_text("draft_model")),
    (report_the_row_before, World.check_logprobs),
    (flatten_q, World.check_distribution),
    (draft_greedily_but_claim_to_draw, World.check_distribution),
    (match_any_prefix, World.check_prefix_hits),
]


@pytest.mark.parametrize(
    ("fault", "check"), FAULTS, ids=[f"{i}-{fault.__name__}" for i, (fault, _) in enumerate(FAULTS)]
)
def test_a_planted_fault_is_noticed(
    world: World,
    monkeypatch: Patch,
    fault: Callable[[Patch], None],
    check: Callable[[World], None],
) -> None:
    with monkeypatch.context() as patch:
        fault(patch)
        with pytest.raises(AssertionError):
            check(world)


def test_without_a_fault_the_checks_are_silent(world: World) -> None:
    for name in ("none", "ngram", "draft_model", "trees"):
        world.check_text(name)
    world.check_ends()
    world.check_full_acceptance()
    world.check_permutation()
    world.check_draft_logits()
    world.check_logprobs()
    world.check_distribution()
    world.check_prefix_hits()
