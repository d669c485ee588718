"""What a model's token ids stand for, and whether two models mean the same by them."""

import json
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable
from itertools import takewhile
from typing import Any

from tokenizers import Tokenizer

from outrider.core.errors import ConfigError
from outrider.model.loading import LoadedModel

BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")  # how sentencepiece names a byte it has no token for
BROKEN = re.compile("[\udc80-\udcff]+")  # bytes that are no UTF-8, as `surrogateescape` shows them
# Any tokenizer of text must spell this and read it back.
PLAIN = "The rider rides ahead,\n    and returns 12 reports (one per mile): if a > b: go(on)\n"
READABLE = {"ByteLevel", "ByteFallback", "Fuse", "Metaspace", "Replace", "Strip"}
Steps = list[dict[str, Any]]


def same_vocabulary(
    target: LoadedModel, draft: LoadedModel, target_width: int, draft_width: int
) -> bool:
    """Equal sizes prove nothing, so the entries are compared. Padding at the end is allowed."""
    if target.tokenizer is None or draft.tokenizer is None:
        if target_width != draft_width:
            raise ConfigError(
                f"draft model {draft.name} has {draft_width} token ids and {target.name} "
                f"{target_width}, and without both tokenizers they cannot be matched; "
                "use a drafter of the same family"
            )
        return True
    return bool(target.tokenizer.get_vocab() == draft.tokenizer.get_vocab())


def check_same_vocabulary(
    target: LoadedModel, draft: LoadedModel, target_width: int, draft_width: int
) -> None:
    """For drafters whose ids are the target's as they are."""
    if same_vocabulary(target, draft, target_width, draft_width):
        return
    ours, theirs = target.tokenizer.get_vocab(), draft.tokenizer.get_vocab()  # type: ignore[union-attr]
    differing = [token for token, i in ours.items() if theirs.get(token) != i]
    differing += [token for token in theirs if token not in ours]
    raise ConfigError(
        f"draft model {draft.name} has another vocabulary than {target.name}: {len(differing)} "
        f"entries differ, e.g. {differing[0]!r}; use a drafter with the same tokenizer"
    )


class Vocabulary:
    """One model's tokens as bytes, and text as its tokens.

    Bytes, because a token may hold a part of a character, and because tokenizers write the same
    text in different alphabets: `Ġthe` and `▁the`, `Ċ` and `<0x0A>`. Special tokens (those that no
    text can contain, such as the end) have a name and no bytes.
    """

    def __init__(self, loaded: LoadedModel, width: int) -> None:
        tokenizer: Any = loaded.tokenizer
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if tokenizer is None:
            raise ConfigError(f"{loaded.name} has no tokenizer, so its tokens cannot be translated")
        if backend is None:
            kind = type(tokenizer).__name__
            raise _unreadable(loaded.name, f"is a {kind} without a fast backend")
        added = backend.get_added_tokens_decoder()
        marks = {i for i, token in added.items() if token.special} | {*tokenizer.all_special_ids}
        spelled = _speller(_steps(backend.decoder, "decoders"), loaded.name)
        self.width = width
        self.pieces: list[bytes | None] = [None] * width  # None: special, or without any text
        self.ids: dict[str, int] = {}  # by the tokenizer's own spelling
        self.special: dict[int, str] = {}
        self.id_of: dict[bytes, int] = {}  # of several tokens for the same bytes, the plainest
        ranks: dict[bytes, int] = {}
        for name, i in tokenizer.get_vocab().items():
            if i >= width:
                continue
            self.ids[name] = i
            if i in marks:
                self.special[i] = name
                continue
            piece = self.pieces[i] = name.encode() if i in added else spelled(name)
            rank = 2 if i in added else 1 if BYTE.fullmatch(name) else 0
            if piece and rank < ranks.get(piece, 3):
                self.id_of[piece], ranks[piece] = i, rank
        self._longest = max(map(len, self.id_of), default=0)
        self._sorted = sorted(self.id_of)
        self._encoder, self._renumbered = _encoder(backend, added)
        self.ends = self._present([tokenizer.eos_token_id, *sorted(loaded.eos_ids)])
        self.starts = self._present([tokenizer.bos_token_id])
        self.prefix = self._check(loaded)  # the special ids that stand before every text

    def _present(self, ids: Iterable[int | None]) -> list[int]:
        return [i for i in dict.fromkeys(ids) if i in self.special]

    def _check(self, loaded: LoadedModel) -> list[int]:
        """Our reading must agree with the tokenizer's own; what it puts before a text."""
        tokenizer: Any = loaded.tokenizer
        ids = tokenizer(PLAIN)["input_ids"]
        text = [i for i in ids if i not in self.special and i < self.width]
        decoded = tokenizer.decode(text, clean_up_tokenization_spaces=False).encode()
        # Sentencepiece puts a space before a text and takes it off again.
        if self.spell(text) not in (decoded, b" " + decoded):
            raise _unreadable(loaded.name, "does not decode token by token")
        if self.spell(self.encode(PLAIN.encode())) != PLAIN.encode():
            raise _unreadable(loaded.name, "does not keep the text as it is")
        return list(takewhile(self.special.__contains__, ids))

    def spell(self, ids: Iterable[int]) -> bytes:
        """The bytes of some tokens; special ones have none."""
        return b"".join(self.pieces[i] or b"" for i in ids)

    def goes_on(self, piece: bytes) -> bool:
        """Whether there is a longer token that begins like this."""
        at = bisect_right(self._sorted, piece)
        return at < len(self._sorted) and self._sorted[at].startswith(piece)

    def encode(self, text: bytes) -> list[int]:
        """The tokens of a text as it stands amid others: no prefix, no special tokens.

        What is not UTF-8, such as half a character at either end, is put together from the longest
        tokens that fit; a byte without a token is left out.
        """
        marked = text.decode("utf-8", "surrogateescape")
        ids: list[int] = []
        start = 0
        for broken in BROKEN.finditer(marked):
            ids += self._encode_text(marked[start : broken.start()])
            ids += self._longest_matches(broken[0].encode("utf-8", "surrogateescape"))
            start = broken.end()
        return ids + self._encode_text(marked[start:])

    def _encode_text(self, text: str) -> list[int]:
        if not text:
            return []
        found = self._encoder.encode(text, add_special_tokens=False).ids
        ids = (self._renumbered.get(i, i) for i in found)
        return [i for i in ids if i < self.width]

    def _longest_matches(self, data: bytes) -> list[int]:
        ids: list[int] = []
        while data:
            size = min(self._longest, len(data))
            while size > 0 and data[:size] not in self.id_of:
                size -= 1
            if size:
                ids.append(self.id_of[data[:size]])
            data = data[max(size, 1) :]
        return ids


