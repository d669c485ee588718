"""Draft models with another tokenizer: lossless in all pairs, right where they can be, no leak."""

import logging
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.engine.helpers import (
    accept_rate,
    fed_back,
    make_llm,
    mixed_options,
    perturbed,
    run,
    same_results,
)
from tests.tiny import (
    TEXT,
    VOCAB,
    make_byte_tokenizer,
    make_permuted,
    make_spaced_tokenizer,
    make_tiny,
    make_tokenizer,
)
from torch import Tensor
from transformers import AutoModelForCausalLM

from outrider.audit.run import audit_engine
from outrider.core.errors import ConfigError
from outrider.core.params import SamplingParams
from outrider.core.request import Request
from outrider.core.tree import TokenTree
from outrider.drafters.draft_model import DraftModelDrafter
from outrider.drafters.foreign_model import (
    ForeignModelDrafter,
    IntersectionDrafter,
    StringDraft,
    StringsDrafter,
)
from outrider.engine.llm import LLM

MAKERS = {"bpe": make_tokenizer, "spaced": make_spaced_tokenizer, "byte": make_byte_tokenizer}
KINDS = tuple(MAKERS)
WAYS = ("intersection", "strings")
TALE = (
    "The rider rides ahead 😀 of the party. Он едет вперёд; 天気がいい。\n    return größer + 1\n"
)
PROMPTS = ["The rider rides", "über 天気 и 😀", "def ride(ahead):\n    return\t", "\x00 👩‍👩‍👧 ﬁn"]


def make_pairable(kind: str, folder: Path, steps: int = 0, **overrides: Any) -> Path:
    """A tiny model with its own kind of tokenizer; with `steps` it knows the tale by heart."""
    tokenizer = MAKERS[kind](folder)
    marks = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    size = {"vocab_size": len(tokenizer), "pad_token_id": None, **marks, **overrides}
    if not steps:
        return make_tiny("llama", folder, seed=len(kind), **size)
    make_tiny("llama", folder, num_hidden_layers=1, **{**size, "initializer_range": 0.1})
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ids = torch.tensor([tokenizer(TALE)["input_ids"]])
    learner = torch.optim.AdamW(model.parameters(), lr=2e-2)
    for _ in range(steps):
        model(ids, labels=ids).loss.backward()
        learner.step()
        learner.zero_grad()
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """By name: `bpe` is random, `bpe_same` the same under other ids, `bpe_near` nearly the same,
    `bpe_tale` knows a text."""
    folder = Path(tmp_path_factory.mktemp("foreign"))
    for kind in KINDS:
        make_pairable(kind, folder / kind)
        make_permuted(folder / kind, folder / f"{kind}_same")
        perturbed(folder / f"{kind}_same", folder / f"{kind}_near", 0.05)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            text = (folder / f"{kind}_same" / name).read_text()
            (folder / f"{kind}_near" / name).write_text(text)
        make_pairable(kind, folder / f"{kind}_tale", steps=30)
    return folder


@pytest.fixture(scope="module")
def plain(folder: Path) -> dict[str, LLM]:
    names = [*KINDS, *(f"{kind}_tale" for kind in KINDS)]
    return {name: make_llm(str(folder / name)) for name in names}


def pair(
    folder: Path,
    target: str,
    draft: str,
    way: str | None = None,
    k: int = 3,
    engine: dict[str, Any] | None = None,
    **options: Any,
) -> LLM:
    config = {"model": str(folder / draft), "num_speculative_tokens": k, "translation": way}
    return make_llm(str(folder / target), config | options, **engine or {})


def drafter_of(llm: LLM) -> Any:
    return llm.engine.drafter


def check(llm: LLM) -> None:
    """Nothing of those who left is held."""
    texts = drafter_of(llm).texts
    texts.kv.check()
    assert not texts._shadows
    assert not texts._views
    assert all(not node.locks for node in texts.kv.tree.nodes())


def prompts(llm: LLM, temperature: float, tokens: int = 16) -> list[Any]:
    tokenizer: Any = llm.engine.loaded.tokenizer
    options = {"max_tokens": tokens, "temperature": temperature, "ignore_eos": True}
    return [
        (tokenizer(text)["input_ids"], SamplingParams(seed=i, **options))
        for i, text in enumerate(PROMPTS)
    ]


