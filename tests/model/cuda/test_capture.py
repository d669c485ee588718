"""What surrounds a capture; captures themselves need a GPU."""

import gc
from contextlib import nullcontext

import pytest
import torch

from outrider.model.cuda.capture import capturing


@pytest.mark.parametrize("enabled", [True, False])
def test_nothing_is_collected_while_a_graph_is_captured(
    monkeypatch: pytest.MonkeyPatch, enabled: bool
) -> None:
    """Also not after a capture that failed; and what a caller has switched off stays off."""
    monkeypatch.setattr(torch.cuda, "graph", lambda graph, pool: nullcontext())
    was = gc.isenabled()
    try:
        gc.enable() if enabled else gc.disable()
        with capturing(None, None):  # type: ignore[arg-type]
            assert not gc.isenabled()
        assert gc.isenabled() == enabled
        with pytest.raises(RuntimeError), capturing(None, None):  # type: ignore[arg-type]
            raise RuntimeError("out of memory")
        assert gc.isenabled() == enabled
    finally:
        gc.enable() if was else gc.disable()
