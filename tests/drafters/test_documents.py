"""Drafts that are copied from documents: the right places, the right tokens, and only those."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.helpers import Models, first_difference, make_llm, run, same_results
from tests.tiny import make_tiny, make_tokenizer

from outrider.core.errors import ConfigError, InvalidRequest
from outrider.core.params import SamplingParams
from outrider.core.request import Request
from outrider.core.tree import ROOT
from outrider.drafters import documents, lazy_tokens
from outrider.drafters.base import DraftConfig
from outrider.drafters.documents import DocumentsDrafter
from outrider.drafters.lazy_tokens import LazyTokens
from outrider.drafters.text_index import LENGTHS, MOST_PLACES, REACH, SHORT, TextIndex

PARTY = "The outrider rides ahead of the party and reports what it finds on the way home."
MIXED = "Größe: 🐎🐎 reitet voraus, 東京の馬も走る。 naïve café — done, and back again at home."


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return make_tokenizer(tmp_path_factory.mktemp("tokenizer"))


# ---- places ----


def scanned(text: str, tail: str) -> dict[int, int]:
    """Place -> characters that agree before it, for all places of the longest stretch found."""
    agree = {}
    for place in range(len(text) + 1):
        n = 0
        while n < min(place, len(tail), REACH) and text[place - 1 - n] == tail[-1 - n]:
            n += 1
        agree[place] = n
    for length in (*reversed(LENGTHS), SHORT):
        found = {place: n for place, n in agree.items() if n >= length}
        if found:
            return found
    return {}


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.text(st.sampled_from("ab馬"), max_size=90), st.data())
def test_places_are_those_of_a_scan(text: str, data: Any) -> None:
    start = data.draw(st.integers(0, len(text)))
    tail = "xb" + text[start : data.draw(st.integers(start, len(text)))]
    expected = scanned(text, tail)
    places, agree = TextIndex(text).after(tail)
    found = dict(zip(places.tolist(), agree.tolist(), strict=True))
    assert found.items() <= expected.items()
    assert len(found) == len(expected) or len(found) > MOST_PLACES // 2


def test_many_places_are_looked_at_evenly() -> None:
    places, _ = TextIndex("one two three. " * 400).after("so one two")
    assert MOST_PLACES // 2 < len(places) <= MOST_PLACES
    assert places.min() < 400 and places.max() > 5600


def test_four_characters_are_looked_up_where_they_tell_something() -> None:
    short, long = "abcd, and so on", "abcd, and so on " + "x" * 70_000
    assert TextIndex(short).after(" abcd")[0].tolist() == [4]
    assert TextIndex(long).after(" abcd")[0].tolist() == []
    assert TextIndex("東京の馬も" + long).after("は東京の馬")[0].tolist() == [4]


# ---- tokens ----


def token_places(tokenizer: Any, text: str) -> dict[int, list[int]]:
    """Where a token starts that is no part of a character -> the tokens from there on."""
    ids = tokenizer(text)["input_ids"]
    found = {}
    for i in range(len(ids)):
        before = tokenizer.decode(ids[:i])
        if text.startswith(before):
            found[len(before)] = ids[i:]
    return found


@pytest.mark.parametrize("block", [5, 16, 192])
def test_tokens_after_a_place_are_those_of_the_whole_text(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    monkeypatch.setattr(lazy_tokens, "BLOCK", block)
    text = f"{PARTY} {MIXED}"
    tokens = LazyTokens(text, [0, len(text) + 1], tokenizer)
    places = token_places(tokenizer, text)
    assert len(places) > 60
    for place, rest in places.items():
        assert tokens.after(place, 7) == rest[:7], text[place:]
        assert tokens.after(place, 1000) == rest


def test_no_tokens_from_the_middle_of_one(tokenizer: Any) -> None:
    tokens = LazyTokens(PARTY, [0, len(PARTY) + 1], tokenizer)
    places = token_places(tokenizer, PARTY)
    for place in range(len(PARTY)):
        assert bool(tokens.after(place, 3)) == (place in places), PARTY[place:]


def test_no_tokens_of_the_next_document(tokenizer: Any) -> None:
    text = f"{PARTY}\0{MIXED}"
    second = len(PARTY) + 1
    tokens = LazyTokens(text, [0, second, len(text) + 1], tokenizer)
    assert tokens.after(0, 1000) == tokenizer(PARTY)["input_ids"]
    assert tokens.after(second, 1000) == tokenizer(MIXED)["input_ids"]
    assert tokens.after(len(PARTY), 5) == tokens.after(len(text), 5) == []


# ---- the drafter ----


def make_drafter(tokenizer: Any, **options: Any) -> DocumentsDrafter:
    target: Any = SimpleNamespace(tokenizer=tokenizer)
    return DocumentsDrafter(DraftConfig("documents", None, options=options), target)


def make_request(tokenizer: Any, text: str, *texts: Any) -> Request:
    params = SamplingParams(documents=list(texts) or None)
    return Request("r", tokenizer(text)["input_ids"], params, 0)


def test_what_follows_is_proposed(tokenizer: Any) -> None:
    request = make_request(tokenizer, "Who? The outrider rides", MIXED, PARTY)
    [tree] = make_drafter(tokenizer).propose([request], [12])
    assert tree.tokens == tokenizer(" ahead of the party and reports what it")["input_ids"][:12]
    assert tree.parents == list(range(-1, 11)) and tree.source == "documents"
    assert tree.confidence == sorted(tree.confidence or [])  # a longer match is a better one


@pytest.mark.parametrize("document", [PARTY, MIXED])
def test_every_token_of_a_copy_is_proposed(tokenizer: Any, document: str) -> None:
    """Also where the text ends in the middle of a character."""
    ids = tokenizer(document)["input_ids"]
    drafter = make_drafter(tokenizer)
    request = make_request(tokenizer, "", document)
    request.tokens[:] = ids[:6]
    for at in range(6, len(ids) - 1):
        if len(tokenizer.decode(ids[:at]).rstrip("\ufffd")) >= SHORT:
            assert drafter.lookup(request, [], 3).follow(ids[at:]), tokenizer.decode(ids[:at])
        request.tokens.append(ids[at])


def test_half_a_character_must_be_the_documents_own(tokenizer: Any) -> None:
    drafter = make_drafter(tokenizer)
    for char, proposed in (("🐎", True), ("東", False)):
        request = make_request(tokenizer, "Größe: ", MIXED)
        request.tokens += tokenizer(char)["input_ids"][:1]
        tree = drafter.lookup(request, [], 3)
        assert bool(tree.tokens) == proposed
        if proposed:
            assert tree.tokens == tokenizer(char)["input_ids"][1:4]


def test_places_vote(tokenizer: Any) -> None:
    """Three continuations of the same words: two of three places have the first."""
    texts = ["x the red house, so", "y the red house, so", "z the red roof and"]
    drafter = make_drafter(tokenizer, documents=texts)
    tree = drafter.lookup(make_request(tokenizer, "= the red"), [], 8)
    first = {tree.tokens[node]: tree.confidence[node] for node in tree.children[ROOT]}  # type: ignore[index]
    house, roof = (tokenizer(word)["input_ids"][0] for word in (" house", " roof"))
    assert house != roof
    assert first[house] == pytest.approx(2 * first[roof])
    assert sum(first.values()) < 1
    assert len(tree) == 8


def test_the_longer_match_weighs_more(tokenizer: Any) -> None:
    texts = ["he saw the red house", "we like the red roof"]
    drafter = make_drafter(tokenizer, documents=texts)
    tree = drafter.lookup(make_request(tokenizer, "? we like the red"), [], 2)
    assert tokenizer.decode(tree.tokens).startswith(" r")


def test_drafted_tokens_ahead_are_served_and_not_remembered(tokenizer: Any) -> None:
    drafter = make_drafter(tokenizer)
    request = make_request(tokenizer, "Who? The outrider", PARTY, MIXED)
    before = drafter.lookup(request, [], 5).tokens
    ahead = tokenizer(" Größe: 🐎🐎 reitet")["input_ids"]
    there = drafter.lookup(request, ahead, 5).tokens
    assert there == tokenizer(" voraus, 東京")["input_ids"][:5]
    assert drafter.lookup(request, [], 5).tokens == before
    assert before == tokenizer(" rides ahead of the party")["input_ids"][:5]


def test_no_documents_no_draft(tokenizer: Any) -> None:
    for words in (tokenizer, None):
        drafter = make_drafter(words)
        request = Request("r", [5, 6, 7], SamplingParams(), 0)
        drafter.observe([SimpleNamespace(request=request)])  # type: ignore[list-item]
        assert len(drafter.lookup(request, [], 5)) == 0


def test_budgets_are_kept(tokenizer: Any) -> None:
    drafter = make_drafter(tokenizer, documents=[PARTY, PARTY.replace("party", "crowd")])
    request = make_request(tokenizer, "rides ahead of the")
    for budget in range(12):
        assert len(drafter.lookup(request, [], budget)) == budget


def test_texts_are_indexed_once(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    real = documents.TextIndex
    monkeypatch.setattr(documents, "TextIndex", lambda text: made.append(len(text)) or real(text))
    monkeypatch.setattr(documents, "REMEMBERED", 2 * len(PARTY))
    drafter = make_drafter(tokenizer)
    for name in ("a", "b", "b"):
        request = make_request(tokenizer, "x", {"name": name, "text": PARTY})
        drafter.lookup(request, [], 3)
        drafter.lookup(request, [], 3)
        drafter.release(request)
    assert made == [len(PARTY)] and not drafter._sources
    for other in "123":  # too many: the oldest go
        drafter.lookup(make_request(tokenizer, "x", other + PARTY[1:]), [], 3)
    assert len(drafter._remembered) == 2
    drafter.lookup(make_request(tokenizer, "x", PARTY), [], 3)
    assert len(made) == 5
    drafter.reset()
    assert not drafter._remembered


def test_a_drafters_own_texts_are_known_for_good(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of requests are forgotten with all that was learned of them."""
    made: list[str] = []
    real = documents.TextIndex
    monkeypatch.setattr(documents, "TextIndex", lambda text: made.append(text) or real(text))
    large = "x" * documents.LARGE
    drafter = make_drafter(tokenizer, documents=[large + PARTY, MIXED])
    for _ in range(2):
        request = make_request(tokenizer, "x", large + MIXED)
        drafter.lookup(request, [], 3)
        drafter.release(request)
        drafter.reset()
    assert sum(large + PARTY in text for text in made) == 1
    assert sum(large + MIXED in text for text in made) == 2


