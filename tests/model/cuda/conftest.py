from typing import Any

import numpy as np
import pytest
import torch

from outrider.model.cuda import invariant_attention, tree_attention


@pytest.fixture(autouse=True)
def few_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter runs one program after the other, those with nothing to do among them."""
    if not torch.cuda.is_available():
        monkeypatch.setattr(tree_attention, "MOST_PARTS", 4)
        monkeypatch.setattr(invariant_attention, "PROGRAMS", 8)


@pytest.fixture(autouse=True)
def products_like_those_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter multiplies by NumPy. On some processors its library adds up an element in
    another order at the edge of a block than inside it, so that a row's place shows in its bits; in
    a GPU's block of products all elements are alike. And it takes bfloat16 for integers."""
    if torch.cuda.is_available():
        return
    from triton import language
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    def numbers(x: Any) -> np.ndarray:
        if x.dtype.scalar == language.bfloat16:  # of which the interpreter keeps the bits
            return (x.data.astype(np.uint32) << 16).view(np.float32)
        return x.data

    def create_dot(_: Any, a: Any, b: Any, added: Any, *__: Any) -> Any:
        # [..., m, k], [..., k, n]
        left, right = (numbers(x).astype(added.data.dtype) for x in (a, b))
        product = (left[..., :, :, np.newaxis] * right[..., np.newaxis, :, :]).sum(axis=-2)
        return TensorHandle(product + added.data, added.dtype.scalar)

    monkeypatch.setattr(InterpreterBuilder, "create_dot", create_dot)
