"""What one run measured, and the cells of results.json that sum up the runs."""

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any, NamedTuple

from outrider.bench.statistics import Ratio, quartiles, ratio_to_base
from outrider.bench.workloads import OVERALL

BASE = "none"  # the drafter that all others are compared with
PHASES = ("draft", "forward", "verify", "rest")  # always there; an engine may name more
OVERHEAD = ("draft", "policy")  # what speculation costs beside the models


class Setting(NamedTuple):
    """What all cells of one comparison have in common."""

    category: str
    batch_size: int
    temperature: float

    @property
    def overall(self) -> "Setting":
        return self._replace(category=OVERALL)


class Key(NamedTuple):
    """Names one run."""

    drafter: str
    setting: Setting
    repeat: int


Grouped = dict[Setting, dict[str, list["Run"]]]  # by setting and drafter


@dataclass
class Run:
    """All prompts of one category, once, by one drafter."""

    drafter: str
    category: str
    batch_size: int
    temperature: float
    repeat: int
    requests: int  # turns answered
    tokens: int
    seconds: float
    decode_tokens: int  # after the first of each answer
    decode_seconds: float  # the same, added up over requests that may have run side by side
    time_to_first_token: float
    inter_token_latency: float | None  # None where no answer had a second token
    steps: int = 0
    drafts: int = 0
    drafted: int = 0
    accepted: int = 0
    accepted_per_position: list[int] = field(default_factory=list)
    phases: dict[str, float] = field(default_factory=dict)
    peak_memory_bytes: int | None = None
    peak_cuda_bytes: int | None = None
    graph_share: float | None = None  # of the steps that write; None without a GPU
    overruled: int = 0  # tokens of a dictated text where the engine would have gone on otherwise

    @property
    def key(self) -> Key:
        setting = Setting(self.category, self.batch_size, self.temperature)
        return Key(self.drafter, setting, self.repeat)


@dataclass
class Cell:
    """One object of results.json; counts and phases are totals over its repeats."""

    system: str
    category: str
    drafter: str
    batch_size: int
    temperature: float
    max_tokens: int
    requests: int
    tokens: int
    samples: list[float]  # tokens per second of each repeat
    tokens_per_second: float
    tokens_per_second_low: float
    tokens_per_second_high: float
    decode_tokens_per_second: float | None  # one answer's speed after its first token
    ratio: float | None
    ratio_low: float | None
    ratio_high: float | None
    precision_reached: bool | None  # None where none was asked for, and for the base itself
    mean_acceptance_length: float
    accepted_per_position: list[int]
    drafts: int
    drafted: int
    accepted: int
    steps: int
    time_to_first_token: float
    inter_token_latency: float | None
    phases: dict[str, float]
    drafting_share: float | None  # of the step: drafting and policy code, without models
    peak_memory_bytes: int | None
    peak_cuda_bytes: int | None
    graph_share: float | None  # of the steps that only write, those replayed from CUDA graphs
    overruled: int  # tokens of dictated texts that the engine would not have chosen

    @property
    def setting(self) -> Setting:
        return Setting(self.category, self.batch_size, self.temperature)

    @property
    def half_width(self) -> float | None:
        return Ratio(self.ratio, self.ratio_low, self.ratio_high).half_width

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def cells_of(
    runs: Iterable[Run], categories: list[str], max_tokens: int, precision: float | None = None
) -> list[Cell]:
    """A cell per category that was measured, and one for all of them together."""
    return [
        _cell(setting, drafter, group, ratio, max_tokens, precision)
        for setting, drafters in group_runs(runs, categories).items()
        for drafter, group, ratio in _rated(drafters)
    ]


def group_runs(runs: Iterable[Run], categories: list[str]) -> Grouped:
    grouped: Grouped = {}
    for run in runs:
        grouped.setdefault(run.key.setting, {}).setdefault(run.drafter, []).append(run)
    return {**grouped, **_overall(grouped, categories)}


