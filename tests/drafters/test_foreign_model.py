"""Draft models with another tokenizer: lossless in all pairs, right where they can be, no leak."""

import logging
from pathlib import Path
from typing import Any

import pytest
from tests.drafters.foreign import KINDS, PROMPTS, WAYS, check, drafter_of, pair, plain, prompts
from tests.engine.helpers import accept_rate, mixed_options, run, same_results
from tests.tiny import VOCAB, make_tiny
from torch import Tensor

from outrider.core.errors import ConfigError
from outrider.core.params import SamplingParams
from outrider.core.request import Request
from outrider.core.tree import TokenTree
from outrider.drafters.draft_model import DraftModelDrafter
from outrider.drafters.foreign_model import (
    ForeignModelDrafter,
    IntersectionDrafter,
    StringsDrafter,
)
from outrider.drafters.string_draft import StringDraft

# ---- lossless ----


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("draft", KINDS)
@pytest.mark.parametrize("target", KINDS)
def test_all_pairs_write_what_the_target_alone_would(
    pairs: Path, target: str, draft: str, way: str
) -> None:
    """Of the same kind: nearly the same model under other ids, so that some drafts are right."""
    llm = pair(pairs, target, f"{draft}_near" if draft == target else draft, way)
    asked = prompts(llm, 0.0) + prompts(llm, 1.0)
    results = run(llm, asked)
    same_results(llm, asked, results, run(plain(pairs / target), asked))
    assert sum(result.speculation.drafted for result in results) > 0
    check(llm)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("target", KINDS)
def test_a_text_that_both_know_is_drafted_rightly(pairs: Path, target: str, way: str) -> None:
    """Whole characters, halves of them, and words that are cut elsewhere."""
    draft = {"bpe": "spaced_tale", "spaced": "byte_tale", "byte": "bpe_tale"}[target]
    llm = pair(pairs, f"{target}_tale", draft, way, k=4)
    asked = [prompts(llm, temperature, 50)[0] for temperature in (0.0, 1.0)]
    results = run(llm, asked)
    same_results(llm, asked, results, run(plain(pairs / f"{target}_tale"), asked))
    assert "😀 of the party. Он едет" in results[0].outputs[0].text
    # Of a vocabulary of bytes hardly a token stands for what a draft model of words would write.
    hopeless = (target, way) == ("byte", "intersection")
    assert hopeless or accept_rate(results) > 0.3
    check(llm)


@pytest.mark.parametrize("way", WAYS)
def test_every_option_of_sampling(pairs: Path, way: str) -> None:
    llm = pair(pairs, "bpe", "bpe_near", way)
    tokenizer: Any = llm.engine.loaded.tokenizer
    asked = [
        (tokenizer(PROMPTS[i % 4])["input_ids"], SamplingParams(**options))
        for i, options in enumerate(mixed_options(16))
    ]
    same_results(llm, asked, run(llm, asked), run(plain(pairs / "bpe"), asked))
    check(llm)


# ---- a copy of the target under other ids ----


@pytest.mark.parametrize("verification", ["coupled", "traversal"])
@pytest.mark.parametrize("target", KINDS)
def test_a_copy_with_permuted_ids_is_accepted_in_full(
    pairs: Path, target: str, verification: str
) -> None:
    llm = pair(pairs, target, f"{target}_same", verification=verification)
    assert drafter_of(llm).translation == "intersection"
    for temperature in (0.0, 1.0):
        results = run(llm, prompts(llm, temperature))
        assert accept_rate(results) == 1.0
        assert sum(result.speculation.accepted for result in results) > 40


def test_a_tree_over_common_tokens(pairs: Path) -> None:
    llm = pair(pairs, "bpe", "bpe_same", tree=[3, 2, 1], k=15)
    asked = prompts(llm, 1.0)
    results = run(llm, asked)
    same_results(llm, asked, results, run(plain(pairs / "bpe"), asked))
    assert accept_rate(results) > 0.18  # three of fifteen, in every step
    check(llm)


@pytest.mark.parametrize("tree", ["confidence", "optimal"])
def test_a_tree_whose_size_is_up_to_the_policy(pairs: Path, tree: str) -> None:
    llm = pair(pairs, "bpe", "bpe_same", k=None, tree=tree)
    llm.engine.policy.draft_always()
    asked = prompts(llm, 0.0)
    results = run(llm, asked)
    same_results(llm, asked, results, run(plain(pairs / "bpe"), asked))
    assert sum(result.speculation.accepted for result in results) > 20
    check(llm)


