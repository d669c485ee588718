"""Prompt lookup: what followed the last time the text ended like this."""

from outrider.core.errors import ConfigError
from outrider.core.request import Request
from outrider.core.tree import TokenTree
from outrider.drafters.base import DraftConfig
from outrider.drafters.lookup import LookupDrafter
from outrider.model.loading import LoadedModel

Key = tuple[int, ...]


class NgramIndex:
    """Where each n-gram of one text ended last. Tokens are indexed once, never scanned again."""

    def __init__(self, shortest: int, longest: int) -> None:
        self.lengths = range(longest, shortest - 1, -1)
        self._last_end: dict[Key, int] = {}
        self._indexed = 0  # tokens that have been the last token of an indexed n-gram

    def extend(self, tokens: list[int]) -> None:
        # The n-grams that end at the text's last token stay out: nothing follows them yet, and a
        # lookup would find the text's own end.
        for end in range(self._indexed, len(tokens) - 1):
            for n in self.lengths:
                if n <= end + 1:
                    self._last_end[tuple(tokens[end + 1 - n : end + 1])] = end
        self._indexed = max(self._indexed, len(tokens) - 1)

    def continuation(self, tokens: list[int], count: int) -> tuple[list[int], int]:
        """What followed, and the length of the match. Longest match first, the most recent among
        equals; a match near the end repeats."""
        for n in self.lengths:
            end = self._last_end.get(tuple(tokens[-n:])) if n <= len(tokens) else None
            if end is not None:
                period = len(tokens) - 1 - end
                return [tokens[end + 1 + i % period] for i in range(count)], n
        return [], 0


class NgramDrafter(LookupDrafter):
    name = "ngram"
    options = {"prompt_lookup_max": 4, "prompt_lookup_min": 2}  # noqa: RUF012

    def __init__(self, config: DraftConfig, target: LoadedModel) -> None:
        super().__init__(config, target)
        self.least_match, self.most_match = self._lengths()
        self._indices: dict[Request, NgramIndex] = {}

    def _lengths(self) -> tuple[int, int]:
        """Shortest and longest match. Whoever names only one end moves the other along."""
        given = {name: self.option(name) for name in self.options}
        for name, value in given.items():
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(f"{name}={value!r} must be a whole number of at least 1")
        shortest, longest = given["prompt_lookup_min"], given["prompt_lookup_max"]
        named = self.config.options
        if "prompt_lookup_max" not in named:
            longest = max(longest, shortest)
        elif "prompt_lookup_min" not in named:
            shortest = min(longest, shortest)
        if shortest > longest:
            raise ConfigError(
                f"prompt_lookup_min={shortest} is above prompt_lookup_max={longest}; swap them"
            )
        return shortest, longest

    def lookup(self, request: Request, ahead: list[int], budget: int) -> TokenTree:
        index = self._indices.get(request)
        if index is None:
            index = self._indices[request] = NgramIndex(self.least_match, self.most_match)
        index.extend(request.tokens)
        text = [*request.tokens, *ahead] if ahead else request.tokens
        tokens, match = index.continuation(text, budget)
        # The match grows with every token that is accepted, and longer matches are better ones.
        confidence = [1 - 1 / (1 + match + depth) for depth in range(len(tokens))]
        return TokenTree.chain(tokens, self.name, confidence=confidence)

    def release(self, request: Request) -> None:
        self._indices.pop(request, None)
