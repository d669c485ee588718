"""A foreign draft model's memory stays in step with the text, in slots of its own."""

from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.drafters.foreign import (
    TALE,
    WAYS,
    check,
    drafter_of,
    make_pairable,
    pair,
    plain,
    prompts,
)
from tests.engine.helpers import fed_back, run, same_results
from tests.tiny import TEXT
from torch import Tensor

from outrider.core.params import SamplingParams
from outrider.core.request import Request


class Watch:
    """Holds every row of logits of a draft model against a fresh pass over the same text."""

    def __init__(self, drafter: Any, folder: str) -> None:
        self.texts, self.folder = drafter.texts, folder
        self.rows: list[int] = []  # per pass
        self.worst = 0.0
        self._forward = self.texts.runner.forward
        self._seen: dict[int, int] = {}  # slot -> token
        self.texts.runner.forward = self.forward

    def forward(self, segments: list[Any]) -> Tensor:
        cached = {slot for node in self.texts.kv.tree.nodes() for slot in node.slots}
        written = {slot for segment in segments for slot in segment.slots}
        assert not written & cached  # others may read them
        logits = self._forward(segments)
        rows = iter(logits)
        for segment in segments:
            self._seen |= dict(zip(segment.slots, segment.tokens))
            text = [self._seen[slot] for slot in segment.context] + segment.tokens
            fresh = fed_back(self.folder, text)
            for i in range(segment.logits_from, len(segment)):
                row = fresh[len(segment.context) + i]
                self.worst = max(self.worst, float((row - next(rows)).abs().max()))
        self.rows.append(sum(len(segment) for segment in segments))
        return logits


def expect_the_views_text(watch: Watch) -> None:
    """What the shadows' slots hold is the text as the view has it."""
    for request, shadow in watch.texts._shadows.items():
        view = watch.texts._views[request]
        read = [watch._seen[slot] for slot in shadow.text.slots]
        assert read == view.ids[: len(read)]


scenarios = st.fixed_dictionaries(
    {
        "target": st.sampled_from(["bpe", "spaced"]),
        "way": st.sampled_from(WAYS),
        "known": st.booleans(),  # a tale that both know, or a model that is nearly the same
        "lengths": st.lists(st.integers(1, 30), min_size=2, max_size=4),
        "slots": st.sampled_from([56, 80, 400]),
        "rows": st.sampled_from([7, 64]),
        "k": st.integers(1, 5),
        "prefix": st.booleans(),
        "tree": st.booleans(),
    }
)