@pytest.fixture(scope="module")
def alone(plain: dict[str, LLM]) -> dict[str, Any]:
    """What is asked of each target, and what it writes without a drafter."""
    asked = {kind: prompts(plain[kind], 0.0) + prompts(plain[kind], 1.0) for kind in KINDS}
    return {kind: (asked[kind], run(plain[kind], asked[kind])) for kind in KINDS}


# ---- lossless ----


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("draft", KINDS)
@pytest.mark.parametrize("target", KINDS)
def test_all_pairs_write_what_the_target_alone_would(
    folder: Path, alone: dict[str, Any], target: str, draft: str, way: str
) -> None:
    """Of the same kind: nearly the same model under other ids, so that some drafts are right."""
    llm = pair(folder, target, f"{draft}_near" if draft == target else draft, way)
    asked, expected = alone[target]
    results = run(llm, asked)
    same_results(llm, asked, results, expected)
    assert sum(result.speculation.drafted for result in results) > 0
    check(llm)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("target", KINDS)
def test_a_text_that_both_know_is_drafted_rightly(
    folder: Path, plain: dict[str, LLM], target: str, way: str
) -> None:
    """Whole characters, halves of them, and words that are cut elsewhere."""
    draft = {"bpe": "spaced_tale", "spaced": "byte_tale", "byte": "bpe_tale"}[target]
    llm = pair(folder, f"{target}_tale", draft, way, k=4)
    asked = [prompts(llm, temperature, 50)[0] for temperature in (0.0, 1.0)]
    results = run(llm, asked)
    same_results(llm, asked, results, run(plain[f"{target}_tale"], asked))
    assert "😀 of the party. Он едет" in results[0].outputs[0].text
    # Of a vocabulary of bytes hardly a token stands for what a draft model of words would write.
    hopeless = (target, way) == ("byte", "intersection")
    assert hopeless or accept_rate(results) > 0.3
    check(llm)


@pytest.mark.parametrize("way", WAYS)
def test_every_option_of_sampling(folder: Path, plain: dict[str, LLM], way: str) -> None:
    llm = pair(folder, "bpe", "bpe_near", way)
    tokenizer: Any = llm.engine.loaded.tokenizer
    asked = [
        (tokenizer(PROMPTS[i % 4])["input_ids"], SamplingParams(**options))
        for i, options in enumerate(mixed_options(16))
    ]
    same_results(llm, asked, run(llm, asked), run(plain["bpe"], asked))
    check(llm)


def test_traversal_keeps_the_distribution(folder: Path) -> None:
    config = {
        "model": str(folder / "bpe_near"),
        "verification": "traversal",
        "num_speculative_tokens": 3,
    }
    report = audit_engine(
        str(folder / "bpe"), config, dtype="float32", max_num_seqs=32, samples=256, tokens=4
    )
    assert report.passed, [f"{check.name}: {check.detail}" for check in report.failures]


# ---- a copy of the target under other ids ----


@pytest.mark.parametrize("verification", ["coupled", "traversal"])
@pytest.mark.parametrize("target", KINDS)
def test_a_copy_with_permuted_ids_is_accepted_in_full(
    folder: Path, target: str, verification: str
) -> None:
    llm = pair(folder, target, f"{target}_same", verification=verification)
    assert drafter_of(llm).translation == "intersection"
    for temperature in (0.0, 1.0):
        results = run(llm, prompts(llm, temperature))
        assert accept_rate(results) == 1.0
        assert sum(result.speculation.accepted for result in results) > 40


def test_a_tree_over_common_tokens(folder: Path, plain: dict[str, LLM]) -> None:
    llm = pair(folder, "bpe", "bpe_same", tree=[3, 2, 1], k=15)
    asked = prompts(llm, 1.0)
    results = run(llm, asked)
    same_results(llm, asked, results, run(plain["bpe"], asked))
    assert accept_rate(results) > 0.18  # three of fifteen, in every step
    check(llm)


