"""Every tree shape of a draft model, audited on a tiny model; the chain is in test_matrix.py."""

from typing import Any

import pytest

from outrider.audit.run import audit_engine

TREES: dict[str, Any] = {
    "fixed": [3, 2, 1],
    "optimal": "optimal",
    "confidence": "confidence",
}


@pytest.mark.parametrize("batch", [1, 16])
@pytest.mark.parametrize(
    ("name", "verification"),
    [*((name, "coupled") for name in TREES), ("fixed", "traversal"), ("optimal", "traversal")],
)
def test_audit(models: Any, name: str, verification: str, batch: int) -> None:
    config = {
        "model": models.noisy,  # wrong now and then: tests of rejection need rejections
        "num_speculative_tokens": 7,
        "tree": TREES[name],
        "verification": verification,
    }
    samples, tokens = (64, 6) if batch == 1 else (192, 8)  # one by one is slow
    report = audit_engine(
        models.target, config, dtype="float32", max_num_seqs=batch, samples=samples, tokens=tokens
    )
    assert [f"{check.name}: {check.detail}" for check in report.failures] == []
    checks = {check.name: check for check in report.checks}
    assert checks["greedy"].figures["equal_texts"] == 4  # T = 0
    assert "seeded" in checks or verification == "traversal"  # T = 1, token by token
    drawn = checks["distribution"].figures  # T = 1
    assert drawn["accepted"] > 0 and drawn["rejected"] > 0
