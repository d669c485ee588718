"""What is measured, in which order, and what still has to be."""

from collections import Counter
from collections.abc import Iterable
from itertools import groupby
from math import ceil
from typing import NamedTuple

from outrider.bench.cells import BASE, Cell, Key, Run, Setting, cells_of
from outrider.bench.options import BenchOptions
from outrider.bench.statistics import ENOUGH
from outrider.bench.workloads import Prompt, categories

Needs = dict[tuple[str, Setting], int]  # repeats by drafter and setting


class Measurement(NamedTuple):
    """What one drafter does from a cold start: a category, or several one after the other."""

    drafter: str
    categories: tuple[str, ...]
    batch_size: int
    temperature: float
    repeat: int

    @property
    def settings(self) -> list[Setting]:
        return [Setting(name, self.batch_size, self.temperature) for name in self.categories]

    @property
    def keys(self) -> list[Key]:
        return [Key(self.drafter, setting, self.repeat) for setting in self.settings]


def side_by_side(due: list[Measurement]) -> list[list[Measurement]]:
    """Those that differ in the drafter alone, together."""
    same = groupby(due, key=lambda measurement: measurement._replace(drafter=""))
    return [list(group) for _, group in same]


class Plan:
    """One measurement per drafter, categories, batch size and temperature in each repeat.

    Drafters are innermost and repeats outermost: a machine that slows down for a while hurts all
    drafters of a setting, and never all repeats of one. Every other repeat takes the drafters in
    the opposite order, so that a steady drift favours nobody.
    """

    def __init__(self, options: BenchOptions, prompts: list[Prompt]) -> None:
        self.options = options
        self.categories = categories(prompts)
        self._prompts = Counter(prompt.category for prompt in prompts)

    def all_of(self, repeat: int) -> list[Measurement]:
        whole = tuple(self.categories)
        groups = [whole] if self.options.in_one_go else [(name,) for name in whole]
        drafters = [spec.label for spec in self.options.drafters][:: -1 if repeat % 2 else 1]
        return [
            Measurement(drafter, group, batch_size, temperature, repeat)
            for temperature in self.options.temperatures
            for batch_size in self.options.batch_sizes
            for group in groups
            for drafter in drafters
        ]

    def due(self, runs: list[Run], repeat: int) -> list[Measurement]:
        """The measurements of this repeat that are needed and not done.

        Beyond the least number these are the comparisons that are not precise yet, each with its
        base beside it. Only earlier repeats have a say, so that one that was interrupted goes on
        as it began.
        """
        return [m for m in self._to_come(runs, repeat) if m.repeat == repeat]

    def conversations(self, measurement: Measurement) -> int:
        return sum(
            max(self._prompts[name], measurement.batch_size) for name in measurement.categories
        )

    def conversations_left(self, runs: list[Run], repeat: int) -> int:
        """In this repeat and those to come, as far as the intervals so far can tell."""
        return sum(self.conversations(m) for m in self._to_come(runs, repeat))

    def imprecise(self, runs: Iterable[Run]) -> list[Cell]:
        options = self.options
        cells = cells_of(runs, self.categories, options.max_tokens, options.precision)
        return [cell for cell in cells if cell.precision_reached is False]

    def _to_come(self, runs: list[Run], repeat: int) -> list[Measurement]:
        done = {run.key for run in runs}
        needs = self._needs(runs, repeat)
        later = [
            m._replace(repeat=number)
            for m in self.all_of(repeat)
            for number in range(repeat, self._repeats(m, needs))
        ]
        return [m for m in later if m.keys[0] not in done]

    def _needs(self, runs: list[Run], repeat: int) -> Needs:
        """What the repeats before this one leave imprecise; a base is needed where anybody is."""
        needs: Needs = {}
        for cell in self.imprecise(run for run in runs if run.repeat < repeat):
            wanted = repeat + max(1, self._missing(cell))
            for drafter in (cell.drafter, BASE):
                name = (drafter, cell.setting)
                needs[name] = max(needs.get(name, 0), wanted)
        return needs

    def _missing(self, cell: Cell) -> int:
        """An estimate, for the progress bar alone. The interval narrows with the root of their
        number, and faster while they are few: the power 1.5 fits from 6 to 30."""
        count, half_width, precision = len(cell.samples), cell.half_width, self.options.precision
        if count < ENOUGH or half_width is None or precision is None:
            return 0
        return ceil(count * (half_width / precision) ** 1.5) - count

    def _repeats(self, measurement: Measurement, needs: Needs) -> int:
        """All categories together are a comparison, too, and need a repeat of every one."""
        settings = {s for one in measurement.settings for s in (one, one.overall)}
        wanted = max(needs.get((measurement.drafter, setting), 0) for setting in settings)
        return min(max(wanted, self.options.least_repeats), self.options.most_repeats)
