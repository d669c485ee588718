"""Speculative texts against plain ones, check by check."""

from collections.abc import Iterable
from dataclasses import dataclass

from outrider.audit.judge import Ask, Judge
from outrider.audit.report import Check, Difference
from outrider.core.outputs import RequestOutput


@dataclass(frozen=True)
class Pair:
    """One request, run both ways."""

    ask: Ask
    got: RequestOutput
    expected: RequestOutput


def check_pairs(judge: Judge, pairs: Iterable[Pair], feed_all: bool) -> list[Check]:
    """One check per name, in the order of first occurrence.

    Texts of the base checks are always fed back; those of the options where equality alone would
    prove little: in low precision (`feed_all`), and where tokens are drawn.
    """
    groups: dict[str, list[Pair]] = {}
    for pair in pairs:
        groups.setdefault(pair.ask.check, []).append(pair)
    return [
        _check(judge, name, members, feed_all or name in ("greedy", "seeded"))
        for name, members in groups.items()
    ]


def _check(judge: Judge, name: str, pairs: list[Pair], feed: bool) -> Check:
    differences: list[Difference] = []
    worst, equal = 0.0, 0
    for pair in pairs:
        drawn = judge.drawn and not pair.ask.params.greedy
        found = [] if drawn else judge.compare(pair.ask, pair.got, pair.expected)
        equal += not found and not drawn
        differences += found
        if (feed or drawn) and not pair.got.error:
            for output in pair.got.outputs:
                distance, faults = judge.feed_back(pair.ask, output)
                worst = max(worst, distance)
                differences += faults
    faults = [d for d in differences if d.verdict == "real fault"]
    figures = _figures(pairs) | {"texts": len(pairs), "equal_texts": equal, "worst_margin": worst}
    ties = [d for d in differences if d.verdict == "float tie"]
    drawn = judge.drawn and not any(pair.ask.params.greedy for pair in pairs)
    detail = _detail(len(pairs), equal, len(ties), faults, drawn, figures)
    return Check(name, not faults, detail, faults + ties, figures)


def _figures(pairs: list[Pair]) -> dict[str, int]:
    spec = [pair.got.speculation for pair in pairs]
    return {
        "tokens": sum(len(o.token_ids) for pair in pairs for o in pair.got.outputs),
        "drafted": sum(s.drafted for s in spec),
        "accepted": sum(s.accepted for s in spec),
    }


def _detail(
    texts: int,
    equal: int,
    ties: int,
    faults: list[Difference],
    drawn: bool,
    figures: dict[str, float],
) -> str:
    accepted = f"{figures['accepted']} of {figures['drafted']} drafted tokens kept"
    if faults:
        return f"{faults[0]}"
    if drawn:
        return f"{texts} drawn texts hold no excluded token; {accepted}"
    tied = f", {ties} part at a float tie" if ties else ""
    return f"{equal} of {texts} texts equal plain decoding's{tied}; {accepted}"