# ---- the draft in detail ----


def test_confidence_is_the_draft_models_own(pairs: Path) -> None:
    for way in WAYS:
        llm = pair(pairs, "bpe_tale", "spaced_tale", way, k=4)
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


def test_a_token_that_may_go_on_is_not_proposed(pairs: Path) -> None:
    """` rid` may be all, or become ` ride`, another token: a draft model of bytes cannot tell."""
    texts = drafter_of(pair(pairs, "bpe", "byte", "strings")).texts
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


def test_a_draft_does_not_start_with_what_the_target_has_ruled_out(pairs: Path) -> None:
    """After ` ride` no `r`: the target would have written ` rider`."""
    texts = drafter_of(pair(pairs, "bpe", "spaced", "strings")).texts
    ours, theirs = texts.pair.target, texts.pair.draft
    request = Request("r", [ours.ids["Ġride"]], SamplingParams(), 0)
    shadow = texts.follow([request], [9])[request]
    draft = StringDraft(request, shadow, texts.pair, 8, 1, 99)
    draft.extend([theirs.ids["r"], theirs.ids["▁a"], theirs.ids["s"]], [0.5, 0.3, 0.2])
    assert (draft.ids, draft.chances, draft.done) == ([theirs.ids["▁a"]], [0.3], False)
    draft.extend([theirs.ids["r"]], [0.5])  # later there is no such limit
    assert len(draft.ids) == 2
    nothing = StringDraft(request, shadow, texts.pair, 8, 1, 99)
    nothing.extend([theirs.ids["r"]], [0.5])
    assert nothing.done
    assert len(nothing.tree("")) == 0


def test_a_token_that_the_draft_model_ended_likewise_is_proposed(pairs: Path) -> None:
    texts = drafter_of(pair(pairs, "bpe", "spaced", "strings")).texts
    ours, theirs = texts.pair.target, texts.pair.draft
    assert ours.goes_on(b" ride") and theirs.goes_on(b" ride")
    request = Request("r", ours.encode(b"The"), SamplingParams(), 0)
    draft = StringDraft(request, texts.follow([request], [9])[request], texts.pair, 8, 1, 99)
    draft.append(theirs.ids["▁ride"], 0.5)
    assert draft.tree("").tokens == [ours.ids["Ġride"]]


@pytest.mark.parametrize("way", WAYS)
def test_a_drafted_end_is_the_targets_end(pairs: Path, way: str) -> None:
    """Their names differ, `<|eos|>` and `</s>`; both mean it."""
    llm = pair(pairs, "bpe_tale", "spaced_tale", way)
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


def test_the_way_is_chosen_and_told(pairs: Path, tmp_path: Path, caplog: Any) -> None:
    wordy = make_tiny("llama", tmp_path / "wordy", vocab_size=900, pad_token_id=None)
    from tests.drafters.test_translation import byte_level

    from outrider.drafters.translation import SAMPLE

    byte_level(SAMPLE, 700).save_pretrained(wordy)
    with caplog.at_level(logging.INFO, "outrider.drafters.foreign_model"):
        assert isinstance(drafter_of(pair(pairs, str(wordy), "byte")), StringsDrafter)
        assert "translating by strings" in caplog.text
        assert isinstance(drafter_of(pair(pairs, "bpe", "bpe_same")), IntersectionDrafter)
        assert "translating by intersection" in caplog.text
    for options in ({"use_heterogeneous_vocab": True}, {"tree": [2, 1]}):  # vLLM's hint; a tree
        forced = pair(pairs, str(wordy), "byte", **options)
        assert isinstance(drafter_of(forced), IntersectionDrafter)


def test_the_same_vocabulary_needs_no_translation(pairs: Path) -> None:
    assert isinstance(drafter_of(pair(pairs, "bpe", "bpe")), DraftModelDrafter)
    translated = drafter_of(pair(pairs, "bpe", "bpe", "strings"))
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
def test_a_wrong_option_says_what_is_wrong(pairs: Path, options: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        pair(pairs, "bpe", "byte", **options)


def test_without_a_tokenizer_nothing_is_translated(pairs: Path, tmp_path: Path) -> None:
    mute = make_tiny("llama", tmp_path / "mute")
    with pytest.raises(ConfigError, match=f"has {VOCAB} token ids and .*without both tokenizers"):
        pair(pairs, "bpe", str(mute))
    with pytest.raises(ConfigError, match="mute has no tokenizer"):
        pair(pairs, "bpe", str(mute), "strings")
