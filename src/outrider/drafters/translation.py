"""Between two vocabularies: which tokens are the same, and one's text in the other's tokens."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from outrider.drafters.vocabulary import Vocabulary

NONE = -1  # in a map of ids: there is no such token
WINDOW = 16  # tokens at the end of a text that are put together anew when it grows, at least
LOOKBEHINDS = (8, 4, 2, 1)  # committed tokens that a continuation is encoded together with

SAMPLE = """The committee will publish its findings on Thursday, although several members have asked
for more time. "We don't know yet," she said, "whether 1,250 samples are enough to be sure."

def running_mean(values: list[float], size: int = 16) -> list[float]:
    \"\"\"Average of the last `size` values.\"\"\"
    total, means = 0.0, []
    for index, value in enumerate(values):
        total += value - (values[index - size] if index >= size else 0)
        means.append(total / min(index + 1, size))
    return means

{"name": "example", "items": [1, 2, 3], "enabled": true}
Die Übersetzung ist fast fertig. La réunion commence à midi. Завтра будет дождь. 天気がいい。
"""


class Overlap(NamedTuple):
    """How alike two tokenizers cut a sample of text."""

    common: float  # share of the target's tokens that the other one has cut in the same two places
    ratio: float  # tokens of the draft model per token of the target


def compare_cuts(target: Vocabulary, draft: Vocabulary, sample: str = SAMPLE) -> Overlap:
    text = sample.encode()
    ours, theirs = target.encode(text), draft.encode(text)
    common = spans(target, ours) & spans(draft, theirs)
    return Overlap(len(common) / len(ours), len(theirs) / len(ours))


def spans(vocabulary: Vocabulary, ids: Sequence[int]) -> set[tuple[int, int]]:
    """Where each token starts and ends in the bytes of the text."""
    ends = cut_places(vocabulary, ids)
    return set(zip([0, *ends], ends))


def cut_places(vocabulary: Vocabulary, ids: Sequence[int]) -> list[int]:
    """Where each token ends in the bytes of the text."""
    places, end = [], 0
    for i in ids:
        end += len(vocabulary.pieces[i] or b"")
        places.append(end)
    return places


def match_ids(one: Vocabulary, other: Vocabulary) -> list[int]:
    """For each id of `one` the id of `other` that stands for the same, or NONE.

    The same bytes; among several ids for them the one that is spelled alike, else the plainest.
    Special tokens match by name, else by what they are for: start and end.
    """
    matched = [NONE] * one.width
    for name, i in one.ids.items():
        piece, alike = one.pieces[i], other.ids.get(name, NONE)
        if piece is None:
            matched[i] = alike if alike in other.special else _same_purpose(one, other, i)
        elif alike != NONE and other.pieces[alike] == piece:
            matched[i] = alike
        else:
            matched[i] = other.id_of.get(piece, NONE)
    return matched


def _same_purpose(one: Vocabulary, other: Vocabulary, i: int) -> int:
    for ours, theirs in ((one.ends, other.ends), (one.starts, other.starts)):
        if i in ours and theirs:
            return theirs[0]
    return NONE


class Intersection:
    """The tokens that both models have."""

    def __init__(self, target: Vocabulary, draft: Vocabulary, device: torch.device) -> None:
        self.target, self.draft = target, draft
        self.to_draft = match_ids(target, draft)
        self.to_target = match_ids(draft, target)
        self._device = device
        self._sources = self._rounds()

    def __len__(self) -> int:
        return len(set(self.to_target) - {NONE})

    def _rounds(self) -> list[tuple[Tensor, Tensor]]:
        """Pairs (target id, draft id), each [n], in rounds in which no target id comes twice."""
        rounds: list[dict[int, int]] = []
        for theirs, ours in enumerate(self.to_target):
            if ours == NONE:
                continue
            free = next((pairs for pairs in rounds if ours not in pairs), None)
            if free is None:
                rounds.append(free := {})
            free[ours] = theirs
        return [
            (
                torch.tensor(list(pairs), device=self._device),
                torch.tensor(list(pairs.values()), device=self._device),
            )
            for pairs in rounds
        ]

    def scatter(self, logits: Tensor) -> Tensor:
        """Logits [rows, draft ids] -> [rows, target ids] float32; -inf where there is no token.

        Several draft ids on one target id are one event: their probabilities add up.
        """
        logits = logits.float()
        scattered = logits.new_full((len(logits), self.target.width), -torch.inf)
        for i, (ours, theirs) in enumerate(self._sources):
            found = logits.index_select(1, theirs)
            if i > 0:
                found = torch.logaddexp(scattered.index_select(1, ours), found)
            scattered.index_copy_(1, ours, found)
        return scattered


class View:
    """A growing text of the target as the draft model reads it: `ids`.

    A special token without a counterpart is read as the text of its name, as a start or an end of
    text as nothing at all.
    """

    def __init__(self, pair: Intersection) -> None:
        self.pair = pair
        # Where the target's tokenizer adds a start of its own, the text says whether there is one.
        self.ids: list[int] = [] if pair.target.prefix else list(pair.draft.prefix)
        self.read = 0  # tokens of the target's text that `ids` covers
        self.changed_from = 0  # ids from here on may be others than when this was last set

    def extend(self, tokens: Sequence[int]) -> None:
        """Read what is new in `tokens`, the target's whole text, which only ever grows."""
        raise NotImplementedError

    def _replace_from(self, start: int, ids: list[int]) -> None:
        self.changed_from = min(self.changed_from, start)
        self.ids[start:] = ids

    def _counterpart(self, token: int) -> list[int]:
        target, found = self.pair.target, self.pair.to_draft[token]
        if found != NONE:
            return [found]
        if token in target.ends or token in target.starts:
            return []
        return self.pair.draft.encode(target.special.get(token, "").encode())


