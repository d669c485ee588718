"""Bytes looked up give the text that the tokenizer gives, for any tokens in any order."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.test_detokenize import SPECIAL, byte_level, sentencepiece
from tests.tiny import make_tokenizer

from outrider.engine.byte_pieces import ByteDetokenizer, byte_pieces

PIECES = [bytes([b]) for b in range(256)] + ["né".encode(), b" the", "🙂".encode()[:3]]


class Fast:
    """What transformers makes of a tokenizer, as far as it matters here."""

    def __init__(self, wrapped: Any) -> None:
        self.backend_tokenizer = wrapped.tokenizer
        self.decode = wrapped.decode


TOKENIZER = Fast(byte_level(PIECES))
COUNT = TOKENIZER.backend_tokenizer.get_vocab_size()


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(0, COUNT + 2), max_size=24), st.booleans())
def test_pieces_add_up_to_the_decoded_text(ids: list[int], skip: bool) -> None:
    pieces = byte_pieces(TOKENIZER)
    assert pieces is not None
    detokenizer = ByteDetokenizer(pieces, skip)
    text = "".join(map(detokenizer.push, ids)) + detokenizer.finish()
    assert text == TOKENIZER.decode(ids, skip_special_tokens=skip)


def test_half_a_character_waits() -> None:
    pieces = byte_pieces(TOKENIZER)
    assert pieces is not None
    detokenizer = ByteDetokenizer(pieces, skip_special_tokens=True)
    assert [detokenizer.push(byte) for byte in "é!".encode()] == ["", "é", "!"]
    assert detokenizer.push(0xC3) == "" and detokenizer.finish() == "\ufffd"


def test_special_tokens_are_skipped_or_shown() -> None:
    pieces = byte_pieces(TOKENIZER)
    assert pieces is not None
    end = TOKENIZER.backend_tokenizer.token_to_id(SPECIAL)
    assert ByteDetokenizer(pieces, True).push(end) == ""
    assert ByteDetokenizer(pieces, False).push(end) == SPECIAL


@pytest.mark.parametrize("tokenizer", [None, Fast(sentencepiece(["▁a", "b"])), object()])
def test_other_kinds_are_left_to_the_tokenizer(tokenizer: Any) -> None:
    assert byte_pieces(tokenizer) is None


def test_a_tokenizer_that_decodes_otherwise_is_left_alone() -> None:
    odd = Fast(byte_level(PIECES))
    decode = odd.decode
    odd.decode = lambda ids, **options: decode(ids, **options).upper()
    assert byte_pieces(odd) is None


def test_the_tiny_tokenizer_is_of_this_kind(tmp_path: Any) -> None:
    assert byte_pieces(make_tokenizer(tmp_path)) is not None
