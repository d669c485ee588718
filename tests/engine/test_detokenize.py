"""Pieces of text add up to the decoded text, whatever the tokens; stop strings end it exactly."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from outrider.engine.detokenize import LIMIT, REPLACEMENT, Detokenizer, StopChecker

SPECIAL = "<|end|>"


def byte_char(byte: int) -> str:
    """GPT-2's printable stand-in for a byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    if byte in printable:
        return chr(byte)
    return chr(256 + [b for b in range(256) if b not in printable].index(byte))


def byte_level(pieces: list[bytes]) -> Any:
    """A tokenizer with these tokens, ids in their order, and then a special token."""
    vocab: dict[str, int] = {}
    for piece in pieces:
        vocab.setdefault("".join(map(byte_char, piece)), len(vocab))
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token=None))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(SPECIAL, special=True)])
    return Wrapped(tokenizer)


class Wrapped:
    """The decode signature of transformers over a bare tokenizer, which is quick to build."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.longest = 0  # of the windows that were decoded

    def id(self, token: str) -> int:
        found = self.tokenizer.token_to_id(token)
        assert found is not None, token
        return found

    def decode(
        self, ids: list[int], skip_special_tokens: bool, clean_up_tokenization_spaces: bool = False
    ) -> str:
        self.longest = max(self.longest, len(ids))
        return self.tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)


def sentencepiece(words: list[str]) -> Wrapped:
    """Llama 2's decoder: ▁ is a space, unknown characters are bytes, the first space is dropped."""
    vocab = {f"<0x{byte:02X}>": byte for byte in range(256)}
    for word in words:
        vocab.setdefault(word, len(vocab))
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token=None))
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens([AddedToken(SPECIAL, special=True)])
    return Wrapped(tokenizer)


def run(tokenizer: Any, output: list[int], prompt: list[int], skip: bool = True) -> list[str]:
    detokenizer = Detokenizer(tokenizer, skip, prompt)
    return [*(detokenizer.push(token) for token in output), detokenizer.finish()]


@st.composite
def cut_bytes(draw: st.DrawFn, data: st.SearchStrategy[bytes]) -> list[bytes]:
    text = draw(data)
    cuts = sorted(draw(st.sets(st.integers(1, max(1, len(text) - 1)), max_size=len(text))))
    return [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)]) if a < b]


UNICODE = st.text(st.characters(exclude_categories=["Cs"]), max_size=60).map(str.encode)
FEW = st.text("aé€😀\ufffd ", max_size=80).map(str.encode)  # many characters of many bytes
BROKEN = st.lists(
    st.sampled_from([b"a", b"\xff", b"\xe2", b"\x82", b"\xac", b"\xf0", b"\x9f"]), max_size=150
).map(b"".join)


@settings(deadline=None)
@given(cut_bytes(UNICODE | FEW | BROKEN), st.integers(0, 10), st.data())
def test_byte_level_pieces_add_up(pieces: list[bytes], split: int, data: st.DataObject) -> None:
    tokenizer = byte_level(pieces)
    ids = [tokenizer.id("".join(map(byte_char, piece))) for piece in pieces]
    for _ in range(data.draw(st.integers(0, 3))):
        ids.insert(data.draw(st.integers(0, len(ids))), tokenizer.id(SPECIAL))
    prompt, output = ids[:split], ids[split:]
    skip = data.draw(st.booleans())
    assert "".join(run(tokenizer, output, prompt, skip)) == tokenizer.decode(output, skip)


@given(cut_bytes(UNICODE.filter(lambda text: REPLACEMENT.encode() not in text)))
def test_no_half_character_is_given_out(pieces: list[bytes]) -> None:
    tokenizer = byte_level(pieces)
    ids = [tokenizer.id("".join(map(byte_char, piece))) for piece in pieces]
    *pushed, rest = run(tokenizer, ids, [])
    assert not any(REPLACEMENT in piece for piece in pushed) and rest == ""


WORDS = ["▁Hello", "▁world", "▁", "▁▁", "lo", ",", "\n", "▁a"]


@settings(deadline=None)
@given(st.lists(st.sampled_from([*WORDS, "é", "😀", SPECIAL]), max_size=60), st.integers(0, 8))
def test_sentencepiece_keeps_the_spaces(words: list[str], split: int) -> None:
    tokenizer = sentencepiece(WORDS)
    ids: list[int] = []
    for word in words:
        known = tokenizer.tokenizer.token_to_id(word)
        ids += list(word.encode()) if known is None else [known]
    prompt, output = ids[:split], ids[split:]
    before = tokenizer.decode(prompt, True)
    if before.endswith(REPLACEMENT):
        return  # half a character in the prompt: the output stands alone
    text = before + "".join(run(tokenizer, output, prompt))
    assert text == tokenizer.decode(ids, True)


