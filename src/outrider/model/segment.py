"""The rows that one sequence contributes to a pass, and how many sequences are packed together."""

from array import array
from collections.abc import Hashable
from dataclasses import dataclass, fields, replace
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
    def positions(self) -> list[int]:
        return [len(self.context) + depth - 1 for depth in depths_of(self.parents)]


FEW_ROWS = 8  # and few keys: to pad them costs less than a call for each size does, in every layer
FEW_KEYS = 256
WASTED = 5000  # pairs of query and key that padding may add: more take longer than one more call
WHOLE = 128  # rows from which on a text that is read from its start has a call of its own


@dataclass(eq=False)
class Group:
    """Sequences of similar size that share one padded attention call; or a single one that is read
    from its start, and needs no mask beyond "what lies before"."""

    rows: Tensor  # [sequences, queries] index of the packed row; padding repeats row 0
    real: Tensor  # [real rows] where in the flattened `rows` there is no padding
    slots: Tensor  # [sequences, keys]; padding is the scrap slot
    visible: Tensor | None  # [sequences, queries, keys] bool; None: all that lies before
    query_positions: Tensor  # [sequences, queries]
    key_positions: Tensor  # [sequences, keys]

    def __post_init__(self) -> None:
        self._masks: dict[tuple[int | None, int], Tensor] = {}
        self.real_rows = self.rows.flatten()[self.real]  # [real rows]

    @property
    def padded(self) -> bool:
        return len(self.real) < self.rows.numel()

    def mask(self, window: int | None, times: int = 1) -> Tensor:
        """[sequences, times * queries, keys]: `visible`, cut to a sliding window, and repeated for
        the heads that share their keys; kept for all layers."""
        key = (window, times)
        if key not in self._masks:
            queries, keys = self.query_positions[:, :, None], self.key_positions[:, None, :]
            visible = self.visible if self.visible is not None else queries >= keys
            visible = visible if window is None else visible & (queries - keys < window)
            self._masks[key] = visible if times == 1 else visible.repeat(1, times, 1)
        return self._masks[key]

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


def _bucket(size: int, smallest: int) -> int:
    return max(smallest, 1 << (size - 1).bit_length())


def group_segments(segments: list[Segment]) -> list[Group]:
    """Pack similar sequences into one call each: padding at most doubles either side of large
    ones."""
    buckets: dict[tuple[int, int], list[tuple[int, Segment]]] = {}
    groups = []
    first_row = 0
    for segment in segments:
        if len(segment) >= WHOLE and not segment.context and is_chain(segment.parents):
            groups.append(_whole_text(first_row, segment))
        else:
            keys = len(segment.context) + len(segment)
            bucket = (_bucket(len(segment), FEW_ROWS), _bucket(keys, FEW_KEYS))
            buckets.setdefault(bucket, []).append((first_row, segment))
        first_row += len(segment)
    alike = [part for members in buckets.values() for part in _apart(members)]
    return [*groups, *(_pad_group(members) for members in alike)]


def _apart(members: list[tuple[int, Segment]]) -> list[list[tuple[int, Segment]]]:
    """In as many calls as save more padding than they cost: in one, a single large tree would make
    all texts beside it as long as itself."""
    lengths = [len(segment) for _, segment in members]
    if min(lengths) == max(lengths):
        return [members]
    keys = max(len(segment.context) + len(segment) for _, segment in members)
    members = sorted(members, key=lambda member: len(member[1]))
    lengths.sort()
    # By the number of texts in the first call, if these are as long as the last of them.
    saved = [count * (lengths[-1] - lengths[count - 1]) * keys for count in range(1, len(members))]
    if max(saved) <= WASTED:
        return [members]
    count = 1 + saved.index(max(saved))
    return [*_apart(members[:count]), *_apart(members[count:])]


def _whole_text(first_row: int, segment: Segment) -> Group:
    places = torch.arange(len(segment))
    slots = torch.from_numpy(np.array(segment.slots, dtype=np.int64))[None]
    positions = places[None]
    return Group(first_row + positions, places, slots, None, positions, positions)


def _pad_group(members: list[tuple[int, Segment]]) -> Group:
    count = len(members)
    queries = max(len(segment) for _, segment in members)
    keys = max(len(segment.context) + len(segment) for _, segment in members)
    # numpy: so many operations on short arrays cost what their calls cost, several times less here.
    rows = np.zeros((count, queries), dtype=np.int64)
    real = np.zeros((count, queries), dtype=np.bool_)
    slots = np.zeros((count, keys), dtype=np.int64)
    # Padding queries see the first key: a row that sees nothing would be NaN.
    visible = np.zeros((count, queries, keys), dtype=np.bool_)
    visible[:, :, 0] = True
    query_positions = np.zeros((count, queries), dtype=np.int64)
    key_positions = np.zeros((count, keys), dtype=np.int64)
    for i, (first_row, segment) in enumerate(members):
        n, before = len(segment), len(segment.context)
        positions = segment.positions
        rows[i, :n] = range(first_row, first_row + n)
        real[i, :n] = True
        slots[i, :before] = segment.context
        slots[i, before : before + n] = segment.slots
        visible[i, :n, :before] = True
        visible[i, :n, before : before + n] = ancestor_mask(segment.parents)
        query_positions[i, :n] = positions
        key_positions[i, :before] = np.arange(before)
        key_positions[i, before : before + n] = positions
    return Group(
        torch.from_numpy(rows),
        torch.from_numpy(real.reshape(-1).nonzero()[0]),
        torch.from_numpy(slots),
        torch.from_numpy(visible),
        torch.from_numpy(query_positions),
        torch.from_numpy(key_positions),
    )
