"""What a training run leaves in its folder: to go on with, and at the end the drafter."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from outrider.core.errors import OutriderError
from outrider.heads.head import Head
from outrider.train.disk import not_written, safely
from outrider.train.distill import Student

FILE = "checkpoint.pt"


def keep(
    folder: Path,
    head: Head,
    optimizer: torch.optim.Optimizer,
    *,
    plan: dict[str, Any],
    step: int,
    judged: list[dict[str, Any]],
) -> None:
    state = {
        "plan": plan,
        "step": step,
        "head": _own_state(head),
        "optimizer": optimizer.state_dict(),
        "judged": judged,
    }
    with safely(f"the checkpoint of step {step}", folder / FILE) as partial:
        torch.save(state, partial)


def resume(folder: Path, kind: str, head: Head, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Set both to what was kept last. The `step` reached, and what was `judged` on the way."""
    file = folder / FILE
    if not file.exists():
        return {"step": 0, "judged": []}
    state: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
    if state["plan"]["kind"] != kind:
        raise OutriderError(
            f"{folder} holds a {state['plan']['kind']} drafter in the making, not {kind}; "
            "give another --out"
        )
    if not _alike(state["head"], _own_state(head)):
        raise OutriderError(
            f"{folder} holds a drafter of another shape or vocabulary in the making; give the "
            "same --texts, --vocabulary and --layers as before, or another --out"
        )
    head.load_state_dict(state["head"], strict=False)
    optimizer.load_state_dict(state["optimizer"])
    return state


def _alike(kept: dict[str, Tensor], own: dict[str, Tensor]) -> bool:
    """In shape, and in the tokens that they know."""
    shapes = [{key: tensor.shape for key, tensor in each.items()} for each in (kept, own)]
    return shapes[0] == shapes[1] and all(
        torch.equal(kept[key], tensor.cpu()) for key, tensor in own.items() if key == "d2t"
    )


def _own_state(head: Head) -> dict[str, Tensor]:
    """Without what is the target's and is not learned."""
    parameters = dict(head.named_parameters(remove_duplicate=False))
    return {
        key: tensor
        for key, tensor in head.state_dict().items()
        if key not in parameters or parameters[key].requires_grad
    }


def write(head: Head, config: dict[str, Any], folder: Path) -> None:
    """The drafter as it is loaded: in bfloat16."""
    if isinstance(head, Student):
        try:
            head.save(folder)
        except (OSError, RuntimeError, SafetensorError) as error:
            raise not_written("the model", folder / "model.safetensors", error) from error
        return
    tensors = {
        key: (tensor if tensor.dtype == torch.int64 else tensor.bfloat16()).contiguous().cpu()
        for key, tensor in _own_state(head).items()
    }
    with safely("the drafter", folder / "model.safetensors") as partial:
        save_file(tensors, partial, metadata={"format": "pt"})
    with safely("the drafter", folder / "config.json") as partial:
        partial.write_text(json.dumps(config, indent=2))
