"""How the drafter that chooses by itself compares with the best of those that do not."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from outrider.bench.cells import BASE, Run, Setting, group_runs, speeds
from outrider.bench.options import DrafterSpec
from outrider.bench.statistics import Ratio, ratio_to_base


@dataclass
class AgainstFixed:
    """One object of results.json's `best_fixed`: a setting, `auto`, and its strongest rival."""

    category: str
    batch_size: int
    temperature: float
    drafter: str
    best: str
    drafter_ratio: float | None  # both to plain decoding
    best_ratio: float | None
    ratio: float | None  # of the two, by repeat
    ratio_low: float | None
    ratio_high: float | None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def against_best_fixed(
    runs: Iterable[Run], categories: list[str], specs: Iterable[DrafterSpec]
) -> list[AgainstFixed]:
    """Per setting; empty unless both kinds were measured.

    The best is known only afterwards, and noise helps whoever wins: that is to the disadvantage
    of `auto`, as it should be in a claim about it.
    """
    specs = list(specs)
    fixed = [spec.label for spec in specs if spec.fixed]
    autos = [spec.label for spec in specs if spec.auto]
    found = []
    for setting, drafters in group_runs(runs, categories).items():
        by_drafter = {name: speeds(group) for name, group in drafters.items()}
        rivals = _rated(by_drafter, fixed)
        for auto in (name for name in autos if name in by_drafter and rivals):
            best = max(rivals, key=lambda name: rivals[name].value or 0.0)
            found.append(_entry(setting, auto, best, by_drafter))
    return found


def _rated(by_drafter: dict[str, dict[int, float]], names: list[str]) -> dict[str, Ratio]:
    """By their ratio to plain decoding: they may have been measured at different times."""
    base = by_drafter.get(BASE, {})
    rated = {n: ratio_to_base(by_drafter[n], base) for n in names if n in by_drafter}
    return {name: ratio for name, ratio in rated.items() if ratio.value is not None}


def _entry(
    setting: Setting, auto: str, best: str, by_drafter: dict[str, dict[int, float]]
) -> AgainstFixed:
    rated = _rated(by_drafter, [auto, best])
    ratio = ratio_to_base(by_drafter[auto], by_drafter[best])
    return AgainstFixed(
        **setting._asdict(),
        drafter=auto,
        best=best,
        drafter_ratio=rated[auto].value,
        best_ratio=rated[best].value,
        ratio=ratio.value,
        ratio_low=ratio.low,
        ratio_high=ratio.high,
    )
