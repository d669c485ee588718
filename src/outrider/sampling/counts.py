"""How often each token occurs, for the requests that have a penalty."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from outrider.core.request import Request
from outrider.sampling.rows import Row


class Occurrences(NamedTuple):
    """Tokens that have occurred, as a sparse [rows, vocabulary]: a text uses few of its tokens."""

    row: Tensor  # [n] int64
    token: Tensor  # [n] int64
    output: Tensor  # [n] int32: how often in output and path; 0 where only the prompt holds it


@dataclass(eq=False, slots=True)
class _Table:
    prompt: Tensor  # [vocabulary] bool: occurs in the prompt
    output: Tensor  # [vocabulary] int32: occurrences in the committed output
    tokens: Tensor  # [n] int64: those that occur in either
    counted: int = 0  # how many output tokens `output` and `tokens` know of


class Counts:
    """Tables on the device, made at a penalised request's first use and kept up with its output,
    which only ever grows; drafted tokens are counted along each row's own path."""

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
        committed = Occurrences(
            self._repeat([len(table.tokens) for table in tables]),
            torch.cat([table.tokens for table in tables]),
            torch.cat([table.output[table.tokens] for table in tables]),
        )
        paths = [Counter(row.path) for row in rows]
        tokens = [self._ids(path) for path in paths]
        before = [table.output[ids] for table, ids in zip(tables, tokens)]
        times = self._ids([n for path in paths for n in path.values()]).int()
        row = self._repeat([len(path) for path in paths])
        return committed, Occurrences(row, torch.cat(tokens), torch.cat(before) + times)

    def release(self, request: Request) -> None:
        """Forget a request; unknown ones (never penalised) are fine."""
        self._tables.pop(request, None)

    def _table(self, request: Request) -> _Table:
        table = self._tables.get(request)
        if table is None:
            prompt = torch.zeros(self.vocabulary, dtype=torch.bool, device=self.device)
            prompt[self._ids(request.prompt_ids)] = True
            output = torch.zeros(self.vocabulary, dtype=torch.int32, device=self.device)
            table = self._tables[request] = _Table(prompt, output, prompt.nonzero()[:, 0])
        fresh = request.output_ids[table.counted :]
        if fresh:
            ids = self._ids(fresh)
            table.output.index_add_(0, ids, torch.ones_like(ids, dtype=torch.int32))
            table.tokens = (table.prompt | (table.output > 0)).nonzero()[:, 0]
            table.counted += len(fresh)
        return table

    def _ids(self, values: Iterable[int]) -> Tensor:
        return torch.tensor(list(values), dtype=torch.int64, device=self.device)

    def _repeat(self, times: list[int]) -> Tensor:
        """0 times[0] times, 1 times[1] times, ..."""
        return torch.arange(len(times), device=self.device).repeat_interleave(self._ids(times))
