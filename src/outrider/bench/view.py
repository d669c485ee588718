"""The questions that plots and tables ask of a results.json."""

from collections.abc import Iterable
from typing import Any

from outrider.bench.workloads import OVERALL

Cell = dict[str, Any]


class View:
    """Results as read from a file: a cell may lack keys or hold None where nothing was measured."""

    def __init__(self, results: dict[str, Any]) -> None:
        self.results = results
        self.cells: list[Cell] = results.get("cells") or []
        self.ours = [cell for cell in self.cells if cell.get("system", "outrider") == "outrider"]
        self.drafters = distinct(cell["drafter"] for cell in self.ours)
        self.names = distinct([*self.drafters, *(cell["drafter"] for cell in self.cells)])
        self.systems = distinct(cell.get("system", "outrider") for cell in self.cells)
        self.categories = distinct(
            cell["category"] for cell in self.ours if cell["category"] != OVERALL
        )
        self.temperatures = sorted({cell["temperature"] for cell in self.ours})
        self.batch_sizes = sorted({cell["batch_size"] for cell in self.ours})

    @property
    def model(self) -> str:
        return str((self.results.get("arguments") or {}).get("model") or "unknown model")

    def pick(self, cells: list[Cell] | None = None, **wanted: Any) -> list[Cell]:
        """Our cells (or those given) whose keys have exactly these values."""
        pool = self.ours if cells is None else cells
        return [c for c in pool if all(c.get(key) == value for key, value in wanted.items())]

    def one(self, **wanted: Any) -> Cell | None:
        found = self.pick(**wanted)
        return found[0] if found else None

    def simplest(self, **wanted: Any) -> Cell | None:
        """The cell over all prompts at the smallest batch and the lowest temperature."""
        if not self.ours:
            return None
        smallest = {"batch_size": self.batch_sizes[0], "temperature": self.temperatures[0]}
        return self.one(category=OVERALL, **smallest, **wanted)


def distinct(values: Iterable[str]) -> list[str]:
    """In order of appearance."""
    return list(dict.fromkeys(values))


def acceptance(cell: Cell) -> list[float]:
    """Per draft position: the share of drafts of which this token was kept."""
    drafts = cell.get("drafts") or 0
    return [kept / drafts for kept in cell.get("accepted_per_position") or []] if drafts else []