class MappedView(View):
    """Token by token; what the draft model has no token for is encoded from its bytes."""

    def __init__(self, pair: Intersection) -> None:
        super().__init__(pair)
        self._run = b""  # the text's end, as far as it consists of unknown tokens
        self._run_start = 0  # where in `ids` it begins

    def extend(self, tokens: Sequence[int]) -> None:
        pair = self.pair
        for token in tokens[self.read :]:
            piece, found = pair.target.pieces[token], pair.to_draft[token]
            if found != NONE or piece is None:
                self._replace_from(len(self.ids), self._counterpart(token))
                self._run, self._run_start = b"", len(self.ids)
            else:
                self._run += piece
                self._replace_from(self._run_start, pair.draft.encode(self._run))
        self.read = len(tokens)


class EncodedView(View):
    """The text as the draft model's own tokenizer cuts it."""

    def __init__(self, pair: Intersection) -> None:
        super().__init__(pair)
        self._fixed = len(self.ids)  # ids before this stay: special, or not the text's own bytes

    def extend(self, tokens: Sequence[int]) -> None:
        text = b""
        for token in tokens[self.read :]:
            piece = self.pair.target.pieces[token]
            if piece is None:
                self._append(text)
                self._replace_from(len(self.ids), self._counterpart(token))
                self._fixed, text = len(self.ids), b""
            else:
                text += piece
        self._append(text)
        self.read = len(tokens)

    def _append(self, text: bytes) -> None:
        """Encode the text's end anew, from far enough back that its cut does not show."""
        if not text:
            return
        draft, back = self.pair.draft, WINDOW
        while True:
            start = max(self._fixed, len(self.ids) - back)
            window = draft.spell(self.ids[start:]) + text
            fresh = draft.encode(window)
            if start == self._fixed or fresh[:1] == self.ids[start : start + 1]:
                break
            back *= 2
        self._replace_from(start, fresh)
        if draft.spell(fresh) != window:  # an unknown character: its text cannot be had back
            self._fixed = len(self.ids)


def continue_ids(target: Vocabulary, tokens: Sequence[int], text: bytes) -> list[int]:
    """The ids with which the target's tokenizer would write `text` after `tokens`.

    Empty if it would then cut the last of these tokens otherwise: the two do not go together.
    """
    for count in LOOKBEHINDS:
        tail = list(tokens[-count:])
        while any(target.pieces[i] is None for i in tail):  # text starts after a special token
            tail.pop(0)
        ids = target.encode(target.spell(tail) + text)
        if ids[: len(tail)] == tail:
            return ids[len(tail) :]
    return []


def whole_characters(text: bytes) -> bytes:
    """Without a character at the end that is not complete."""
    for back in range(1, min(4, len(text) + 1)):
        byte = text[-back]
        if byte >= 0xC0:  # starts a character of two bytes or more
            size = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return text[:-back] if back < size else text
        if byte < 0x80:
            break
    return text