def _rated(drafters: dict[str, list[Run]]) -> Iterator[tuple[str, list[Run], Ratio]]:
    base = speeds(drafters.get(BASE, []))
    for drafter, group in drafters.items():
        yield drafter, group, ratio_to_base(speeds(group), base)


def _overall(grouped: Grouped, categories: list[str]) -> Grouped:
    """Of each drafter the repeats that have all categories: others would not compare."""
    found: Grouped = {}
    for setting, drafters in grouped.items():
        together = found.setdefault(setting.overall, {})
        for drafter, group in drafters.items():
            together.setdefault(drafter, []).extend(group)
    for drafters in found.values():
        for drafter, group in list(drafters.items()):
            repeats = [run.repeat for run in group]
            whole = [run for run in group if repeats.count(run.repeat) == len(categories)]
            if whole:
                drafters[drafter] = whole
            else:
                del drafters[drafter]
    return found


def speeds(runs: list[Run]) -> dict[int, float]:
    """Tokens per second by repeat."""
    tokens: dict[int, int] = {}
    seconds: dict[int, float] = {}
    for run in runs:
        tokens[run.repeat] = tokens.get(run.repeat, 0) + run.tokens
        seconds[run.repeat] = seconds.get(run.repeat, 0.0) + run.seconds
    return {repeat: tokens[repeat] / seconds[repeat] for repeat in sorted(tokens)}


def _cell(
    setting: Setting,
    drafter: str,
    runs: list[Run],
    ratio: Ratio,
    max_tokens: int,
    precision: float | None,
) -> Cell:
    samples = list(speeds(runs).values())
    low, high = quartiles(samples)
    aim = None if drafter == BASE else precision
    phases = _phases(runs)
    drafts, accepted = (sum(getattr(run, name) for run in runs) for name in ("drafts", "accepted"))
    decoding = sum(run.decode_seconds for run in runs)
    return Cell(
        system="outrider",
        drafter=drafter,
        **setting._asdict(),
        max_tokens=max_tokens,
        requests=sum(run.requests for run in runs),
        tokens=sum(run.tokens for run in runs),
        samples=samples,
        tokens_per_second=median(samples),
        tokens_per_second_low=low,
        tokens_per_second_high=high,
        decode_tokens_per_second=(
            sum(run.decode_tokens for run in runs) / decoding if decoding else None
        ),
        ratio=ratio.value,
        ratio_low=ratio.low,
        ratio_high=ratio.high,
        precision_reached=None if aim is None else ratio.reached(aim),
        mean_acceptance_length=1 + accepted / drafts if drafts else 1.0,
        accepted_per_position=_added(run.accepted_per_position for run in runs),
        drafts=drafts,
        drafted=sum(run.drafted for run in runs),
        accepted=accepted,
        steps=sum(run.steps for run in runs),
        time_to_first_token=median(run.time_to_first_token for run in runs),
        inter_token_latency=_median_known(run.inter_token_latency for run in runs),
        phases=phases,
        drafting_share=_share(phases),
        peak_memory_bytes=_largest_known(run.peak_memory_bytes for run in runs),
        peak_cuda_bytes=_largest_known(run.peak_cuda_bytes for run in runs),
        graph_share=_median_known(run.graph_share for run in runs),
        overruled=sum(run.overruled for run in runs),
    )


def _phases(runs: list[Run]) -> dict[str, float]:
    """Those of the engine in its order, with what is left of the step last."""
    names = dict.fromkeys([*PHASES[:-1], *(name for run in runs for name in run.phases)])
    names.pop(PHASES[-1], None)
    return {name: sum(run.phases.get(name, 0.0) for run in runs) for name in (*names, PHASES[-1])}


def _share(phases: dict[str, float]) -> float | None:
    step = sum(phases.values())
    return sum(phases.get(name, 0.0) for name in OVERHEAD) / step if step else None


def _added(lists: Iterable[list[int]]) -> list[int]:
    """Element by element; the lists may differ in length."""
    total: list[int] = []
    for counts in lists:
        total += [0] * (len(counts) - len(total))
        for place, count in enumerate(counts):
            total[place] += count
    return total


def _median_known(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _largest_known(values: Iterable[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)
