"""Where the end of a text has stood before, found without a scan."""

from array import array
from collections import deque
from collections.abc import Sequence

TOKEN_BITS = 32
NOWHERE = -1
SEPARATOR = -1  # between the texts of an archive; equals no token

Matches = dict[int, int]  # the place of the token that comes next -> tokens that agree before it


class Occurrences:
    """An index over a growing text (the *source*): the ends of equal n-grams, linked newest first.

    Places are counted from the first token that was ever indexed. The source may lose tokens at its
    front: `start` is the place of its first token now, and nothing below `first` is found any more.
    """

    def __init__(self, gram: int, most: int, longest: int, start: int = 0) -> None:
        self.gram = gram  # the n of the n-grams, the least length of a match that is found
        self.most = most  # matches at a time
        self.longest = longest  # the length that longer matches are said to have
        self.start = start
        self.first = start
        self._mask = (1 << TOKEN_BITS * gram) - 1
        self._newest: dict[int, int] = {}  # n-gram as one number -> the place where it ended last
        self._older = array("q")  # per token of the source: where its n-gram ended the time before
        self._last = self._mask  # the n-gram that was indexed last; at first like no other

    def extend(self, source: Sequence[int], end: int) -> None:
        """Index the source up to the offset `end`, each token once."""
        gram, mask, newest, older = self._last, self._mask, self._newest, self._older
        for offset in range(len(older), end):
            gram = (gram << TOKEN_BITS | source[offset]) & mask
            older.append(newest.get(gram, NOWHERE))
            newest[gram] = self.start + offset
        self._last = gram

    def following(
        self, matches: Matches, source: Sequence[int], text: Sequence[int], end: int
    ) -> Matches:
        """The matches of text[: end + 1], given those of text[:end].

        Those that go on come first: they are the longest, though perhaps not the latest. Then come
        the latest places where the n-gram stood; their lengths are counted backwards.
        """
        start, first, longest, token = self.start, self.first, self.longest, text[end]
        limit = min(longest, end + 1)
        found = {
            place + 1: length + 1 if length < longest else longest
            for place, length in matches.items()
            if place >= first and source[place - start] == token
        }
        place = self._newest.get(self._gram_at(text, end), NOWHERE)
        while place >= first and len(found) < self.most:
            offset = place - start
            if place + 1 not in found:
                length = self.gram
                while (
                    length < limit
                    and length <= offset
                    and source[offset - length] == text[end - length]
                ):
                    length += 1
                found[place + 1] = length
            place = self._older[offset]
        return found

    def _gram_at(self, text: Sequence[int], end: int) -> int:
        if end + 1 < self.gram:
            return NOWHERE
        gram = text[end]
        for back in range(1, self.gram):
            gram |= text[end - back] << TOKEN_BITS * back
        return gram

    def forget(self, source: Sequence[int], end: int) -> None:
        """Nothing below the place `end` is found any more. A separator stands before it."""
        gram = self._mask
        for place in range(self.first, end):
            gram = (gram << TOKEN_BITS | source[place - self.start]) & self._mask
            if self._newest.get(gram) == place:
                del self._newest[gram]
        self.first = end

    def trim(self) -> int:
        """Drop the links of what is forgotten; the number of tokens that the source must drop."""
        dropped = self.first - self.start
        del self._older[:dropped]
        self.start = self.first
        return dropped


class Archive:
    """The latest texts one after another, and an index over all of them."""

    def __init__(self, index: Occurrences, most_texts: int, most_tokens: int) -> None:
        self.index = index
        self.tokens = array("i")
        self.most_texts = most_texts
        self.most_tokens = most_tokens
        self._ends: deque[int] = deque()  # per text, oldest first: the place after its separator

    def __len__(self) -> int:
        return len(self._ends)

    @property
    def size(self) -> int:
        """Tokens of the texts that are kept, separators included."""
        return len(self.tokens) - (self.index.first - self.index.start)

    def add(self, text: Sequence[int]) -> None:
        """Keep this text, and forget the oldest ones if they are too many or too long."""
        self.tokens.extend(text[-(self.most_tokens - 1) :])
        self.tokens.append(SEPARATOR)
        self.index.extend(self.tokens, len(self.tokens))
        self._ends.append(self.index.start + len(self.tokens))
        while len(self) > self.most_texts or self.size > self.most_tokens:
            self.index.forget(self.tokens, self._ends.popleft())
        # Moving what is left takes time, so it waits until as much again can be dropped.
        if 2 * self.size < len(self.tokens):
            del self.tokens[: self.index.trim()]

    def clear(self) -> None:
        """Forget all texts. Places go on being counted: old ones are not found among new texts."""
        old, end = self.index, self.index.start + len(self.tokens)
        self.index = Occurrences(old.gram, old.most, old.longest, start=end)
        self.tokens = array("i")
        self._ends.clear()

    def following(self, matches: Matches, text: Sequence[int], end: int) -> Matches:
        return self.index.following(matches, self.tokens, text, end)

    def continuation(self, place: int, count: int) -> Sequence[int]:
        """What follows from a place on, in the same text; nothing if it has been forgotten."""
        if place < self.index.first:
            return ()
        offset = place - self.index.start
        tokens = self.tokens[offset : offset + count]
        return tokens[: tokens.index(SEPARATOR)] if SEPARATOR in tokens else tokens
