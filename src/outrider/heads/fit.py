"""Whether a drafter's files fit the target."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from outrider.heads.files import Files
from outrider.heads.head import Target


def check_architecture(files: Files, target: Target) -> None:
    """Where the files name the kind of model they were made for."""
    verifier = (files.config.get("speculators_config") or {}).get("verifier") or {}
    wanted = verifier.get("architectures") or []
    ours = getattr(target.model.config, "architectures", None) or [type(target.model).__name__]
    if wanted and not set(wanted).intersection(ours):
        made_for = verifier.get("name_or_path") or "another model"
        raise files.wrong(
            f"it was made for {made_for} ({', '.join(wanted)}), and the target is {', '.join(ours)}"
        )


def check_vocabulary(files: Files, size: int, target: Target) -> None:
    if size != target.vocabulary:
        raise files.wrong(
            f"it knows {size} tokens, and the target has {target.vocabulary}; it was made for "
            "another model"
        )


def check_taps(files: Files, ids: Sequence[Any], layers: int) -> tuple[int, ...]:
    """Layers of the target whose inputs are read."""
    good = bool(ids) and all(isinstance(i, int) and 0 <= i < layers for i in ids)
    if not good:
        raise files.wrong(
            f"it reads the inputs of layers {list(ids)}, and the target has layers 0 to "
            f"{layers - 1}; it was made for another model"
        )
    return tuple(ids)


def check_d2t(files: Files, vocabulary: int, d2t: Tensor | None, t2d: Tensor | None) -> None:
    """d2t [draft vocabulary] holds offsets, and t2d [vocabulary] marks the same tokens."""
    if d2t is None:
        return
    ids = torch.arange(len(d2t)) + d2t.cpu()
    if bool(((ids < 0) | (ids >= vocabulary)).any()) or len(ids.unique()) != len(ids):
        raise files.wrong(
            f"its d2t does not name {len(ids)} different tokens out of the target's {vocabulary}; "
            "it must hold offsets (target id - draft id)"
        )
    if t2d is None:
        return
    if len(t2d) != vocabulary:
        raise files.wrong(
            f"its t2d has {len(t2d)} entries, and the target has {vocabulary} tokens; it was made "
            "for another model"
        )
    if not torch.equal(t2d.cpu().nonzero()[:, 0], ids.sort().values):
        raise files.wrong("its d2t and t2d name different tokens; the checkpoint is damaged")
