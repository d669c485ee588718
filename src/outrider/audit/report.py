"""What an audit found, for people and for programs."""

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Verdict = Literal["float tie", "real fault"]


@dataclass(frozen=True)
class Difference:
    """The first place where two texts of one request part, or a token that is not the best."""

    request: str  # which of the check's requests
    position: int  # output token, from 0
    token: int | None  # what was written; None: the text had ended
    token_text: str
    expected: int | None
    expected_text: str
    margin: float | None  # distance of the written token's score from the best one
    tolerance: float
    verdict: Verdict
    note: str = ""

    def __str__(self) -> str:
        where = f"{self.request}, output token {self.position}"
        if self.margin is None:
            return f"{where}: {self.note}: {self.verdict}"
        tokens = f"{self.token_text!r} ({self.token}) for {self.expected_text!r} ({self.expected})"
        note = f", {self.note}" if self.note else ""
        return (
            f"{where}: {tokens}, margin {self.margin:.2g} with {self.tolerance:.2g} allowed"
            f"{note}: {self.verdict}"
        )


@dataclass
class Check:
    name: str
    passed: bool
    detail: str  # one line: what was compared and what came out
    differences: list[Difference] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)
    tested: bool = True  # False: too little came to be judged, so this proves nothing

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class AuditReport:
    subject: dict[str, Any]  # model, drafter or server, dtype, seed, …
    checks: list[Check]
    seconds: float = 0.0
    false_alarm_probability: float = 0.0  # over all distribution tests together
    detectable_total_variation: float | None = None  # None: no distribution was tested

    @property
    def passed(self) -> bool:
        return bool(self.checks) and all(check.passed for check in self.checks)

    @property
    def failures(self) -> list[Check]:
        return [check for check in self.checks if not check.passed]

    def to_dict(self) -> dict[str, Any]:
        return {
            "passed": self.passed,
            **self.subject,
            "seconds": round(self.seconds, 2),
            "false_alarm_probability": self.false_alarm_probability,
            "detectable_total_variation": self.detectable_total_variation,
            "checks": [check.to_dict() for check in self.checks],
        }
