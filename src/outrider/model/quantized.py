"""Weights in fewer bits: int8 and int4 by torchao, or as a checkpoint brings them.

Only weights shrink; activations and KV keep the model's precision. A quantised module is a target
like any other: all that checks a pass compares it with this very module.
"""

import logging
from contextlib import nullcontext
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from outrider.core.errors import ConfigError, ModelError, unknown_name
from outrider.model.packed import is_packed

log = logging.getLogger(__name__)

KINDS = ("int8", "int4")
GROUPS = (128, 64, 32)  # weights under one scale in int4: the largest that divides a line of them
LINES = 16  # of an int4 weight: torch's kernels take them in blocks


def check_quantization(kind: str | None) -> None:
    """Before anything is loaded."""
    if kind is None:
        return
    if kind not in KINDS:
        raise ConfigError(unknown_name("quantization", str(kind), KINDS))
    if find_spec("torchao") is None:
        raise ConfigError(
            f"quantization={kind!r} needs the package torchao; try: pip install 'outrider[quant]'"
        )


def quantize(model: Any, kind: str, dtype: torch.dtype, device: torch.device) -> None:
    """Bring the model to `device`, its linear layers in `kind`.

    Layer by layer, so that the device never holds more than the result and one layer. The head
    keeps its precision: it decides between near tokens, and is often the embedding, too.
    """
    from torchao.quantization import quantize_

    head = model.get_output_embeddings()
    linears = [m for m in model.modules() if type(m) is nn.Linear and m is not head]
    configs = [_config(kind, linear, dtype, device) for linear in linears]
    done = [(linear, config) for linear, config in zip(linears, configs) if config is not None]
    if not done:
        raise ModelError(
            f"{model.config.model_type} models have no linear layers that torchao can bring to "
            f"{kind}; leave out quantization"
        )
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        for linear, config in done:
            quantize_(linear.to(device), config, filter_fn=lambda module, name: True)
    model.to(device)
    if len(done) < len(linears):
        log.warning(
            "%d of %d linear layers stay in %s: %s takes multiples of %d inputs and %d outputs",
            len(linears) - len(done), len(linears), dtype, kind, GROUPS[-1], LINES,
        )  # fmt: skip


def _config(kind: str, linear: nn.Linear, dtype: torch.dtype, device: torch.device) -> Any:
    """torchao's way for a layer of that shape; None where it has none."""
    from torchao.quantization import Int4WeightOnlyConfig, Int8WeightOnlyConfig

    if kind == "int8":
        return Int8WeightOnlyConfig(set_inductor_config=False)
    group = next((size for size in GROUPS if linear.in_features % size == 0), None)
    if group is None or linear.out_features % LINES:
        return None
    if device.type == "cuda":
        if dtype != torch.bfloat16:
            raise ConfigError(f"int4 on a GPU computes in bfloat16, not {dtype}; leave out dtype")
        # The layout of torch's own kernel; torchao's others need a package more.
        return Int4WeightOnlyConfig(
            group_size=group, int4_packing_format="tile_packed_to_4d", set_inductor_config=False
        )
    if dtype == torch.float32:
        _warn_of_float32()
    try:
        from torchao.prototype.quantization.int4 import PrototypeInt4WeightOnlyConfig
    except ImportError as error:
        raise ConfigError(
            "this torchao has no int4 layout for CPUs; try: pip install -U torchao, or give "
            "quantization='int8'"
        ) from error
    return PrototypeInt4WeightOnlyConfig(group_size=group, set_inductor_config=False)


@cache
def _warn_of_float32() -> None:
    """Once: it holds for every layer."""
    log.warning("int4 in float32 is many times slower on a CPU than in bfloat16; leave out dtype")


def quantization_of(config: Any) -> str | None:
    """The method by which a checkpoint's own weights are quantised."""
    given = getattr(config, "quantization_config", None)
    if given is None:
        return None
    method = given.get("quant_method") if isinstance(given, dict) else given.quant_method
    return str(getattr(method, "value", method))


def is_plain(module: nn.Module) -> bool:
    """Whether a module is a linear layer with a weight that is what it seems: quantised ones are
    of other types under the original's dtype and shape, or go by other names."""
    return isinstance(module, nn.Linear) and type(getattr(module, "weight", None)) is nn.Parameter


def weight_bytes(model: nn.Module) -> int:
    """What parameters and buffers really take, each memory once."""
    sizes: dict[int, int] = {}
    for tensor in [*model.parameters(), *model.buffers()]:
        for part in _parts(tensor):
            sizes[id(part) if is_packed(part) else part.data_ptr()] = part.nbytes
    return sum(sizes.values())


def _parts(tensor: Any) -> list[Tensor]:
    """The tensors that a tensor is made of; mostly itself."""
    if not hasattr(tensor, "__tensor_flatten__"):
        return [tensor]
    return [
        part for name in tensor.__tensor_flatten__()[0] for part in _parts(getattr(tensor, name))
    ]