# ---- the draft model's memory ----


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
def test_next_logits_equal_a_fresh_models(folder: Path, plan: dict[str, Any]) -> None:
    target, draft = plan["target"], f"{plan['target']}_near"
    if plan["known"]:
        target, draft = f"{target}_tale", "byte_tale"
    tree = {"tree": "confidence"} if plan["tree"] and plan["way"] == "intersection" else {}
    llm = pair(
        folder,
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
    watch = Watch(drafter_of(llm), str(folder / draft))
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


def test_a_step_costs_the_accepted_tokens_not_the_text(folder: Path) -> None:
    llm = pair(folder, "bpe", "bpe_same", "intersection", 3)
    watch = Watch(drafter_of(llm), str(folder / "bpe_same"))
    ids = llm.engine.loaded.tokenizer(TEXT)["input_ids"]  # type: ignore[misc]
    run(llm, [(ids, SamplingParams(seed=1, max_tokens=30, ignore_eos=True))])
    assert watch.rows[0] == len(ids) + 1  # the prompt and the first token, once
    assert max(watch.rows[1:]) <= 2  # the target's own token, and one accepted in full before it
    watch.rows.clear()
    run(llm, [(ids, SamplingParams(seed=1, max_tokens=5, n=3, ignore_eos=True))])
    assert max(watch.rows) <= 3 * 2  # the prompt is remembered


def test_requests_without_room_are_not_drafted_for(folder: Path, plain: dict[str, LLM]) -> None:
    """A draft model of bytes needs more slots than the target; those who wait make room."""
    llm = pair(folder, "bpe_tale", "byte_tale", "strings", engine={"kv_cache_tokens": 120})
    texts = drafter_of(llm).texts
    texts.kv.reserve(taken := _holder(texts.kv), texts.kv.total - 64)
    asked = [prompts(llm, 0.0, 24)[0]] * 3
    results = run(llm, asked)
    same_results(llm, asked, results, run(plain["bpe_tale"], asked))
    assert sum(result.speculation.drafted for result in results) > 0
    texts.kv.close(taken)
    check(llm)


def _holder(kv: Any) -> Any:
    request = Request("holder", [], SamplingParams(), 0)
    kv.open(request)
    return request


@pytest.mark.parametrize("way", WAYS)
def test_a_step_that_breaks_leaves_nothing_behind(folder: Path, way: str) -> None:
    llm = pair(folder, "bpe", "bpe_near", way)
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
    folder: Path, plain: dict[str, LLM], way: str, tmp_path: Path
) -> None:
    make_pairable("byte", tmp_path / "short", max_position_embeddings=40)
    llm = pair(folder, "bpe", str(tmp_path / "short"), way)
    asked = [(prompt, params) for prompt, params in prompts(llm, 0.0, 60)[:1]]
    results = run(llm, asked)
    same_results(llm, asked, results, run(plain["bpe"], asked))
    assert 0 < results[0].speculation.drafted < 60
    check(llm)


def test_memory_is_declared_for_a_draft_model_of_shorter_tokens(folder: Path) -> None:
    llm = pair(folder, "spaced", "byte", "strings", engine={"kv_cache_tokens": 100})
    drafter = drafter_of(llm)
    assert drafter.overlap.ratio > 1
    assert drafter.texts.kv.total >= 100 * drafter.overlap.ratio
    assert drafter.bytes_per_slot >= drafter.texts.runner.bytes_per_slot * drafter.overlap.ratio


# ---- the draft in detail ----


def test_confidence_is_the_draft_models_own(folder: Path) -> None:
    for way in WAYS:
        llm = pair(folder, "bpe_tale", "spaced_tale", way, k=4)
        seen: list[float] = []
        propose = drafter_of(llm).propose

        def watched(batch: Any, budgets: Any, propose: Any = propose, seen: Any = seen) -> Any:
            trees = propose(batch, budgets)
            for tree in trees:
                assert len(tree.confidence or []) == len(tree)
                seen += tree.confidence or []
            return trees

        drafter_of(llm).propose = watched
        run(llm, [prompts(llm, 0.0, 30)[0]])
        assert seen
        assert all(0 < chance <= 1.0001 for chance in seen)


def test_a_token_that_may_go_on_is_not_proposed(folder: Path) -> None:
    """` rid` may be all, or become ` ride`, another token: a draft model of bytes cannot tell."""
    texts = drafter_of(pair(folder, "bpe", "byte", "strings")).texts
    ours, theirs = texts.pair.target, texts.pair.draft
    request = Request("r", ours.encode(b"The"), SamplingParams(), 0)

    def drafted(text: bytes, *more: int) -> TokenTree:
        shadow = texts.follow([request], [9])[request]
        draft = StringDraft(request, shadow, texts.pair, budget=8, least=1, most=99)
        for token in (*theirs.encode(text), *more):
            draft.append(token, 0.5)
        return draft.tree("draft_model")

    whole = ours.encode(b" rid")
    assert drafted(b" rid").tokens == whole[:-1]
    # Half a character does not count, and after an end nothing follows.
    assert drafted(" rid😀".encode()[:-2]).tokens == whole[:-1]
    ended = drafted(b" rid", theirs.ends[0])
    assert ended.tokens == [*whole, ours.ends[0]]
    assert ended.confidence == [0.5 ** len(ours.pieces[i] or b"") for i in whole] + [0.5]
    # No token of the target begins with this one.
    assert not ours.goes_on(b"!")
    assert drafted(b" rid!").tokens == ours.encode(b" rid!")


