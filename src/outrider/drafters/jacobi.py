"""The two memories of lookahead decoding: texts under way some places ahead, and n-grams."""

from collections.abc import Callable

from outrider.sampling.choose import NO_TOKEN

Ngram = tuple[int, ...]


class Window:
    """Columns of tokens, each a short text that the target is writing some places ahead.

    Column j starts j places after the next token of a text of `length` tokens. Its past are the
    first tokens of the columns before it: guesses, mostly wrong at first, but what the target
    writes after a wrong past is often right further on.
    """

    def __init__(self, height: int, length: int) -> None:
        self.height = height  # of every column
        self.length = length
        self.columns: list[list[int]] = []
        self.written: list[int] = []  # how many tokens at a column's end follow from each other

    def move_to(self, length: int) -> None:
        """The text has grown, perhaps by more than the window knows of."""
        grown = length - self.length
        del self.columns[:grown], self.written[:grown]
        self.length = length

    def fill(self, width: int, any_token: Callable[[], int]) -> None:
        """New columns on the right. A new one takes over what the one before it has for the same
        places, and needs some token for its last."""
        while len(self.columns) < width:
            known = self.columns[-1][1:] if self.columns else []
            missing = self.height - len(known)
            self.columns.append(known + [any_token() for _ in range(missing)])
            self.written.append(1)

    def write(self, tokens: list[int]) -> list[Ngram]:
        """The target's token after each of the first columns; the n-grams that are complete.

        The window moves on by one place, as the text does: every column loses its first token.
        Columns that were not asked about are out of date, and go.
        """
        ngrams = []
        del self.columns[len(tokens) :], self.written[len(tokens) :]
        for j, (column, token) in enumerate(zip(self.columns, tokens, strict=True)):
            if token == NO_TOKEN:  # nothing can follow here
                column.append(column.pop(0))
                self.written[j] = 1
                continue
            if self.written[j] == self.height:
                ngrams.append((*column, token))
            column.append(token)
            del column[0]
            self.written[j] = min(self.written[j] + 1, self.height)
        self.length += 1
        return ngrams


class NgramPool:
    """n-grams by their first token: at most so many each, the least recently found are dropped."""

    def __init__(self, size: int, most: int) -> None:
        self.size = size
        self.most = most
        self._found: dict[int, dict[Ngram, None]] = {}  # first token -> the rest, newest last
        self._read = 0  # tokens of the text that have been the first of an n-gram

    def add(self, ngram: Ngram) -> None:
        found = self._found.setdefault(ngram[0], {})
        found.pop(ngram[1:], None)
        found[ngram[1:]] = None
        if len(found) > self.most:
            del found[next(iter(found))]

    def read(self, tokens: list[int], start: int = 0) -> None:
        """Add what is new in a text that only ever grows."""
        first = max(start, self._read)
        self._read = max(first, len(tokens) - self.size + 1)
        for i in range(first, self._read):
            self.add(tuple(tokens[i : i + self.size]))

    def after(self, token: int) -> list[Ngram]:
        """What has followed, newest first."""
        return list(reversed(self._found.get(token, {})))
