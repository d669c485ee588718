"""Token ids to text, one token at a time, and the search for stop strings in that text."""

from typing import Any

REPLACEMENT = "\ufffd"  # what a decoder writes for bytes that are not (yet) a character
CONTEXT = 4  # tokens kept before the newest ones, at least
WINDOW = 16  # tokens after which the window is cut at a clean boundary
LIMIT = 64  # tokens after which it is cut anywhere: only text that never was UTF-8 comes this far


class Detokenizer:
    """Text of the output, as it grows.

    All pieces together are `decode(prompt + output)` without `decode(prompt)`. Where a token's
    text does not depend on its left neighbour (byte-level BPE) that is `decode(output)`; where
    it does (sentencepiece drops the space of the first word) the space is kept.

    A token's text may depend on the tokens before it, so a window of recent tokens is decoded
    as a whole and only what lies behind the characters already given out is new. The window
    has bounded length, hence each token costs the same however long the text is. It starts where a
    character starts: cut elsewhere, it would decode to other characters.
    """

    def __init__(self, tokenizer: Any, skip_special_tokens: bool, prompt_ids: list[int]) -> None:
        self._tokenizer = tokenizer  # anything with transformers' decode; None: text stays empty
        self._skip_special = skip_special_tokens
        self._window: list[int] = []
        self._text = ""  # of the window
        self._given = 0  # characters of it already given out
        self._clean: list[int] = []  # window indices where a character starts
        if tokenizer is not None:
            self._start(prompt_ids)

    def _start(self, prompt_ids: list[int]) -> None:
        size = CONTEXT
        # Without text (skipped tokens) or cut inside a run of bytes the context would mislead.
        while not _whole(text := self._decode(prompt_ids[-size:])) and size < len(prompt_ids):
            size *= 2
        # Half a character at the prompt's end belongs to the prompt: the output stands alone then.
        if not text.endswith(REPLACEMENT):
            self._keep(prompt_ids[-size:], text)

    def _decode(self, ids: list[int]) -> str:
        # Clean-up ("do n't" -> "don't") would rewrite text that was already given out.
        return self._tokenizer.decode(
            ids, skip_special_tokens=self._skip_special, clean_up_tokenization_spaces=False
        )

    def push(self, token_id: int) -> str:
        """The text that this token completes, often its own, sometimes none."""
        if self._tokenizer is None:
            return ""
        self._window.append(token_id)
        before, self._text = self._text, self._decode(self._window)
        if self._text == before and _whole(before):
            self._window.pop()  # a skipped token: any number of them must not fill the window
            return ""
        settled = self._text.rstrip(REPLACEMENT)  # more bytes may turn the rest into a character
        full = len(self._window) >= LIMIT
        if settled == self._text:
            self._clean.append(len(self._window))
        elif full:
            settled = self._text.removesuffix(REPLACEMENT)
        piece = settled[self._given :]
        self._given = max(self._given, len(settled))
        # In the middle of a character the text may be shorter or longer than it will be.
        if full or (len(self._window) >= WINDOW and settled == self._text):
            self._shorten()
        return piece

    def read(self, token_ids: list[int]) -> str:
        """The same of several."""
        return "".join(map(self.push, token_ids))

    def _shorten(self) -> None:
        """Drop old tokens, where a character starts and what stays has text."""
        latest = len(self._window) - CONTEXT
        for cut in reversed(self._clean):
            if cut <= latest and (text := self._decode(self._window[cut:])):
                self._keep(self._window[cut:], text)
                return
        if len(self._window) >= LIMIT:
            self._keep(self._window[latest:], self._decode(self._window[latest:]))

    def _keep(self, window: list[int], text: str) -> None:
        """Go on with this window; as many characters as before are still to be given out."""
        pending = len(self._text) - self._given
        dropped = len(self._window) - len(window)
        self._window, self._text, self._given = list(window), text, len(text) - pending
        self._clean = [index - dropped for index in self._clean if index > dropped]

    def finish(self) -> str:
        """What was held back, at the end of the text: bytes that never became a character."""
        if self._tokenizer is None:
            return ""
        piece = self._text[self._given :]
        self._given += len(piece)
        return piece


def _whole(text: str) -> bool:
    return bool(text) and not text.endswith(REPLACEMENT)


class StopChecker:
    """Ends a text at the first stop string, as if the text came one character at a time.

    The stop string that is complete first wins; of several that end together, the longest. So
    the result does not depend on how the text was cut into pieces. A tail that may become a stop
    string is held back, hence no part of one is ever given out.
    """

    def __init__(self, stops: list[str], include: bool) -> None:
        self._stops = stops
        self._include = include  # keep the stop string itself in the text
        self._held = ""
        self._longest = max(map(len, stops), default=0)

    def push(self, text: str) -> tuple[str, str | None]:
        """The text that may be shown now, and the stop string if one is complete.

        After a stop string nothing is held back; the text behind it is dropped.
        """
        if not self._stops:
            return text, None
        text = self._held + text
        self._held = ""
        ends = [(start + len(stop), -len(stop), stop) for stop, start in self._found(text)]
        if ends:
            end, _, stop = min(ends)
            return text[: end if self._include else end - len(stop)], stop
        keep = self._possible_start(text)
        if keep:
            text, self._held = text[:-keep], text[-keep:]
        return text, None

    def _found(self, text: str) -> list[tuple[str, int]]:
        return [(stop, start) for stop in self._stops if (start := text.find(stop)) >= 0]

    def _possible_start(self, text: str) -> int:
        """Length of the longest tail of the text with which a stop string begins."""
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            tail = text[-length:]
            if any(stop.startswith(tail) for stop in self._stops):
                return length
        return 0

    def finish(self) -> str:
        """What was held back, at the end of the text."""
        text, self._held = self._held, ""
        return text
