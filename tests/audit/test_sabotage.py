"""Planted faults: the audit fails, and says what is wrong."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from tests.engine.helpers import Models, registered

import outrider.drafters.candidates as candidates
import outrider.verify as verify
import outrider.verify.traversal as traversal
from outrider.audit.run import audit_engine
from outrider.cli import main
from outrider.core.request import Request
from outrider.core.tree import TokenTree
from outrider.core.verdict import Verdict
from outrider.drafters.base import Drafter
from outrider.engine.report import Written
from outrider.engine.sequence import Sequence
from outrider.model.kv import KVCache
from outrider.sampling.choose import _decide, distribution
from outrider.sampling.counts import Counts
from outrider.sampling.noise import Key, Purpose
from outrider.sampling.rows import Row

Patch = pytest.MonkeyPatch


def accept_every_draft(patch: Patch) -> None:
    def first(self: TokenTree, node: int, token: int) -> int | None:
        return next(iter(self.children.get(node, [])), None)

    patch.setattr(TokenTree, "child", first)


def accept_by_the_wrong_row(patch: Patch) -> None:
    real = verify.walk

    def wrong(trees: list[TokenTree], choices: Any) -> list[Verdict]:
        neighbour = {
            row: row + 1 if row + 1 < end else start
            for start, end in verify.spans(trees)
            for row in range(start, end)
        }
        return real(trees, lambda at: choices([neighbour[row] for row in at]))

    patch.setattr(verify, "walk", wrong)


def drop_the_residual(patch: Patch) -> None:
    def reject(self: Any) -> None:
        self.a, self.waiting = 1.0, []  # P stays p: what was rejected may come back

    patch.setattr(traversal._Visit, "reject", reject)


def report_q_at_another_temperature(patch: Patch) -> None:
    patch.setattr(candidates, "distribution", lambda scores, rows: distribution(scores / 3, rows))


def ignore_penalties_of_drafted_tokens(patch: Patch) -> None:
    real = Counts.along
    patch.setattr(
        Counts, "along", lambda self, rows: real(self, [Row(r.request, []) for r in rows])
    )


def ignore_stops_inside_a_draft(patch: Patch) -> None:
    real = Sequence.append

    def append(self: Sequence, token: int, from_draft: bool, logprobs: Any = None) -> bool:
        ended = real(self, token, from_draft, logprobs)
        if from_draft and self.finish_reason == "stop":
            self.finish_reason, self.stop_reason = None, None
            return False
        return ended

    patch.setattr(Sequence, "append", append)


def logprobs_of_the_wrong_row(patch: Patch) -> None:
    def neighbours(self: Written) -> list[int]:
        places = [0, *(node + 1 for node in self.verdict.kept)]
        return [self.root + (place - 1) % (1 + len(self.tree)) for place in places]

    patch.setattr(Written, "logit_rows", property(neighbours))


def key_noise_by_row(patch: Patch) -> None:
    def choose(scores: Any, rows: list[Row]) -> Any:
        keys = [Key(r.request.seed, i, r.position, Purpose.CHOICE) for i, r in enumerate(rows)]
        return _decide(scores, rows, keys)

    patch.setattr(verify, "choose", choose)


def commit_the_neighbours_slot(patch: Patch) -> None:
    real = KVCache.commit

    def wrong(self: KVCache, request: Request, keep: list[int], ahead: int = 0) -> None:
        if len(keep) > 1 and keep[-1] + 1 < len(request.reserved):
            keep = [*keep[:-1], keep[-1] + 1]
        real(self, request, keep)

    patch.setattr(KVCache, "commit", wrong)


class Meddler(Drafter):
    """Changes the text it was only to read."""

    name = "meddler"

    def propose(self, batch: list[Request], budgets: list[int]) -> list[TokenTree]:
        for request in batch:
            request.tokens[-1] = 7
        return [TokenTree.chain([8] * budget, self.name) for budget in budgets]


@dataclass(frozen=True)
class Fault:
    plant: Callable[[Patch], None]
    fails: set[str]  # checks that must fail
    passes: set[str]  # checks that must not, or the diagnosis would mislead
    drafter: str = "noisy"
    traversal: bool = False
    samples: int = 0


WHOLE = "distribution, whole vocabulary"
FAULTS = [
    Fault(accept_every_draft, {"greedy", "seeded"}, {"reference"}),
    Fault(accept_by_the_wrong_row, {"greedy", "seeded"}, {"reference"}),
    Fault(drop_the_residual, {WHOLE}, {"greedy", "logprobs"}, "wild", True, 512),
    Fault(report_q_at_another_temperature, {WHOLE}, {"greedy", "logprobs"}, "wild", True, 512),
    Fault(
        ignore_penalties_of_drafted_tokens,
        {"presence_penalty", "frequency_penalty"},
        {"greedy", "seeded", "logprobs", "stop_token_ids", "logit_bias"},
        "target",
    ),
    Fault(
        ignore_stops_inside_a_draft,
        {"stop_token_ids"},
        {"greedy", "seeded", "top_k", "presence_penalty", "logprobs", "logit_bias"},
        "target",
    ),
    Fault(logprobs_of_the_wrong_row, {"logprobs"}, {"top_k", "stop", "presence_penalty"}),
    Fault(key_noise_by_row, {"seeded", "top_k", "temperature"}, {"greedy"}),
    Fault(commit_the_neighbours_slot, {"greedy"}, {"reference"}),
]


def audited(models: Models, wild: str, fault: Fault) -> Any:
    folder = wild if fault.drafter == "wild" else getattr(models, fault.drafter)
    config: dict[str, Any] = {"model": folder, "num_speculative_tokens": 4}
    if fault.traversal:
        config["verification"] = "traversal"
    return audit_engine(models.target, config, dtype="float32", samples=fault.samples)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.plant.__name__)
def test_a_planted_fault_is_found(models, wild, monkeypatch, fault):
    fault.plant(monkeypatch)
    report = audited(models, wild, fault)
    failed = {check.name for check in report.failures}
    assert not report.passed and fault.fails <= failed, failed
    assert not fault.passes & failed, failed
    for check in report.failures:
        assert check.name.startswith("distribution") or any(
            difference.verdict == "real fault" for difference in check.differences
        )


@pytest.mark.parametrize("drafter", ["noisy", "wild"])
@pytest.mark.parametrize("traversal", [False, True])
def test_without_a_fault_it_passes(models, wild, drafter, traversal):
    fault = Fault(lambda patch: None, set(), set(), drafter, traversal, 256)
    report = audited(models, wild, fault)
    assert report.passed, [(check.name, check.detail) for check in report.failures]
    drawn = next(check for check in report.checks if check.name == "distribution")
    assert drawn.figures["accepted"] > 100 and drawn.figures["rejected"] > 100


def test_a_drafter_that_changes_the_text(models):
    with registered(Meddler):
        report = audit_engine(models.target, "meddler", dtype="float32", samples=0)
    greedy = next(check for check in report.checks if check.name == "greedy")
    fault = greedy.differences[0]
    assert not greedy.passed and fault.verdict == "real fault"
    assert fault.margin > 100 * fault.tolerance and fault.token != fault.expected


def out_of_ideas(self: Any, batch: Any, budgets: Any) -> Any:
    raise RuntimeError("out of ideas")


def beyond_its_budget(self: Any, batch: Any, budgets: Any) -> Any:
    return [TokenTree.chain([8] * (budget + 1), self.name) for budget in budgets]


@pytest.mark.parametrize(
    ("propose", "said"), [(out_of_ideas, "out of ideas"), (beyond_its_budget, "its fault")]
)
def test_a_drafter_that_breaks_is_a_finding(models, monkeypatch, propose, said):
    monkeypatch.setattr(Meddler, "propose", propose)
    with registered(Meddler):
        report = audit_engine(models.target, "meddler", dtype="float32", samples=0)
    assert [check.name for check in report.failures] == ["engine"]
    assert said in report.failures[0].detail


def test_the_command_exits_with_one_and_shows_the_fault(models, monkeypatch, capsys):
    accept_every_draft(monkeypatch)
    config = json.dumps({"model": models.noisy})
    argv = ["audit", "--model", models.target, "--speculative-config", config, "--samples", "64"]
    argv += ["--dtype", "float32", "--quick"]
    assert main.run(argv) == 1
    shown = " ".join(capsys.readouterr().out.split())
    assert "FAILED: greedy, seeded" in shown and "real fault" in shown and "margin" in shown
    assert main.run([*argv, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["passed"] is False and found["drafter"] == "draft_model"
    fault = next(c for c in found["checks"] if c["name"] == "greedy")["differences"][0]
    assert fault["verdict"] == "real fault" and fault["margin"] > fault["tolerance"]
