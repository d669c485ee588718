"""The rows that one sequence contributes to a pass, and how many sequences are packed together."""

from array import array
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from outrider.core.tree import ancestor_mask, depths_of, is_chain


class Choosing(NamedTuple):
    """How the pass itself may choose the tokens of a text: by the likeliest at temperature 0, else
    with the noise of each row's output position, out of what top-k, top-p and min-p leave."""

    temperature: float
    seed: int
    sample: int
    position: int  # in the output, of what the segment's first row with logits decides
    top_k: int = 0  # 0 or below: all tokens
    top_p: float = 1.0
    min_p: float = 0.0


LIKELIEST = Choosing(temperature=0.0, seed=0, sample=0, position=0)


@dataclass(eq=False)
class Segment:
    """New rows of one sequence: a chain of pending tokens, possibly with a tree below the last."""

    tokens: list[int]
    parents: list[int]  # index within the segment; -1 continues the context
    slots: array  # where each row's KV goes
    context: array  # slots of everything before the segment
    logits_from: int  # rows from here on need logits; len(tokens) for none
    owner: Hashable = None  # the same for all segments of one text, where that is known
    choosing: Choosing | None = None  # the likeliest token, where nothing else is asked for

    @classmethod
    def chain(cls, tokens: list[int], slots: array, context: array, logits_from: int) -> "Segment":
        return cls(tokens, list(range(-1, len(tokens) - 1)), slots, context, logits_from)

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def end(self) -> "Segment":
        """The last row of a chain, alone."""
        before = self.context + self.slots[:-1]
        return Segment.chain(self.tokens[-1:], self.slots[-1:], before, logits_from=0)

    @property
    def positions(self) -> list[int]:
        return [len(self.context) + depth - 1 for depth in depths_of(self.parents)]


# What attention takes, in pairs of query and key: a call in every layer,
CALL = 5000
READING = 4  # and gathering a key, for each part that reads it
SHORTER = (1 / 2, 2 / 3, 4 / 5)  # of the most keys: who has fewer may have a call of their own
FEW = 16  # numbers of rows that are tried: among many different prompts there would be too many
WHOLE = 128  # rows from which on a text that is read from its start has a call of its own


@dataclass(eq=False)
class Group:
    """Sequences of similar size, or parts of them, that share one padded attention call; or a
    single one that is read from its start, and needs no mask beyond "what lies before"."""

    rows: Tensor  # [parts, queries] index of the packed row; padding repeats row 0
    real: Tensor  # [real rows] where in the flattened `rows` there is no padding
    slots: Tensor  # [parts, keys]; padding is the scrap slot
    visible: Tensor | None  # [parts, queries, keys] bool; None: all that lies before
    query_positions: Tensor  # [parts, queries]
    key_positions: Tensor  # [parts, keys]

    def __post_init__(self) -> None:
        self._masks: dict[tuple[int | None, int], Tensor] = {}
        self._added: dict[tuple[int | None, int, torch.dtype], Tensor] = {}
        self.real_rows = self.rows.flatten()[self.real]  # [real rows]

    @property
    def padded(self) -> bool:
        return len(self.real) < self.rows.numel()

    def mask(self, window: int | None, times: int = 1) -> Tensor:
        """[parts, times * queries, keys]: `visible`, cut to a sliding window, and repeated for the
        heads that share their keys; kept for all layers."""
        key = (window, times)
        if key not in self._masks:
            queries, keys = self.query_positions[:, :, None], self.key_positions[:, None, :]
            visible = self.visible if self.visible is not None else queries >= keys
            visible = visible if window is None else visible & (queries - keys < window)
            self._masks[key] = visible if times == 1 else visible.repeat(1, times, 1)
        return self._masks[key]

    def added(self, window: int | None, times: int, dtype: torch.dtype) -> Tensor:
        """The mask as it is added to scores, of the same shape: torch would make one of it in every
        layer."""
        key = (window, times, dtype)
        if key not in self._added:
            mask = self.mask(window, times)
            scores = torch.zeros(mask.shape, dtype=dtype, device=mask.device)
            self._added[key] = scores.masked_fill_(~mask, -torch.inf)
        return self._added[key]

    def to(self, device: torch.device) -> "Group":
        if device == self.rows.device:
            return self
        tensors = {field.name: getattr(self, field.name) for field in fields(self)}
        moved: dict[str, Any] = {
            name: tensor.to(device, non_blocking=True)
            for name, tensor in tensors.items()
            if isinstance(tensor, Tensor)
        }
        return replace(self, **moved)


def wanted_rows(segments: list[Segment]) -> list[int]:
    """Rows of the pass whose logits were asked for."""
    wanted: list[int] = []
    first = 0
    for segment in segments:
        wanted += range(first + segment.logits_from, first + len(segment))
        first += len(segment)
    return wanted


