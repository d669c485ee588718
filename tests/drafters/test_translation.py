"""Token strings as bytes, tokens in common, and one model's text in another's tokens."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tiny import (
    SPECIAL,
    FastTokenizer,
    make_byte_tokenizer,
    make_spaced_tokenizer,
    make_tokenizer,
)
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from outrider.core.errors import ConfigError
from outrider.drafters.translation import (
    NONE,
    SAMPLE,
    WINDOW,
    EncodedView,
    Intersection,
    MappedView,
    compare_cuts,
    continue_ids,
    match_ids,
    whole_characters,
)
from outrider.drafters.vocabulary import Vocabulary

KINDS = ("bpe", "spaced", "byte")


def read(tokenizer: Any, width: int | None = None) -> Vocabulary:
    ids = {tokenizer.eos_token_id} - {None}
    loaded: Any = SimpleNamespace(tokenizer=tokenizer, name="a model", eos_ids=frozenset(ids))
    return Vocabulary(loaded, len(tokenizer) if width is None else width)


def byte_level(text: str, size: int) -> FastTokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=alphabet, show_progress=False, special_tokens=["</s>"]
    )
    tokenizer.train_from_iterator([text], trainer)
    return FastTokenizer(tokenizer_object=tokenizer, eos_token="</s>")


@pytest.fixture(scope="module")
def vocabularies(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Vocabulary]:
    folder = Path(tmp_path_factory.mktemp("tokenizers"))
    made = {
        "bpe": make_tokenizer(folder / "bpe"),
        "spaced": make_spaced_tokenizer(folder / "spaced"),
        "byte": make_byte_tokenizer(folder / "byte"),
        "wordy": byte_level(SAMPLE, 700),
    }
    return {name: read(tokenizer) for name, tokenizer in made.items()}


SIGNS = [*"The rider rides ahead, and report(s)\n\t<0x41>", "😀", "ü", "天", "д"]
texts = st.lists(st.sampled_from(SIGNS), max_size=40).map("".join)
common = settings(max_examples=60, deadline=None, derandomize=True)


# ---- tokens as bytes ----


@pytest.mark.parametrize("kind", KINDS)
@common
@given(text=texts)
def test_any_text_comes_back(vocabularies: Any, kind: str, text: str) -> None:
    vocabulary = vocabularies[kind]
    ids = vocabulary.encode(text.encode())
    assert vocabulary.spell(ids) == text.encode()
    assert not set(ids) & set(vocabulary.special)


@pytest.mark.parametrize("kind", KINDS)
@common
@given(text=st.binary(max_size=24))
def test_bytes_that_are_no_text_come_back(vocabularies: Any, kind: str, text: bytes) -> None:
    vocabulary = vocabularies[kind]
    assert vocabulary.spell(vocabulary.encode(text)) == text


def test_one_text_has_the_same_bytes_in_every_alphabet(vocabularies: Any) -> None:
    def piece(kind: str, name: str) -> bytes:
        return vocabularies[kind].pieces[vocabularies[kind].ids[name]]

    assert piece("bpe", "Ġride") == piece("spaced", "▁ride") == b" ride"
    assert piece("bpe", "Ċ") == piece("spaced", "<0x0A>") == b"\n"
    assert piece("byte", "ð") == piece("spaced", "<0xF0>") == b"\xf0"


def test_the_name_of_a_special_token_is_plain_text(vocabularies: Any) -> None:
    ids = vocabularies["bpe"].encode(b"a<|eos|>b")
    assert vocabularies["bpe"].spell(ids) == b"a<|eos|>b"
    assert vocabularies["bpe"].special.keys() == {0, 1, 2, 3}


def test_nothing_is_put_before_a_text_amid_others(vocabularies: Any) -> None:
    spaced = vocabularies["spaced"]
    assert spaced.prefix == [spaced.ids["<s>"]]
    assert [spaced.pieces[i] for i in spaced.encode(b"ride")] == [b"ride"]


def test_added_words_keep_their_ids(tmp_path: Path) -> None:
    tokenizer = make_tokenizer(tmp_path)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|tool|>"]})
    tokenizer.add_tokens(["outrider", "  "])
    vocabulary = read(tokenizer)
    ids = vocabulary.encode(b"an outrider<|tool|>")
    assert tokenizer.convert_tokens_to_ids("outrider") in ids
    assert vocabulary.spell(ids) == b"an outrider<|tool|>"
    assert tokenizer.convert_tokens_to_ids("<|tool|>") not in ids


def test_ids_beyond_the_models_width_do_not_exist(tmp_path: Path) -> None:
    tokenizer = make_tokenizer(tmp_path)
    tokenizer.add_tokens(["outrider"])
    vocabulary = read(tokenizer, len(tokenizer) - 1)
    assert len(vocabulary.pieces) == len(tokenizer) - 1
    assert max(vocabulary.encode(b"an outrider")) < len(tokenizer) - 1


def word_pieces() -> FastTokenizer:
    tokenizer = Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1, "##b": 2}, unk_token="[UNK]"))
    tokenizer.decoder = decoders.WordPiece()
    return FastTokenizer(tokenizer_object=tokenizer)


def undecoded() -> FastTokenizer:
    return FastTokenizer(tokenizer_object=Tokenizer(models.BPE({"a": 0}, [])))


def lower_case() -> FastTokenizer:
    tokenizer = Tokenizer(models.BPE({sign: i for i, sign in enumerate("abcdeinoprst")}, []))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.decoder = decoders.Fuse()
    return FastTokenizer(tokenizer_object=tokenizer)


def reversed_words() -> FastTokenizer:
    """Reads what it writes, but decodes a word as something that its tokens do not say."""
    tokenizer = byte_level(SAMPLE, 300)
    tokenizer.decode = lambda ids, **_: "another text"  # type: ignore[method-assign]
    return tokenizer


@pytest.mark.parametrize(
    ("tokenizer", "message"),
    [
        (word_pieces, "decodes by WordPiece"),
        (undecoded, "has no decoder"),
        (lower_case, "does not keep the text"),
        (reversed_words, "does not decode token by token"),
        (lambda: SimpleNamespace(eos_token_id=None), "without a fast backend"),
    ],
)
def test_a_tokenizer_that_is_not_understood_is_refused(tokenizer: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=f"a model .*{message}.*use a drafter with the same"):
        read(tokenizer(), 300)


# ---- tokens in common ----


def test_the_same_bytes_match(vocabularies: Any) -> None:
    bpe, spaced = vocabularies["bpe"], vocabularies["spaced"]
    matched = match_ids(bpe, spaced)
    for i, found in enumerate(matched):
        if found == NONE:
            assert bpe.pieces[i] is None or bpe.pieces[i] not in spaced.pieces
        elif i not in bpe.special:
            assert bpe.pieces[i] == spaced.pieces[found]
    assert matched[bpe.ids["Ġride"]] == spaced.ids["▁ride"]


def test_of_several_tokens_for_the_same_bytes_the_plain_one_is_meant(vocabularies: Any) -> None:
    spaced, byte = vocabularies["spaced"], vocabularies["byte"]
    assert match_ids(byte, spaced)[byte.ids["e"]] == spaced.ids["e"]
    assert match_ids(spaced, byte)[spaced.ids["<0x65>"]] == byte.ids["e"]
    assert match_ids(spaced, spaced) == list(range(spaced.width))  # but each is itself


def test_special_tokens_match_by_name_or_by_purpose(vocabularies: Any, tmp_path: Path) -> None:
    bpe, spaced = vocabularies["bpe"], vocabularies["spaced"]
    to_spaced = match_ids(bpe, spaced)
    assert to_spaced[bpe.ids["<|eos|>"]] == spaced.ids["</s>"]
    assert to_spaced[bpe.ids["<|user|>"]] == NONE
    other = make_spaced_tokenizer(tmp_path)
    other.add_special_tokens({"additional_special_tokens": ["<|user|>"]})
    other.add_tokens(["<|end|>"])  # a word that no model takes for a mark
    chatty = read(other)
    matched = match_ids(bpe, chatty)
    assert matched[bpe.ids["<|user|>"]] == chatty.ids["<|user|>"]
    assert matched[bpe.ids["<|end|>"]] == NONE


def test_two_ids_of_the_draft_model_on_one_of_the_targets_are_summed(vocabularies: Any) -> None:
    byte, spaced = vocabularies["byte"], vocabularies["spaced"]
    pair = Intersection(byte, spaced, torch.device("cpu"))
    logits = torch.randn(2, spaced.width)
    found = pair.scatter(logits).softmax(-1)  # [2, bytes]
    chances = logits.double().softmax(-1)
    covered = chances[:, [i for i, t in enumerate(pair.to_target) if t != NONE]].sum(-1)
    both = chances[:, spaced.ids["e"]] + chances[:, spaced.ids["<0x65>"]]
    assert torch.allclose(found[:, byte.ids["e"]].double(), both / covered, atol=1e-6)
    assert torch.allclose(found.sum(-1), torch.ones(2))
    assert pair.scatter(logits.bfloat16()).dtype == torch.float32


def test_what_the_draft_model_lacks_is_impossible(vocabularies: Any) -> None:
    bpe, byte = vocabularies["bpe"], vocabularies["byte"]
    pair = Intersection(bpe, byte, torch.device("cpu"))
    found = pair.scatter(torch.zeros(1, byte.width))[0]
    assert found[bpe.ids["Ġride"]] == -torch.inf
    assert found.isfinite().sum() == len(pair) == byte.width


def test_how_alike_two_tokenizers_cut(vocabularies: Any) -> None:
    wordy, byte = vocabularies["wordy"], vocabularies["byte"]
    assert compare_cuts(wordy, wordy) == (1.0, 1.0)
    alike = compare_cuts(wordy, byte)
    assert alike.common < 0.5
    assert alike.ratio > 2
    assert compare_cuts(byte, wordy).ratio == pytest.approx(1 / alike.ratio)


# ---- the text as the draft model reads it ----

PAIRS = [(a, b) for a in KINDS for b in KINDS if a != b]


@pytest.mark.parametrize("view", [MappedView, EncodedView])
@pytest.mark.parametrize(("a", "b"), PAIRS)
@settings(max_examples=25, deadline=None, derandomize=True)
@given(data=st.data())
def test_a_view_says_the_same_however_the_text_grows(
    vocabularies: Any, a: str, b: str, view: Any, data: Any
) -> None:
    target = vocabularies[a]
    pair = Intersection(target, vocabularies[b], torch.device("cpu"))
    marks = sorted(target.special)
    tokens = data.draw(st.lists(st.integers(0, target.width - 1), max_size=40))
    tokens += target.encode(data.draw(texts).encode()) + data.draw(st.sampled_from([[], marks[:1]]))
    whole = view(pair)
    whole.extend(tokens)
    grown, done = view(pair), 0
    while done < len(tokens):
        before = list(grown.ids)
        grown.changed_from = len(before)
        done = min(len(tokens), done + data.draw(st.integers(1, 7)))
        grown.extend(tokens[:done])
        assert grown.ids[: grown.changed_from] == before[: grown.changed_from]
        text = target.spell(token for token in tokens[:done] if token not in target.special)
        assert _text_of(grown) == text
    assert _text_of(whole) == _text_of(grown)
    if view is MappedView:
        assert whole.ids == grown.ids


def _text_of(view: Any) -> bytes:
    """Without names of special tokens that were read as text."""
    text = view.pair.draft.spell(view.ids)
    for name in (*SPECIAL[1:], "<unk>"):
        text = text.replace(name.encode(), b"")
    return text


def test_a_growing_text_is_cut_as_if_it_had_come_at_once(vocabularies: Any) -> None:
    byte, wordy = vocabularies["byte"], vocabularies["wordy"]
    view = EncodedView(Intersection(byte, wordy, torch.device("cpu")))
    tokens = byte.encode(SAMPLE.encode())
    touched = []
    for end in range(1, len(tokens) + 1):
        view.changed_from = len(view.ids)
        view.extend(tokens[:end])
        touched.append(len(view.ids) - view.changed_from)
    assert view.ids == wordy.encode(SAMPLE.encode())
    assert max(touched) < 2 * WINDOW  # the text before is left alone


def test_what_the_draft_model_cannot_write_is_read_once(vocabularies: Any) -> None:
    """`▁` is how this one writes a space, so the sign itself is lost on it."""
    byte, spaced = vocabularies["byte"], vocabularies["spaced"]
    view = EncodedView(Intersection(byte, spaced, torch.device("cpu")))
    tokens = byte.encode("a▁ ride".encode())
    for end in range(1, len(tokens) + 1):
        view.extend(tokens[:end])
    assert spaced.spell(view.ids) == b"a  ride"


def test_a_text_starts_with_what_the_draft_model_expects(vocabularies: Any) -> None:
    bpe, spaced = vocabularies["bpe"], vocabularies["spaced"]
    ours = Intersection(bpe, spaced, torch.device("cpu"))
    assert MappedView(ours).ids == EncodedView(ours).ids == [spaced.ids["<s>"]]
    # A target that has a start of its own shows by its text whether there is one.
    view = MappedView(Intersection(spaced, spaced, torch.device("cpu")))
    assert view.ids == []
    view.extend([spaced.ids["<s>"], spaced.ids["▁ride"]])
    assert view.ids == [spaced.ids["<s>"], spaced.ids["▁ride"]]


def test_marks_without_a_counterpart_are_read_by_name_starts_and_ends_not_at_all(
    vocabularies: Any,
) -> None:
    bpe, spaced, byte = (vocabularies[kind] for kind in KINDS)
    for kind in (MappedView, EncodedView):
        view = kind(Intersection(bpe, byte, torch.device("cpu")))
        view.extend([bpe.ids["<|user|>"], bpe.ids["a"], bpe.ids["<|eos|>"]])
        assert byte.spell(view.ids) == b"<|user|>a"
        assert view.ids[-1] == byte.ids["<|stop|>"]
        view = kind(Intersection(spaced, byte, torch.device("cpu")))
        view.extend([spaced.ids["<s>"], spaced.ids["a"]])
        assert view.ids == [byte.ids["a"]]


# ---- the draft in the target's tokens ----


@pytest.mark.parametrize("kind", [*KINDS, "wordy"])
def test_a_drafter_that_knows_the_text_is_right(vocabularies: Any, kind: str) -> None:
    """Whatever was written so far, up to the end of a word."""
    target = vocabularies[kind]
    text = SAMPLE.encode()
    tokens = target.encode(text)
    words = [found.end() for found in re.finditer(rb"\w(?= \w)", text)]
    for done in range(1, len(tokens)):
        start = len(target.spell(tokens[:done]))
        ends = [end for end in words if end > start + 8]
        if ends:
            found = continue_ids(target, tokens[:done], text[start : ends[0]])
            assert found
            assert found == tokens[done : done + len(found)]


def test_a_draft_that_would_change_committed_tokens_is_dropped(vocabularies: Any) -> None:
    bpe = vocabularies["bpe"]
    committed = [bpe.ids["Ġa"], bpe.ids["Ġride"]]
    assert bpe.encode(b" a rider") == [bpe.ids["Ġa"], bpe.ids["Ġrider"]]
    assert continue_ids(bpe, committed, b"r") == []
    assert continue_ids(bpe, committed, b" on") == bpe.encode(b" on")


def test_tokens_that_no_tokenizer_would_write_are_looked_past(vocabularies: Any) -> None:
    bpe = vocabularies["bpe"]
    odd = [bpe.ids["Ġ"], bpe.ids["r"], bpe.ids["i"]]  # " ri" is one token
    assert bpe.encode(b" ri") != odd
    committed = [*odd, *bpe.encode(b", one two,")]
    assert continue_ids(bpe, committed, b" ahead") == bpe.encode(b" ahead")
    marked = [*odd, bpe.ids["<|user|>"]]
    assert continue_ids(bpe, marked, b"ahead") == bpe.encode(b"ahead")


@common
@given(text=texts, cut=st.integers(0, 60))
def test_half_a_character_is_cut_off(text: str, cut: int) -> None:
    data = text.encode()[:cut]
    assert whole_characters(data) == data.decode(errors="ignore").encode()
