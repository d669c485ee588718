"""Containers that tell how much they were used."""

from typing import Any


class Counting(dict):
    """Counts what is written and looked up."""

    work = 0

    def __setitem__(self, key: Any, value: Any) -> None:
        self.work += 1
        super().__setitem__(key, value)

    def get(self, *args: Any) -> Any:
        self.work += 1
        return super().get(*args)


class Watched(list):
    """Counts the tokens that are read."""

    read = 0

    def __getitem__(self, at: Any) -> Any:
        found = super().__getitem__(at)
        self.read += len(found) if isinstance(at, slice) else 1
        return found
