"""The noise of many rows, each number computed once: nodes of a tree that stand at the same place
of a text have all of it in common."""

import torch
from torch import Tensor

from outrider.sampling.noise import group_least, group_noise, gumbel


class SharedNoise:
    def __init__(self, stream: Tensor, groups: int) -> None:
        """stream [rows, 5]; `groups` of tokens."""
        self._stream, self._of = _told_apart(stream)  # [streams, 5], [rows]
        self._least, self._place = group_least(self._stream, groups)  # [streams, groups]
        self.highest = gumbel(self._least)[self._of]  # [rows, groups]: no noise there exceeds it

    def of_groups(self, rows: Tensor, groups: Tensor) -> Tensor:
        """Of all tokens of some groups: rows [n], groups [n, k] -> [n, k, GROUP] float32."""
        of = self._of[rows]  # [n]
        if of.device.type != "cpu":
            least, place = (each[of[:, None], groups] for each in (self._least, self._place))
            return group_noise(self._stream[of], groups, least, place)
        count = self._least.shape[1]
        each, back = (of[:, None] * count + groups).unique(return_inverse=True)  # [pairs], [n, k]
        least, place = (table.view(-1)[each][:, None] for table in (self._least, self._place))
        noise = group_noise(self._stream[each // count], each[:, None] % count, least, place)
        return noise[:, 0][back]


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