def test_a_large_document_is_indexed_once_whatever_comes_with_it(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    real = documents.TextIndex
    monkeypatch.setattr(documents, "TextIndex", lambda text: made.append(len(text)) or real(text))
    drafter = make_drafter(tokenizer)
    large = "x" * documents.LARGE + PARTY
    for other in (MIXED, PARTY, f"{MIXED} {MIXED}"):
        request = make_request(tokenizer, "Who? The outrider", other, "a", large)
        assert drafter.lookup(request, [], 2).tokens == tokenizer(" rides ahead")["input_ids"]
    assert sorted(made) == sorted([len(large), len(MIXED) + 2, len(PARTY) + 2, 2 * len(MIXED) + 3])


def test_text_is_made_into_tokens_once(tokenizer: Any) -> None:
    calls: list[str] = []

    class Watched:
        is_fast = True
        decode = tokenizer.decode

        def __call__(self, text: str, **options: Any) -> Any:
            calls.append(text)
            return tokenizer(text, **options)

    drafter = make_drafter(Watched(), documents=[PARTY + "x" * 100_000])
    assert not calls
    request = make_request(tokenizer, "Who? The outrider")
    for _ in range(3):
        assert len(drafter.lookup(request, [], 8)) == 8
    assert len(calls) == 1


def test_two_megabytes_are_read_without_being_tokenised(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which would take seconds: what is not copied from is indexed by its characters alone."""
    read: list[int] = []
    make_block = LazyTokens._read

    def counted(self: LazyTokens, start: int) -> Any:
        read.append(start)
        return make_block(self, start)

    monkeypatch.setattr(LazyTokens, "_read", counted)
    text = "".join(
        f"{i} {i * i} the party of {i % 977} rides on, {i % 89} more.\n" for i in range(40_000)
    )
    assert 2_000_000 < len(text) < 2_200_000
    drafter = make_drafter(tokenizer)
    request = make_request(tokenizer, "So 39001 1521078001", text)
    tree = drafter.lookup(request, [], 24)
    assert 0 < len(read) < 10  # of some 11,000 blocks
    assert tokenizer.decode(tree.tokens).startswith(" the party of 898 r")


# ---- what is refused ----


def test_wrong_documents_are_refused(tokenizer: Any) -> None:
    with pytest.raises(ConfigError, match=r"documents\[0\] has no text"):
        make_drafter(tokenizer, documents=[""])
    with pytest.raises(ConfigError, match="needs a tokenizer"):
        make_drafter(None, documents=[PARTY])


def test_a_slow_tokenizer_is_no_silent_failure(tokenizer: Any) -> None:
    slow = SimpleNamespace(is_fast=False)
    with pytest.warns(UserWarning, match="fast tokenizer"):
        tree = make_drafter(slow).lookup(make_request(tokenizer, "x", PARTY), [], 4)
    assert len(tree) == 0


# ---- in the engine ----


def writes(ids: list[int]) -> Any:
    """A processor that has the target write these tokens."""

    def processor(path: list[int], logits: torch.Tensor) -> torch.Tensor:
        if len(path) < len(ids):
            logits[ids[len(path)]] += 1000
        return logits

    return processor


@pytest.mark.parametrize("length", [None, 10])
def test_a_copy_is_accepted(models: Models, length: int | None) -> None:
    config = {"method": "documents", "num_speculative_tokens": length}
    llm = make_llm(models.target, config)
    ids = llm.tokenizer(f"{PARTY} {MIXED}")["input_ids"]
    params = SamplingParams(
        temperature=0, max_tokens=len(ids), logits_processors=[writes(ids)], ignore_eos=True,
        documents=[{"name": "party", "text": PARTY}, f"And {MIXED}"],
    )  # fmt: skip
    [result] = run(llm, [([5, 6, 7], params)])
    [output] = result.outputs
    assert output.text == f"{PARTY} {MIXED}"
    spans = [(s.document, output.text[s.start : s.end]) for s in output.grounding or []]
    assert spans == [("party", PARTY), (1, MIXED)]
    spec = result.speculation
    assert spec.accepted == sum(output.from_draft)
    if length is not None:
        assert spec.mean_acceptance_length > 7 and spec.accepted > 0.75 * spec.drafted


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_documents_do_not_change_the_text(models: Models, temperature: float) -> None:
    plain = make_llm(models.target)
    drafted = make_llm(models.target, {"method": "documents", "num_speculative_tokens": 6})
    prompt = plain.tokenizer("one two three, one two three; the rider rides")["input_ids"]
    common = {"temperature": temperature, "seed": 3, "max_tokens": 40, "ignore_eos": True, "n": 2}
    asked = [(prompt, SamplingParams(**common))]
    expected = run(plain, asked)
    texts = [output.text for output in expected[0].outputs if output.text]
    asked.append((prompt, SamplingParams(**common, documents=[*texts, PARTY])))
    got = run(drafted, asked)
    same_results(drafted, asked, got, [*expected, *expected])
    assert got[0].speculation.drafted == 0 < got[1].speculation.drafted
    assert got[0].outputs[0].grounding is None
    for output in got[1].outputs:
        assert output.grounding is not None


def test_who_has_no_documents_is_not_looked_up(
    models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: set[bool] = set()  # whether it had any
    looks_up = DocumentsDrafter.propose

    def propose(self: DocumentsDrafter, batch: list[Request], budgets: list[int]) -> Any:
        asked.update(bool(request.documents) for request in batch)
        return looks_up(self, batch, budgets)

    monkeypatch.setattr(DocumentsDrafter, "propose", propose)
    params = [SamplingParams(max_tokens=8, ignore_eos=True, documents=own) for own in ([PARTY], [])]
    run(make_llm(models.target, {"method": "auto"}), [([5, 6, 7], each) for each in params])
    assert asked == {True}
    documents = {"method": "documents", "documents": [MIXED]}
    config = {"method": "auto", "drafters": ["suffix", documents]}
    run(make_llm(models.target, config), [([5, 6, 7], params[1])])
    assert asked == {True, False}


def test_who_has_no_documents_is_given_no_slots_for_drafts(models: Models) -> None:
    fixed = {"method": "documents", "num_speculative_tokens": 6}
    engine = make_llm(models.target, {"method": "auto", "drafters": ["suffix", "documents"]}).engine
    most = []
    for own in ([], [PARTY]):
        name = engine.add([5, 6, 7], SamplingParams(documents=own, speculation=fixed))
        most.append(engine.drafting.most(engine.jobs[name].sequences[0].request))
    assert most == [0, 6]


def test_documents_of_the_engine_are_for_all(models: Models) -> None:
    llm = make_llm(
        models.target, {"method": "documents", "num_speculative_tokens": 6}, documents=[PARTY]
    )
    ids = llm.tokenizer(f"{MIXED} {PARTY}")["input_ids"]
    common = {"temperature": 0, "max_tokens": len(ids), "logits_processors": [writes(ids)]}
    asked = [
        ([5, 6], SamplingParams(**common)),
        ([5, 6], SamplingParams(**common, documents=[MIXED])),
    ]
    without, with_own = run(llm, asked)
    assert [span.document for span in without.outputs[0].grounding or []] == [0]
    assert [span.document for span in with_own.outputs[0].grounding or []] == [1, 0]
    assert with_own.speculation.accepted > without.speculation.accepted > 20
    assert not llm.engine.drafter._sources  # type: ignore[attr-defined]


def test_two_documents_of_one_name_are_refused(models: Models) -> None:
    named = {"name": "a", "text": PARTY}
    llm = make_llm(models.target, documents=[named])
    with pytest.raises(InvalidRequest, match="two of the name 'a'"):
        run(llm, [([5], SamplingParams(documents=[named]))])


def test_documents_need_a_tokenizer(tmp_path: Any) -> None:
    folder = str(make_tiny("llama", tmp_path))
    with pytest.raises(InvalidRequest, match="documents need a tokenizer"):
        run(make_llm(folder), [([5], SamplingParams(documents=[PARTY]))])
    with pytest.raises(ConfigError, match="documents need a tokenizer"):
        make_llm(folder, documents=[PARTY])
    with pytest.raises(ConfigError, match="documents must be a list"):
        make_llm(folder, documents=PARTY)


def test_grounding_does_not_depend_on_the_drafter(models: Models) -> None:
    found = []
    for drafter in ("none", "documents"):
        llm = make_llm(models.target, drafter)
        ids = llm.tokenizer(f"Well: {PARTY}")["input_ids"]
        params = SamplingParams(
            temperature=0, max_tokens=len(ids), logits_processors=[writes(ids)], documents=[PARTY]
        )
        deltas = list(llm.stream([5, 6], params))
        assert all(delta.result is None for delta in deltas[:-1])
        found.append(deltas[-1].result.outputs[0])  # type: ignore[union-attr]
    assert first_difference(found[0].token_ids, found[1].token_ids) is None
    assert found[0].grounding == found[1].grounding and len(found[0].grounding or []) == 1