def test_a_token_that_the_draft_model_ended_likewise_is_proposed(folder: Path) -> None:
    texts = drafter_of(pair(folder, "bpe", "spaced", "strings")).texts
    ours, theirs = texts.pair.target, texts.pair.draft
    assert ours.goes_on(b" ride") and theirs.goes_on(b" ride")
    request = Request("r", ours.encode(b"The"), SamplingParams(), 0)
    draft = StringDraft(request, texts.follow([request], [9])[request], texts.pair, 8, 1, 99)
    draft.append(theirs.ids["▁ride"], 0.5)
    assert draft.tree("").tokens == [ours.ids["Ġride"]]


@pytest.mark.parametrize("way", WAYS)
def test_a_drafted_end_is_the_targets_end(folder: Path, way: str) -> None:
    """Their names differ, `<|eos|>` and `</s>`; both mean it."""
    llm = pair(folder, "bpe_tale", "spaced_tale", way)
    drafter = drafter_of(llm)
    theirs, ours = drafter.texts.pair.draft, drafter.texts.pair.target
    forward = drafter.texts.runner.forward

    def ending(segments: list[Any]) -> Tensor:
        logits = forward(segments)
        logits[:, theirs.ends[0]] = 100.0
        return logits

    drafter.texts.runner.forward = ending
    (prompt, _), *_ = prompts(llm, 0.0)
    bias = {ours.ends[0]: 100.0}
    params = SamplingParams(max_tokens=6, temperature=0.0, logit_bias=bias, min_tokens=3)
    result = run(llm, [(prompt, params)])[0]
    assert result.outputs[0].finish_reason == "stop"
    assert result.outputs[0].from_draft[-1]


# ---- choosing ----


def test_the_way_is_chosen_and_told(folder: Path, tmp_path: Path, caplog: Any) -> None:
    wordy = make_tiny("llama", tmp_path / "wordy", vocab_size=900, pad_token_id=None)
    from tests.drafters.test_translation import byte_level

    from outrider.drafters.translation import SAMPLE

    byte_level(SAMPLE, 700).save_pretrained(wordy)
    with caplog.at_level(logging.INFO, "outrider.drafters.foreign_model"):
        assert isinstance(drafter_of(pair(folder, str(wordy), "byte")), StringsDrafter)
        assert "translating by strings" in caplog.text
        assert isinstance(drafter_of(pair(folder, "bpe", "spaced")), IntersectionDrafter)
        assert "translating by intersection" in caplog.text
    hinted = pair(folder, str(wordy), "byte", use_heterogeneous_vocab=True)  # vLLM's
    assert isinstance(drafter_of(hinted), IntersectionDrafter)


def test_the_same_vocabulary_needs_no_translation(folder: Path) -> None:
    assert isinstance(drafter_of(pair(folder, "bpe", "bpe")), DraftModelDrafter)
    translated = drafter_of(pair(folder, "bpe", "bpe", "strings"))
    assert isinstance(translated, ForeignModelDrafter)
    assert translated.name == "draft_model"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"way": "words"}, "translation='words' must be 'intersection' or 'strings'"),
        ({"use_heterogeneous_vocab": "yes"}, "use_heterogeneous_vocab='yes'"),
        ({"use_heterogeneous_vocab": False}, "another vocabulary than .* entries differ"),
        ({"way": "strings", "tree": [2, 2]}, "tree=.*use translation='intersection'"),
        ({"translations": "strings"}, "did you mean 'translation'"),
    ],
)
def test_a_wrong_option_says_what_is_wrong(folder: Path, options: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        pair(folder, "bpe", "byte", **options)


def test_without_a_tokenizer_nothing_is_translated(folder: Path, tmp_path: Path) -> None:
    mute = make_tiny("llama", tmp_path / "mute")
    with pytest.raises(ConfigError, match=f"has {VOCAB} token ids and .*without both tokenizers"):
        pair(folder, "bpe", str(mute))
    with pytest.raises(ConfigError, match="mute has no tokenizer"):
        pair(folder, "bpe", str(mute), "strings")
