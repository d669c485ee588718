"""Every drafter there is, audited on a CUDA device; skipped where there is none."""

from pathlib import Path

import pytest
import torch
from tests.engine.helpers import make_models

from outrider.audit.run import audit_engine
from outrider.drafters.registry import drafter_class, drafter_names

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_models(Path(tmp_path_factory.mktemp("models"))).target


@pytest.mark.parametrize("batch", [1, 16])
@pytest.mark.parametrize("name", drafter_names())
def test_every_drafter_passes_its_audit(target: str, name: str, batch: int) -> None:
    """Greedy, seeded, all options, distributions at T = 1."""
    torch.backends.cuda.matmul.allow_tf32 = False
    config = drafter_class(name).audit_config(target)
    samples, tokens = (96, 6) if batch == 1 else (192, 12)
    report = audit_engine(
        target, config, device="cuda", dtype="float32", max_num_seqs=batch, samples=samples,
        tokens=tokens,
    )  # fmt: skip
    assert report.subject["drafter"] == name and report.subject["device"].startswith("cuda")
    failed = [f"{check.name}: {check.detail}" for check in report.checks if not check.passed]
    assert failed == []
