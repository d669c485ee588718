"""How often each token occurs, for the requests that have a penalty."""

from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from outrider.core.request import Request
from outrider.sampling.rows import Row
from outrider.sampling.transfer import to_device


class Occurrences(NamedTuple):
    """Tokens that have occurred, as a sparse [rows, vocabulary]: a text uses few of its tokens."""

    row: Tensor  # [n] int64
    token: Tensor  # [n] int64
    output: Tensor  # [n] int64: how often in output and path; 0 where only the prompt holds it


@dataclass(eq=False, slots=True)
class _Table:
    """The different tokens of a text, in the order in which they first occurred."""

    tokens: array
    output: array  # per token: occurrences in the committed output
    place: dict[int, int]  # token -> its index in both
    counted: int = 0  # how many output tokens these know of

    def times(self, token: int) -> int:
        place = self.place.get(token)
        return 0 if place is None else self.output[place]


class Counts:
    """Kept by the host, made at a penalised request's first use and kept up with its output, which
    only ever grows; drafted tokens are counted along each row's own path. A device gets the numbers
    of all rows as one copy, and is never waited for."""

    def __init__(self, vocabulary: int, device: torch.device | str = "cpu") -> None:
        self.vocabulary = vocabulary
        self.device = torch.device(device)
        self._tables: dict[Request, _Table] = {}

    def __len__(self) -> int:
        return len(self._tables)

    def along(self, rows: Sequence[Row]) -> tuple[Occurrences, Occurrences]:
        """The committed tokens of every row, and its drafted ones.

        A token that is both is in both, and only the second entry counts it in full.
        """
        tables = [self._table(row.request) for row in rows]
        committed = self._sparse(
            [np.array(table.tokens) for table in tables],
            [np.array(table.output) for table in tables],
        )
        paths = [Counter(row.path) for row in rows]
        drafted = self._sparse(
            [np.array(list(path), dtype=np.int64) for path in paths],
            [
                np.array([table.times(token) + n for token, n in path.items()], dtype=np.int64)
                for table, path in zip(tables, paths, strict=True)
            ],
        )
        return committed, drafted

    def release(self, request: Request) -> None:
        """Forget a request; unknown ones (never penalised) are fine."""
        self._tables.pop(request, None)

    def _table(self, request: Request) -> _Table:
        table = self._tables.get(request)
        if table is None:
            tokens = array("q", dict.fromkeys(request.prompt_ids))
            places = {token: i for i, token in enumerate(tokens)}
            table = self._tables[request] = _Table(tokens, array("q", [0]) * len(tokens), places)
        for token in request.output_ids[table.counted :]:
            place = table.place.setdefault(token, len(table.tokens))
            if place == len(table.tokens):
                table.tokens.append(token)
                table.output.append(0)
            table.output[place] += 1
        table.counted = len(request.output_ids)
        return table

    def _sparse(self, tokens: list[np.ndarray], output: list[np.ndarray]) -> Occurrences:
        """From the tokens of each row and how often they stand in its output."""
        row = np.repeat(np.arange(len(tokens)), [len(own) for own in tokens])
        packed = np.stack([row, np.concatenate(tokens), np.concatenate(output)])  # [3, n]
        return Occurrences(*to_device(torch.from_numpy(packed), self.device))
