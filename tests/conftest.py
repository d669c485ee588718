"""Which tests share a worker when several run at once; kernels without a GPU."""

import os

import pytest
import torch

if not torch.cuda.is_available():  # Triton reads this when it is first imported
    os.environ["TRITON_INTERPRET"] = "1"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A file's tests share its models, so they stay together; the long tables of audits, which are
    made case by case, are split by case."""
    for item in items:
        group = str(item.path)
        if item.path.name in ("test_matrix.py", "test_shapes.py") and hasattr(item, "callspec"):
            group += f" {item.callspec.id}"
        item.add_marker(pytest.mark.xdist_group(group))
