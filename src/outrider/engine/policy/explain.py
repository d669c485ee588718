"""Why so much was drafted, and no more: the policy's numbers for people."""

from collections import Counter, defaultdict
from dataclasses import asdict, dataclass, field
from typing import Any

from outrider.engine.policy.policy import Policy

DEPTHS = 8
GROUPS = ((0, 0), (1, 2), (3, 4), (5, 8), (9, 16), (17, 1 << 30))  # nodes of a draft


class Decisions:
    """Counts what was checked, by the number of requests in the pass."""

    def __init__(self) -> None:
        self.nodes: defaultdict[int, Counter[int]] = defaultdict(Counter)
        self.accepted: Counter[int] = Counter()

    def count(self, sequences: int, nodes: int, accepted: int, times: int = 1) -> None:
        self.nodes[sequences][nodes] += times
        self.accepted[sequences] += accepted


@dataclass(frozen=True)
class DrafterReport:
    name: str
    milliseconds: float | None  # of one proposal; None: never asked
    chances: list[float]  # that a draft holds at depth 1, 2, … once it has come so far


@dataclass(frozen=True)
class BudgetReport:
    batch_size: int
    drafts: int  # how often a length was chosen, zero included
    mean_nodes: float
    mean_accepted: float
    nodes: dict[int, int]  # how often so many nodes were checked


@dataclass(frozen=True)
class Explanation:
    """`str()` is the text for people, `to_dict()` the same for programs."""

    drafter: str
    adaptive: bool
    pass_milliseconds: dict[int, float]  # by rows
    drafters: list[DrafterReport] = field(default_factory=list)
    budgets: list[BudgetReport] = field(default_factory=list)
    waiting_milliseconds: float = 0.0  # that a GPU stands still before a pass with drafts

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        return "\n".join([*self._costs(), *self._estimates(), *self._budgets()])

    def _costs(self) -> list[str]:
        if not self.pass_milliseconds:
            return [f"{self.drafter}: the length is fixed, so nothing was measured or chosen"]
        plain, waiting = self.pass_milliseconds[1], self.waiting_milliseconds
        cells = [
            f"{rows:>4} rows {ms:8.2f} ms   pays from {(ms + waiting) / plain - 1:5.2f} tokens"
            for rows, ms in self.pass_milliseconds.items()
            if rows > 1
        ]
        lines = [f"a pass over   1 row  {plain:8.2f} ms", *(f"         over{c}" for c in cells)]
        if waiting:
            lines.append(f"where a pass waits for drafts, the device idles {waiting:.2f} ms before")
        return lines

    def _estimates(self) -> list[str]:
        lines = []
        for drafter in self.drafters:
            asked = drafter.milliseconds is not None
            spent = f"{drafter.milliseconds:.3f} ms a draft" if asked else "not asked yet"
            chances = " ".join(f"{chance:.2f}" for chance in drafter.chances)
            lines += [f"{drafter.name}: {spent}; chance to hold at depth 1 to {DEPTHS}: {chances}"]
        return lines

    def _budgets(self) -> list[str]:
        lines = []
        for report in self.budgets:
            shares = []
            for low, high in GROUPS:
                times = sum(n for nodes, n in report.nodes.items() if low <= nodes <= high)
                if times:
                    name = str(low) if high == low else f"{low}+" if high > 99 else f"{low}-{high}"
                    shares.append(f"{name}: {times / report.drafts:.0%}")
            lines.append(
                f"nodes checked per step with {report.batch_size} at once: {', '.join(shares)}; "
                f"mean {report.mean_nodes:.1f}, of which {report.mean_accepted:.1f} held"
            )
        return lines


def explain(
    drafter: str, members: list[str], adaptive: bool, policy: Policy, decisions: Decisions
) -> Explanation:
    curve = policy.cost.curve() if adaptive else []
    return Explanation(
        drafter=drafter,
        adaptive=adaptive,
        pass_milliseconds={rows: 1e3 * seconds for rows, seconds in curve},
        drafters=[_drafter_report(name, policy) for name in members],
        budgets=[_budget_report(size, decisions) for size in sorted(decisions.nodes)],
        waiting_milliseconds=1e3 * policy.waited.seconds(1),
    )


def _drafter_report(name: str, policy: Policy) -> DrafterReport:
    spent = policy.timings[name].per_request
    track = policy.tracks[name]
    return DrafterReport(
        name=name,
        milliseconds=None if spent is None else 1e3 * spent,
        chances=[track.level_chance(depth) for depth in range(1, DEPTHS + 1)],
    )


def _budget_report(size: int, decisions: Decisions) -> BudgetReport:
    nodes = decisions.nodes[size]
    times = nodes.total()
    return BudgetReport(
        batch_size=size,
        drafts=times,
        mean_nodes=sum(n * count for n, count in nodes.items()) / times,
        mean_accepted=decisions.accepted[size] / times,
        nodes=dict(sorted(nodes.items())),
    )
