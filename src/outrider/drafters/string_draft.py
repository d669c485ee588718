"""A draft by strings while it grows: the draft model's tokens, and the target's for its text."""

from itertools import pairwise
from math import prod

from outrider.core.request import Request
from outrider.core.tree import TokenTree
from outrider.drafters.foreign_text import Shadow
from outrider.drafters.translation import (
    NONE,
    Intersection,
    continue_ids,
    cut_places,
    whole_characters,
)


class StringDraft:
    """For one request; it is `done` when the target's tokens fill the budget, or cannot."""

    def __init__(
        self,
        request: Request,
        shadow: Shadow,
        pair: Intersection,
        budget: int,
        least: int,
        most: int,
    ) -> None:
        self.request, self.shadow, self.pair = request, shadow, pair
        self.budget = budget  # tokens of the target
        self.least = least  # tokens of the draft model before which nothing can be complete
        self.most = min(most, shadow.room)
        self.ids: list[int] = []
        self.chances: list[float] = []
        self.done = False
        self._end: tuple[int, float] | None = None  # a special token and its chance
        self._tokens: list[int] = []
        self._confidence: list[float] = []

    def extend(self, tokens: list[int], chances: list[float]) -> None:
        """By the likeliest of these tokens; at first by the likeliest that can stand there."""
        if self.ids:
            self.append(tokens[0], chances[0])
            return
        for token, chance in zip(tokens, chances, strict=True):
            if self._can_follow(self.pair.draft.pieces[token] or b""):
                self.append(token, chance)
                return
        self.done = True

    def _can_follow(self, piece: bytes) -> bool:
        """Not so if the target would have written it and its last tokens as other tokens. It
        chose those, so it does not mean to go on like this."""
        whole = whole_characters(piece)
        return whole != piece or not piece or bool(self._continued(piece))

    def _continued(self, text: bytes) -> list[int]:
        return continue_ids(self.pair.target, self.request.tokens, text)

    def append(self, token: int, chance: float) -> None:
        if self.pair.draft.pieces[token]:
            self.ids.append(token)
            self.chances.append(chance)
        else:
            self._end = (self.pair.to_target[token], chance)
        self.done = self._end is not None or len(self.ids) >= self.most
        if self.done or len(self.ids) >= self.least:
            self._translate()
            self.done = self.done or len(self._tokens) >= self.budget

    def _translate(self) -> None:
        target, draft = self.pair.target, self.pair.draft
        written = draft.spell(self.ids)
        text = whole_characters(written)
        tokens = self._continued(text)
        ends = cut_places(target, tokens)
        cuts = [0, *cut_places(draft, self.ids)]
        if tokens and self._end is None and not self._settled(tokens[-1], ends, cuts):
            tokens.pop()
        self._tokens = tokens
        self._confidence = [
            prod(chance for chance, at in zip(self.chances, cuts) if start <= at < end)
            for start, end in zip([0, *ends], ends[: len(tokens)])
        ]
        if self._end is not None and self._end[0] != NONE and target.spell(tokens) == written:
            self._tokens.append(self._end[0])
            self._confidence.append(self._end[1])

    def _settled(self, last: int, ends: list[int], cuts: list[int]) -> bool:
        """Whether the target's last token cannot be the first part of a longer one: there is none,
        or the draft model has one, too, and yet wrote just this."""
        piece = self.pair.target.pieces[last] or b""
        if not self.pair.target.goes_on(piece):
            return True
        span = (ends[-2] if len(ends) > 1 else 0, ends[-1])
        return span in set(pairwise(cuts)) and self.pair.draft.goes_on(piece)

    def tree(self, source: str) -> TokenTree:
        n = self.budget
        return TokenTree.chain(self._tokens[:n], source, confidence=self._confidence[:n])
