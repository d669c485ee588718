"""The noise of many rows, each number computed once: nodes of a tree that stand at the same place
of a text have all of it in common."""

from functools import lru_cache

import torch
from torch import Tensor

from outrider.sampling.noise import GROUP, group_least, group_noise, gumbel, token_noise

KEPT = 64  # places of texts
IN_A_ROW = 8  # places whose noise is computed together: calls on arrays as short as these cost more
# than what they compute, and a text that has come to one place will come to the next


class SharedNoise:
    def __init__(self, stream: Tensor, groups: int) -> None:
        """stream [rows, 5]; `groups` of tokens."""
        self._stream, self._of = _told_apart(stream)  # [streams, 5], [rows]
        alone = stream.device.type == "cpu" and len(self._stream) == 1
        # Whose noise it is, where it is that of one place of a text for all rows, on a CPU.
        self.whose = tuple(self._stream[0].tolist()) if alone else None
        found = _at_one_place(self.whose, groups) if self.whose else None
        self._least, self._place, self._highest = found or _of_all(self._stream, groups)

    @property
    def highest(self) -> Tensor:
        """[rows, groups]: no noise there exceeds it."""
        return self._highest[self._of]

    @property
    def lifted(self) -> Tensor:
        """The token of each group that has the highest noise: [rows, groups]."""
        first = torch.arange(0, self._place.shape[1] * GROUP, GROUP, device=self._place.device)
        return (first + self._place)[self._of]

    def of_tokens(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Of some tokens of each row: [rows, k] -> [rows, k] float32; and whether it is the highest
        of a token's group: [rows, k] bool."""
        at = self._of[:, None], tokens // GROUP
        place = self._place[at]
        noise = token_noise(self._stream[self._of], tokens, self._least[at], place)
        return noise, tokens % GROUP == place

    def of_groups(self, rows: Tensor, groups: Tensor) -> Tensor:
        """Of all tokens of some groups: rows [n], groups [n, k] -> [n, k, GROUP] float32."""
        of = self._of[rows]  # [n]
        if of.device.type != "cpu" or len(of) == 1:  # none has anything in common with another
            least, place = (each[of[:, None], groups] for each in (self._least, self._place))
            return group_noise(self._stream[of], groups, least, place)
        count = self._least.shape[1]
        each, back = (of[:, None] * count + groups).unique(return_inverse=True)  # [pairs], [n, k]
        least, place = (table.view(-1)[each][:, None] for table in (self._least, self._place))
        noise = group_noise(self._stream[each // count], each[:, None] % count, least, place)
        return noise[:, 0][back]


def _of_all(stream: Tensor, groups: int) -> tuple[Tensor, Tensor, Tensor]:
    """The least exponential of each group, its place, and what noise that is: [streams, groups]."""
    least, place = group_least(stream, groups)
    return least, place, gumbel(least)


def _at_one_place(words: tuple[int, ...], groups: int) -> tuple[Tensor, Tensor, Tensor]:
    """The same for a single stream, kept: a place of a text is drafted for until a token is
    accepted there, in one step after the other."""
    *key, position, sample, purpose = words
    at = position % IN_A_ROW
    least, place, highest = _in_a_row((*key, position - at, sample, purpose), groups)
    return least[at : at + 1], place[at : at + 1], highest[at : at + 1]


@lru_cache(maxsize=KEPT // IN_A_ROW)
def _in_a_row(first: tuple[int, ...], groups: int) -> tuple[Tensor, Tensor, Tensor]:
    """The same at a place and at those that follow it."""
    *key, position, sample, purpose = first
    places = range(position, position + IN_A_ROW)
    return _of_all(torch.tensor([(*key, place, sample, purpose) for place in places]), groups)


def _told_apart(stream: Tensor) -> tuple[Tensor, Tensor]:
    """The different ones [streams, 5] among them, and which of those each row has [rows]. Beyond a
    CPU all pass for different: to find out would keep the device waiting."""
    if stream.device.type != "cpu":
        return stream, torch.arange(len(stream), device=stream.device)
    different: dict[tuple[int, ...], int] = {}
    of = [different.setdefault(tuple(words), len(different)) for words in stream.tolist()]
    if len(different) == len(of):
        return stream, torch.tensor(of, dtype=torch.int64)
    return torch.tensor(list(different)), torch.tensor(of)