def group_segments(segments: list[Segment]) -> list[Group]:
    """Pack sequences into few calls without much padding."""
    groups, packed = [], []
    first_row = 0
    for segment in segments:
        if len(segment) >= WHOLE and not segment.context and is_chain(segment.parents):
            groups.append(_whole_text(first_row, segment))
        else:
            keys = len(segment.context) + len(segment)
            packed.append(_Member(segment, first_row, len(segment), keys))
        first_row += len(segment)
    return [*groups, *(_pad_group(call) for call in _apart(packed))]


class _Member(NamedTuple):
    """Of a call: a segment."""

    segment: Segment
    first_row: int
    rows: int
    keys: int


def _apart(members: list[_Member]) -> list[list[_Member]]:
    """In as many calls as save more than they cost: in one, a large tree makes all texts beside it
    longer, or is read in many parts, and so does a long context."""
    if not members:
        return []
    price = _price(members)
    if price - sum((READING + m.rows) * m.keys for m in members) <= 2 * CALL:
        return [members]  # nothing is to be saved, as mostly
    splits = [(_price(some) + _price(others), some, others) for some, others in _splits(members)]
    best, some, others = min(splits, key=itemgetter(0), default=(price, members, []))
    return [*_apart(some), *_apart(others)] if best < price else [members]


def _splits(members: list[_Member]) -> Iterator[tuple[list[_Member], list[_Member]]]:
    """By their rows, and by their keys."""
    for rows in _few({m.rows for m in members})[:-1]:
        yield [m for m in members if m.rows <= rows], [m for m in members if m.rows > rows]
    longest = max(m.keys for m in members)
    for share in SHORTER:
        short = [m for m in members if m.keys <= share * longest]
        if short:
            yield short, [m for m in members if m.keys > share * longest]


def _price(members: list[_Member]) -> int:
    """Of one call, in pairs."""
    queries, _ = _cheapest(Counter(m.rows for m in members))
    return CALL + queries * max(m.keys for m in members)


def _cheapest(lengths: Mapping[int, int]) -> tuple[int, int]:
    """For so many segments of each length, in one call: the queries that they take for each key,
    reading it among them, where none of their parts is longer than is best; and that length, one
    of theirs or half of one. One large tree among small ones would have these padded to its own
    size, where a few short parts only read their keys again."""
    longest = _few({_parts(length, n) for length in lengths for n in (1, 2)})
    return min(
        (sum(n * _parts(length, most) for length, n in lengths.items()) * (READING + most), most)
        for most in longest
    )


def _parts(rows: int, most: int) -> int:
    """Of so many rows, with at most so many in each."""
    return -(-rows // most)


def _few(numbers: set[int]) -> list[int]:
    """Of these, ascending, the largest among them."""
    ordered = sorted(numbers)
    return ordered[:: -_parts(len(ordered), FEW)][::-1]


def _whole_text(first_row: int, segment: Segment) -> Group:
    places = torch.arange(len(segment))
    slots = torch.from_numpy(np.array(segment.slots, dtype=np.int64))[None]
    positions = places[None]
    return Group(first_row + positions, places, slots, None, positions, positions)


def _pad_group(members: list[_Member]) -> Group:
    _, most = _cheapest(Counter(m.rows for m in members))
    count = sum(_parts(m.rows, most) for m in members)
    keys = max(m.keys for m in members)
    # numpy: so many operations on short arrays cost what their calls cost, several times less here.
    rows = np.zeros((count, most), dtype=np.int64)
    real = np.zeros((count, most), dtype=np.bool_)
    slots = np.zeros((count, keys), dtype=np.int64)
    # Padding queries see the first key: a row that sees nothing would be NaN.
    visible = np.zeros((count, most, keys), dtype=np.bool_)
    visible[:, :, 0] = True
    query_positions = np.zeros((count, most), dtype=np.int64)
    key_positions = np.zeros((count, keys), dtype=np.int64)
    part = 0
    for segment, first_row, length, _ in members:
        before, positions = len(segment.context), segment.positions
        ancestors = ancestor_mask(segment.parents).numpy()
        for start in range(0, length, most):
            end = min(start + most, length)
            n, own = end - start, slice(before, before + end)  # nothing below them is seen
            rows[part, :n] = range(first_row + start, first_row + end)
            real[part, :n] = True
            slots[part, :before] = segment.context
            slots[part, own] = segment.slots[:end]
            visible[part, :n, :before] = True
            visible[part, :n, own] = ancestors[start:end, :end]
            query_positions[part, :n] = positions[start:end]
            key_positions[part, :before] = np.arange(before)
            key_positions[part, own] = positions[:end]
            part += 1
    return Group(
        torch.from_numpy(rows),
        torch.from_numpy(real.reshape(-1).nonzero()[0]),
        torch.from_numpy(slots),
        torch.from_numpy(visible),
        torch.from_numpy(query_positions),
        torch.from_numpy(key_positions),
    )
