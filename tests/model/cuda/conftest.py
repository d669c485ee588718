import pytest
import torch

from outrider.model.cuda import invariant_attention, tree_attention


@pytest.fixture(autouse=True)
def few_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter runs one program after the other, those with nothing to do among them."""
    if not torch.cuda.is_available():
        monkeypatch.setattr(tree_attention, "MOST_PARTS", 4)
        monkeypatch.setattr(invariant_attention, "PROGRAMS", 8)
