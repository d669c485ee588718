"""Text of byte-level tokenizers: every token is some bytes, whatever stands beside it.

Most of today's models have such a tokenizer. Looking bytes up is some ten times faster than
decoding a window of tokens, which with many requests at once takes as long as a pass on a GPU.
"""

import codecs
import random
from typing import Any

from tokenizers.decoders import ByteLevel
from tokenizers.pre_tokenizers import ByteLevel as Alphabet

TRIALS = 64  # random texts that must decode as the tokenizer itself decodes them
LENGTH = 8  # tokens of each


class BytePieces:
    """The bytes of each token id, and which ids are special."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend  # tokenizers.Tokenizer
        self._known: dict[int, bytes] = {}
        added = backend.get_added_tokens_decoder()
        self.special = frozenset(i for i, token in added.items() if token.special)

    def __getitem__(self, token_id: int) -> bytes:
        piece = self._known.get(token_id)
        if piece is None:
            piece = self._known[token_id] = _bytes_of(self._backend.id_to_token(token_id))
        return piece

    def decode(self, ids: list[int], skip_special: bool) -> str:
        kept = (i for i in ids if not (skip_special and i in self.special))
        return b"".join(self[i] for i in kept).decode("utf-8", errors="replace")


def byte_pieces(tokenizer: Any) -> BytePieces | None:
    """None for tokenizers of another kind, and where the bytes do not give the tokenizer's text."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None or not isinstance(backend.decoder, ByteLevel):
        return None
    pieces = BytePieces(backend)
    rng, size = random.Random(0), backend.get_vocab_size()
    for trial in range(TRIALS):
        ids, skip = rng.choices(range(size), k=LENGTH), bool(trial % 2)
        text = tokenizer.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False)
        if text != pieces.decode(ids, skip):
            return None
    return pieces


class ByteDetokenizer:
    """As `Detokenizer`: text of the output, as it grows."""

    def __init__(self, pieces: BytePieces, skip_special_tokens: bool) -> None:
        self._pieces = pieces
        self._skipped = pieces.special if skip_special_tokens else frozenset()
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> str:
        """The text that this token completes; half a character waits for its other half."""
        return "" if token_id in self._skipped else self._decoder.decode(self._pieces[token_id])

    def read(self, token_ids: list[int]) -> str:
        """The same of several: one look at their bytes."""
        pieces, skipped = self._pieces, self._skipped
        return self._decoder.decode(b"".join([pieces[i] for i in token_ids if i not in skipped]))

    def finish(self) -> str:
        return self._decoder.decode(b"", final=True)


def _alphabet() -> dict[str, int]:
    """GPT-2's printable stand-ins: bytes that print stand for themselves, the others follow."""
    own = [b for b in range(256) if chr(b) in set(Alphabet.alphabet())]
    others = [b for b in range(256) if b not in own]
    return {chr(b): b for b in own} | {chr(256 + i): b for i, b in enumerate(others)}


_BYTES = _alphabet()


def _bytes_of(token: str | None) -> bytes:
    """A token with any other character (an added one) stands for itself; no token, for nothing."""
    if token is None:
        return b""
    try:
        return bytes(_BYTES[character] for character in token)
    except KeyError:
        return token.encode()