def _unreadable(name: str, reason: str) -> ConfigError:
    return ConfigError(
        f"the tokenizer of {name} {reason}, so its tokens cannot be translated; "
        "use a drafter with the same tokenizer"
    )


def _steps(part: Any, inner: str) -> Steps:
    """A tokenizer's normalizer or decoder by its own account, sequences opened."""
    return [] if part is None else _opened(json.loads(part.__getstate__()), inner)


def _opened(step: dict[str, Any], inner: str) -> Steps:
    if step["type"] == "Sequence":
        return [found for part in step[inner] for found in _opened(part, inner)]
    return [step]


def _speller(decoder: Steps, name: str) -> Callable[[str], bytes]:
    """From a token's spelling to its bytes, as the tokenizer's decoder would do it."""
    kinds = {step["type"] for step in decoder}
    if unknown := sorted(kinds - READABLE):
        raise _unreadable(name, f"decodes by {', '.join(unknown)}")
    if not kinds:
        raise _unreadable(name, "has no decoder")
    swaps = [(step["replacement"], " ") for step in decoder if step["type"] == "Metaspace"]
    for step in decoder:
        if step["type"] == "Replace":
            if "String" not in step["pattern"]:
                raise _unreadable(name, "decodes by a regular expression")
            swaps.append((step["pattern"]["String"], step["content"]))
    alphabet = _byte_alphabet()

    def spelled(token: str) -> bytes:
        if "ByteFallback" in kinds and (byte := BYTE.fullmatch(token)):
            return bytes([int(byte[1], 16)])
        for old, new in swaps:
            token = token.replace(old, new)
        if "ByteLevel" in kinds and all(char in alphabet for char in token):
            return bytes([alphabet[char] for char in token])
        return token.encode()

    return spelled


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's: a printable byte stands for itself, the others follow from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    signs = [*map(chr, printable), *(chr(0x100 + i) for i in range(len(others)))]
    return dict(zip(signs, printable + others))


def _encoder(backend: Tokenizer, added: dict[int, Any]) -> tuple[Tokenizer, dict[int, int]]:
    """The tokenizer for text amid text: it adds nothing, changes no character, and reads the name
    of a special token as the plain text it is. Shares its vocabulary with the original; ids that
    it numbers otherwise come with the right ones.
    """
    normalizer = [
        step
        for step in _steps(backend.normalizer, "normalizers")
        if step["type"] == "Replace" and "String" in step["pattern"]
    ]
    shell = {
        "model": {"type": "BPE", "vocab": {}, "merges": []},
        "normalizer": {"type": "Sequence", "normalizers": normalizer} if normalizer else None,
        "pre_tokenizer": _pre_tokenizer(backend),
    }
    encoder = Tokenizer.from_str(json.dumps(shell))
    encoder.model = backend.model
    plain = {i: token for i, token in added.items() if not token.special}
    encoder.add_tokens(list(plain.values()))
    numbered = encoder.get_vocab()
    return encoder, {numbered[token.content]: i for i, token in plain.items()}


def _pre_tokenizer(backend: Tokenizer) -> dict[str, Any] | None:
    if backend.pre_tokenizer is None:
        return None
    step: dict[str, Any] = json.loads(backend.pre_tokenizer.__getstate__())
    return _without_prefix(step)


def _without_prefix(step: dict[str, Any]) -> dict[str, Any]:
    """A pre-tokenizer that does not put a space before the text."""
    changed = dict(step)
    if "pretokenizers" in step:
        changed["pretokenizers"] = [_without_prefix(part) for part in step["pretokenizers"]]
    if "add_prefix_space" in step:
        changed["add_prefix_space"] = False
    if "prepend_scheme" in step:
        changed["prepend_scheme"] = "never"
    return changed
