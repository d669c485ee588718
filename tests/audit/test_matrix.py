"""Every drafter there is, audited on a tiny model. A new drafter is in here by being registered.

Tree shapes are in test_shapes.py, other tokenizers in tests/drafters/test_foreign_audit.py.
"""

from functools import cache

import pytest

from outrider.audit.report import AuditReport
from outrider.audit.run import audit_engine
from outrider.drafters.registry import drafter_class, drafter_names

BASE = {"greedy", "seeded"}


@cache
def audited(target: str, name: str, verification: str, batch: int) -> AuditReport:
    config = {**drafter_class(name).audit_config(target), "verification": verification}
    samples, tokens = (96, 6) if batch == 1 else (192, 12)  # one by one is slow
    return audit_engine(
        target, config, dtype="float32", max_num_seqs=batch, samples=samples, tokens=tokens
    )


@pytest.mark.parametrize("batch", [1, 16])
@pytest.mark.parametrize("verification", ["coupled", "traversal"])
@pytest.mark.parametrize("name", drafter_names())
class TestMatrix:
    def test_greedy(self, models, name, verification, batch):
        report = audited(models.target, name, verification, batch)
        assert report.subject["drafter"] == name
        checks = {check.name: check for check in report.checks}
        assert checks["reference"].passed, checks["reference"].detail
        assert checks["greedy"].passed, checks["greedy"].detail
        assert checks["greedy"].figures["equal_texts"] == 4

    def test_at_temperature_one(self, models, name, verification, batch):
        report = audited(models.target, name, verification, batch)
        for check in report.checks:
            if check.name == "seeded" or check.name.startswith("distribution"):
                assert check.passed, f"{check.name}: {check.detail}"
        drawn = next(check for check in report.checks if check.name == "distribution")
        assert drawn.figures["drafted"] > 0 or name == "none", "the drafter was not exercised"

    def test_options(self, models, name, verification, batch):
        report = audited(models.target, name, verification, batch)
        rest = [c for c in report.checks if c.name not in BASE and "distribution" not in c.name]
        assert len(rest) > 12
        assert [f"{check.name}: {check.detail}" for check in rest if not check.passed] == []


def test_low_precision_is_judged_by_feeding_back(models):
    config = {"model": models.noisy, "num_speculative_tokens": 3}
    report = audit_engine(models.target, config, dtype="bfloat16", samples=256, tokens=16)
    assert report.passed, [f"{check.name}: {check.detail}" for check in report.failures]
    tolerance = report.checks[0].figures["tolerance"]
    assert 1e-3 < tolerance < 4
    assert "in float32" in report.checks[0].detail
