"""Passing over some decoder layers of an unforked module, for the length of one pass."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

from outrider.core.errors import ModelError
from outrider.model.attention import LayerCall, Pass, attending


class DecoderLayers:
    """The decoder layers that own the attention modules in `calls`, in the same order.

    A skipped layer hands on the hidden states it was given, in the form in which it returns its
    own: some releases of a family return a tensor, others a tuple. One pass at birth tells.
    """

    def __init__(self, model: nn.Module, calls: list[LayerCall], device: torch.device) -> None:
        self.layers = [layer_of(model, call.module) for call in calls]
        self._lengths = _output_lengths(model, self.layers, device)

    @contextmanager
    def without(self, skip: frozenset[int]) -> Iterator[None]:
        with ExitStack() as stack:
            for index in sorted(skip):
                identity = _identity(self._lengths[index])
                stack.enter_context(_forward_replaced(self.layers[index], identity))
            yield


def layer_of(model: nn.Module, attention: nn.Module) -> nn.Module:
    """The element of a ModuleList that holds this attention module; the innermost one."""
    name = next(name for name, module in model.named_modules() if module is attention)
    parts = name.split(".")
    for end in range(len(parts), 1, -1):
        if isinstance(model.get_submodule(".".join(parts[: end - 1])), nn.ModuleList):
            return model.get_submodule(".".join(parts[:end]))
    kind = type(model).__name__
    raise ModelError(f"{kind}: {name} is in no list of layers, so that single ones cannot be told")


@torch.inference_mode()
def _output_lengths(
    model: nn.Module, layers: list[nn.Module], device: torch.device
) -> list[int | None]:
    """Entries of the tuple that each layer returns; None where it returns a tensor."""
    lengths: dict[nn.Module, int | None] = {}

    def note(layer: nn.Module, _: Any, output: Any) -> None:
        if isinstance(output, tuple) and any(entry is not None for entry in output[1:]):
            # An identity would have to make them up.
            raise ModelError(
                f"{type(layer).__name__} returns more than hidden states, so that layers of"
                f" {type(model).__name__} cannot be skipped"
            )
        lengths[layer] = len(output) if isinstance(output, tuple) else None

    with ExitStack() as stack:
        for layer in layers:
            stack.callback(layer.register_forward_hook(note).remove)
        one = torch.zeros(1, 1, dtype=torch.int64, device=device)
        # A pass that only records writes no KV.
        stack.enter_context(attending(Pass(one[0], [], recorded=[])))
        model(input_ids=one, position_ids=one, use_cache=False)
    return [lengths[layer] for layer in layers]


def _identity(length: int | None) -> Callable[..., Any]:
    def identity(*args: Any, **kwargs: Any) -> Any:
        hidden = args[0] if args else kwargs["hidden_states"]  # [1, rows, hidden size]
        return hidden if length is None else (hidden,) + (None,) * (length - 1)

    return identity


@contextmanager
def _forward_replaced(layer: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """An instance's attribute hides the class's method until it is taken away again."""
    before = layer.__dict__.get("forward")  # a hook of accelerate's, say
    layer.forward = forward
    try:
        yield
    finally:
        if before is None:
            del layer.forward
        else:
            layer.forward = before