@settings(
    max_examples=8,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(scenarios)
def test_next_logits_equal_a_fresh_models(pairs: Path, plan: dict[str, Any]) -> None:
    target, draft = plan["target"], f"{plan['target']}_near"
    if plan["known"]:
        target, draft = f"{target}_tale", "byte_tale"
    tree = {"tree": "confidence"} if plan["tree"] and plan["way"] == "intersection" else {}
    llm = pair(
        pairs,
        target,
        draft,
        plan["way"],
        plan["k"],
        {
            "kv_cache_tokens": plan["slots"],
            "max_num_batched_tokens": plan["rows"],
            "enable_prefix_caching": plan["prefix"],
        },
        **tree,
    )
    watch = Watch(drafter_of(llm), str(pairs / draft))
    tokenizer: Any = llm.engine.loaded.tokenizer
    tale = tokenizer(TALE)["input_ids"]
    asked = [
        (tale[:length], SamplingParams(seed=i, max_tokens=12, ignore_eos=True))
        for i, length in enumerate(plan["lengths"])
    ]
    for one in (asked, asked[::-1]):
        for prompt, params in one:
            llm.engine.add(prompt, params)
        while not llm.engine.idle:
            llm.engine.step()
            expect_the_views_text(watch)
            watch.texts.kv.check()
    assert watch.rows
    assert watch.worst < 1e-3
    check(llm)


# ---- texts that are cut otherwise when they grow ----

RIDE = b"The rider rides ahead of the rider"


class Growing:
    """A text that reaches the draft model a few bytes at a time, so that its end is cut anew."""

    def __init__(self, watch: Watch, text: bytes, start: int) -> None:
        self.watch, self.texts = watch, watch.texts
        ours = self.texts.pair.target.encode(text)
        assert len(ours) == len(text)
        self.request = Request("r", ours[:start], SamplingParams(), 0)
        self._rest = ours[start:]
        self.rolled_back = 0

    def read(self) -> None:
        """The logits after the text are those of a fresh pass over its present cut."""
        before = list(self._ids)
        shadow = self.texts.follow([self.request], [2])[self.request]
        self.rolled_back += self._ids[: len(before)] != before
        logits = self.texts.read([shadow])[0]
        fresh = fed_back(self.watch.folder, self._ids)[-1]
        assert float((logits - fresh).abs().max()) < 1e-3
        self.texts.kv.check()
        expect_the_views_text(self.watch)

    @property
    def _ids(self) -> list[int]:
        view = self.texts._views.get(self.request)
        return view.ids if view else []

    def grow(self, count: int) -> bool:
        for token in self._rest[:count]:
            self.request.append(token)
        del self._rest[:count]
        return bool(self._rest)


def byte_by_byte(pairs: Path, draft: str, **engine: Any) -> Watch:
    llm = pair(pairs, "byte", draft, "strings", engine=engine)
    return Watch(drafter_of(llm), str(pairs / draft))


@pytest.mark.parametrize("draft", ["bpe", "spaced"])
def test_what_is_cut_otherwise_is_rolled_back_to_the_last_token_that_stays(
    pairs: Path, draft: str
) -> None:
    watch = byte_by_byte(pairs, draft, enable_prefix_caching=False)
    for step in (1, 3, 4, 5):  # of several bytes, so that more than the last token is new
        text = Growing(watch, RIDE, start=1)
        text.read()
        while text.grow(step):
            text.read()
        assert text.rolled_back > 1
        watch.texts.release(text.request)


def test_what_others_read_is_not_written_by_a_text_that_is_cut_otherwise(pairs: Path) -> None:
    """Texts that begin alike, and all that have left, hold the same entries; one whose end is cut
    anew within them must take slots of its own."""
    watch = byte_by_byte(pairs, "bpe")
    for end in range(1, len(RIDE)):  # texts that have left are remembered
        gone = Growing(watch, RIDE[:end], start=end)
        gone.read()
        watch.texts.release(gone.request)
    texts = [Growing(watch, RIDE, start=1) for _ in range(2)]
    for step in (0, 5, 2, 4, 1, 5, 2, 1, 3, 6, 1):
        for text in texts:
            text.grow(step)
            text.read()
    assert all(text.rolled_back > 1 for text in texts)
    for text in texts:
        watch.texts.release(text.request)
    watch.texts.kv.check()


def test_a_step_costs_the_accepted_tokens_not_the_text(pairs: Path) -> None:
    llm = pair(pairs, "bpe", "bpe_same", "intersection", 3)
    watch = Watch(drafter_of(llm), str(pairs / "bpe_same"))
    ids = llm.engine.loaded.tokenizer(TEXT)["input_ids"]  # type: ignore[misc]
    run(llm, [(ids, SamplingParams(seed=1, max_tokens=30, ignore_eos=True))])
    assert watch.rows[0] == len(ids) + 1  # the prompt and the first token, once
    assert max(watch.rows[1:]) <= 2  # the target's own token, and one accepted in full before it
    watch.rows.clear()
    run(llm, [(ids, SamplingParams(seed=1, max_tokens=5, n=3, ignore_eos=True))])
    assert max(watch.rows) <= 3 * 2  # the prompt is remembered


def test_requests_without_room_are_not_drafted_for(pairs: Path) -> None:
    """A draft model of bytes needs more slots than the target; those who wait make room."""
    llm = pair(pairs, "bpe_tale", "byte_tale", "strings", engine={"kv_cache_tokens": 120})
    texts = drafter_of(llm).texts
    texts.kv.reserve(taken := _holder(texts.kv), texts.kv.total - 64)
    asked = [prompts(llm, 0.0, 24)[0]] * 3
    results = run(llm, asked)
    same_results(llm, asked, results, run(plain(pairs / "bpe_tale"), asked))
    assert sum(result.speculation.drafted for result in results) > 0
    texts.kv.close(taken)
    check(llm)


def _holder(kv: Any) -> Any:
    request = Request("holder", [], SamplingParams(), 0)
    kv.open(request)
    return request


@pytest.mark.parametrize("way", WAYS)
def test_a_step_that_breaks_leaves_nothing_behind(pairs: Path, way: str) -> None:
    llm = pair(pairs, "bpe", "bpe_near", way)
    texts = drafter_of(llm).texts
    forward, calls = texts.runner.forward, count()

    def breaking(segments: list[Any]) -> Tensor:
        if next(calls) in (0, 2, 5, 9, 14, 20):  # while texts are read, and amid drafts
            raise MemoryError("no room")
        return forward(segments)

    texts.runner.forward = breaking
    for prompt, params in prompts(llm, 1.0):
        llm.engine.add(prompt, params)
    broken = 0
    while not llm.engine.idle:
        try:
            llm.engine.step()
        except MemoryError:
            broken += 1
        texts.kv.check()
        llm.engine.kv.check()
    assert broken == 6
    check(llm)


@pytest.mark.parametrize("way", WAYS)
def test_drafts_end_where_the_draft_models_context_ends(
    pairs: Path, way: str, tmp_path: Path
) -> None:
    make_pairable("byte", tmp_path / "short", max_position_embeddings=40)
    llm = pair(pairs, "bpe", str(tmp_path / "short"), way)
    asked = [(prompt, params) for prompt, params in prompts(llm, 0.0, 60)[:1]]
    results = run(llm, asked)
    same_results(llm, asked, results, run(plain(pairs / "bpe"), asked))
    assert 0 < results[0].speculation.drafted < 60
    check(llm)


def test_memory_is_declared_for_a_draft_model_of_shorter_tokens(pairs: Path) -> None:
    llm = pair(pairs, "spaced", "byte", "strings", engine={"kv_cache_tokens": 100})
    drafter = drafter_of(llm)
    assert drafter.overlap.ratio > 1
    assert drafter.texts.kv.total >= 100 * drafter.overlap.ratio
    assert drafter.bytes_per_slot >= drafter.texts.runner.bytes_per_slot * drafter.overlap.ratio