def test_first_word_after_a_sentencepiece_prompt_has_its_space() -> None:
    tokenizer = sentencepiece(WORDS)
    hello, world, end = (tokenizer.id(token) for token in ("▁Hello", "▁world", SPECIAL))
    assert run(tokenizer, [world], [hello]) == [" world", ""]
    assert run(tokenizer, [world], [hello, *[end] * 9]) == [" world", ""]
    assert run(tokenizer, [world], []) == ["world", ""]


def test_a_long_run_of_byte_tokens() -> None:
    """Until a character is complete, byte fallback shows its whole run as replacements."""
    tokenizer = sentencepiece(WORDS)
    text = "😀" * 40
    pieces = run(tokenizer, [tokenizer.id("▁Hello"), *text.encode()], [])
    assert pieces == ["Hello", *["", "", "", "😀"] * 40, ""]


def test_half_a_character_in_the_prompt_is_not_completed() -> None:
    tokenizer = byte_level([b"\xe2\x82", b"\xac", b"b"])
    assert "".join(run(tokenizer, [1, 2], [0])) == tokenizer.decode([1, 2], True) == "\ufffdb"


@pytest.mark.parametrize("pattern", [[0], [1], [2], [3], [0, 1], [1, 1, 0], [3, 3, 0]])
def test_the_window_is_bounded(pattern: list[int]) -> None:
    tokenizer = byte_level([b"word ", b"\xff", b"\x82\xe2"])
    ids = (pattern * 500)[:500]
    assert "".join(run(tokenizer, ids, [])) == tokenizer.decode(ids, True)
    tokenizer.longest = 0
    run(tokenizer, ids, [])
    assert tokenizer.longest <= LIMIT


def test_real_tokenizer_class() -> None:
    bare = byte_level([b"Gr", b"\xc3", b"\xbc", b"\xc3\x9fe", b" you"]).tokenizer
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bare)
    assert run(tokenizer, [0, 1, 2, 3, 5, 4], [4]) == ["Gr", "", "ü", "ße", "", " you", ""]
    assert run(tokenizer, [0, 5], [], skip=False) == ["Gr", SPECIAL, ""]


def test_without_a_tokenizer_the_text_is_empty() -> None:
    assert run(None, [1, 2, 3], [4]) == [""] * 4


# -- stop strings -----------------------------------------------------------------------------


def check(pieces: list[str], stops: list[str], include: bool = False) -> tuple[str, str | None]:
    checker = StopChecker(stops, include)
    text = ""
    for piece in pieces:
        emit, hit = checker.push(piece)
        text += emit
        if hit is not None:
            assert checker.finish() == ""
            return text, hit
    return text + checker.finish(), None


def expected(text: str, stops: list[str], include: bool) -> tuple[str, str | None]:
    for end in range(1, len(text) + 1):
        hits = [stop for stop in stops if text[:end].endswith(stop)]
        if hits:
            stop = max(hits, key=len)
            return text[: end if include else end - len(stop)], stop
    return text, None


PIECES = st.lists(st.text("ab\n", max_size=4), max_size=12)
STOPS = st.lists(st.text("ab\n", min_size=1, max_size=4), max_size=3)


@given(PIECES, STOPS, st.booleans())
def test_the_cut_does_not_depend_on_the_pieces(
    pieces: list[str], stops: list[str], include: bool
) -> None:
    assert check(pieces, stops, include) == expected("".join(pieces), stops, include)


@given(PIECES, STOPS)
def test_nothing_is_given_out_that_a_stop_string_needs(pieces: list[str], stops: list[str]) -> None:
    checker = StopChecker(stops, include=False)
    given_out, text = "", ""
    for piece in pieces:
        emit, hit = checker.push(piece)
        given_out, text = given_out + emit, text + piece
        if hit is not None:
            break
        # The text may go on with any stop string's rest, and must then end before that string.
        for stop in stops:
            for length in range(1, len(stop)):
                if text.endswith(stop[:length]):
                    assert len(given_out) <= len(text) - length
        # Nothing else waits.
        held = text[len(given_out) :]
        assert not held or any(stop.startswith(held) and stop != held for stop in stops)


def test_stop_string_over_several_tokens() -> None:
    checker = StopChecker(["\n\nQ:"], include=False)
    assert checker.push("Yes.\n") == ("Yes.", None)
    assert checker.push("\n") == ("", None)
    assert checker.push("Q") == ("", None)
    assert checker.push(": next") == ("", "\n\nQ:")
    assert checker.finish() == ""


def test_the_first_complete_stop_string_wins() -> None:
    assert check(["xx END yy STOP"], ["STOP", "END"]) == ("xx ", "END")
    assert check(["abcd"], ["abcd", "bc"]) == ("a", "bc")
    assert check(["abc"], ["bc", "abc"]) == ("", "abc")
    assert check(["ab", "c"], ["bc"], include=True) == ("abc", "bc")
