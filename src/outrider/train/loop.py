"""The lessons: steps, checkpoints, and going on after a kill."""

import json
import math
import random
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from outrider.core.errors import OutriderError
from outrider.heads.head import BORROWED, Head, Target
from outrider.train.batch import Vocabulary
from outrider.train.objective import OBJECTIVES
from outrider.train.sheets import Sheets
from outrider.train.texts import Text

LEARNING_RATES = {"medusa": 1e-3, "eagle3": 3e-4, "dspark": 6e-4}
WARM_UP = 0.04  # of all steps
HELD_OUT = 0.05  # of all texts: never learned, only judged by
MOST_HELD_OUT = 128  # texts
SHEETS = 4  # of a lesson: texts of several lengths
CLIP = 1.0


@dataclass(frozen=True)
class Plan:
    kind: str
    steps: int
    texts_per_step: int
    every: int  # steps between two checkpoints
    seed: int
    learning_rate: float | None = None

    @property
    def texts_per_sheet(self) -> int:
        return max(1, self.texts_per_step // SHEETS)

    def rate(self, step: int) -> float:
        """Rises over the first steps, then falls as a cosine."""
        peak = self.learning_rate or LEARNING_RATES[self.kind]
        warm = max(1, int(WARM_UP * self.steps))
        if step < warm:
            return peak * (step + 1) / warm
        return peak * 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, self.steps - warm)))


@dataclass(frozen=True)
class Judgement:
    """On texts that were held out."""

    step: int
    loss: float
    depths: list[float]  # how often a guess holds, once one came so deep

    @property
    def length(self) -> float:
        """Tokens per pass of the target, its own included, as greedy chains would give."""
        total, path = 1.0, 1.0
        for share in self.depths:
            path *= share
            total += path
        return total


Tell = Callable[[int, float, Judgement | None], None]  # step, loss, and what was judged just now


def train(
    model: Any,
    head: Head,
    config: dict[str, Any],
    texts: list[Text],
    words: Vocabulary,
    plan: Plan,
    folder: Path,
    tell: Tell = lambda step, loss, judged: None,
) -> list[Judgement]:
    """Teach the head; its files are in `folder` at the end. A checkpoint there is gone on with."""
    device = words.ids.device
    head.to(device).float().train()
    model.requires_grad_(False)
    own = list(head.parameters())  # before it borrows from the target
    head.borrow(Target.of(model))
    optimizer = torch.optim.AdamW(own, lr=1.0, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
    held = max(1, min(MOST_HELD_OUT, int(HELD_OUT * len(texts))))
    if len(texts) <= held:
        raise OutriderError(f"{len(texts)} texts are too few to learn from; ask for more")
    held_out, lessons = (
        Sheets(model, head.taps, words, some, plan.texts_per_sheet)
        for some in (texts[:held], texts[held:])
    )
    start, judged = _resume(folder, head, optimizer, plan)
    for step in range(start, plan.steps):
        some = random.Random(f"{plan.seed} {step}").sample(
            range(len(lessons)), min(SHEETS, len(lessons))
        )
        loss = _learn(head, lessons, some, words, plan, step, optimizer, own)
        verdict = None
        if (step + 1) % plan.every == 0 or step + 1 == plan.steps:
            verdict = judge(head, held_out, words, plan, step + 1)
            judged.append(verdict)
            _keep(folder, head, optimizer, plan, step + 1, judged)
        tell(step + 1, loss, verdict)
    write(head, config, folder)
    return judged


def _learn(
    head: Head,
    lessons: Sheets,
    some: list[int],
    words: Vocabulary,
    plan: Plan,
    step: int,
    optimizer: torch.optim.Optimizer,
    own: list[nn.Parameter],
) -> float:
    """One step, from some sheets: they differ in length, so their gradients are added up."""
    optimizer.zero_grad()
    generator = torch.Generator().manual_seed(plan.seed * 1_000_003 + step)
    weights = [lessons.learned(index) for index in some]
    losses = []
    for index, weight in zip(some, weights, strict=True):
        with _precision(words.ids.device):
            loss = OBJECTIVES[plan.kind](head, lessons[index], words, generator).loss
        loss = loss * (weight / sum(weights))
        loss.backward()
        losses.append(loss.detach())
    value = float(torch.stack(losses).sum())
    if not math.isfinite(value):
        raise OutriderError(
            f"the loss is {value} in step {step + 1}; the last checkpoint is kept. Go on with "
            "--resume and a lower --learning-rate"
        )
    for group in optimizer.param_groups:
        group["lr"] = plan.rate(step)
    nn.utils.clip_grad_norm_(own, CLIP)
    optimizer.step()
    return value


def _precision(device: torch.device) -> torch.autocast:
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")


@torch.no_grad()
def judge(head: Head, held_out: Sheets, words: Vocabulary, plan: Plan, step: int) -> Judgement:
    losses = []
    agreed: Tensor | None = None
    for index in range(len(held_out)):
        generator = torch.Generator().manual_seed(index)
        with _precision(words.ids.device):
            found = OBJECTIVES[plan.kind](head, held_out[index], words, generator)
        losses.append(float(found.loss))
        both = torch.stack([found.agreed, found.counted])  # [2, depths]
        if agreed is None:
            agreed = both
        else:  # short texts reach less deep
            depths = min(agreed.shape[1], both.shape[1])
            agreed = agreed[:, :depths] + both[:, :depths]
    assert agreed is not None
    shares = (agreed[0] / agreed[1].clamp(min=1)).tolist()
    return Judgement(step, sum(losses) / len(losses), shares)


# ---- files ----


def _own_state(head: Head) -> dict[str, Tensor]:
    """Without what is borrowed from the target."""
    borrowed = {f"{name}.weight" for name in BORROWED if _is_borrowed(head, name)}
    return {key: tensor for key, tensor in head.state_dict().items() if key not in borrowed}


def _is_borrowed(head: Head, name: str) -> bool:
    module = getattr(head, name)
    return module is not None and not module.weight.requires_grad


def _keep(
    folder: Path,
    head: Head,
    optimizer: torch.optim.Optimizer,
    plan: Plan,
    step: int,
    judged: list[Judgement],
) -> None:
    """Written beside the old one first: a kill, or a full disk, loses nothing."""
    partial = folder / "checkpoint.partial"
    state = {
        "plan": asdict(plan),
        "step": step,
        "head": _own_state(head),
        "optimizer": optimizer.state_dict(),
        "judged": [asdict(judgement) for judgement in judged],
    }
    try:
        torch.save(state, partial)
    except (OSError, RuntimeError) as error:
        partial.unlink(missing_ok=True)
        raise OutriderError(
            f"the checkpoint of step {step} could not be written ({error}); the one before is "
            f"kept in {folder}. Make room, then go on with --resume"
        ) from error
    partial.replace(folder / "checkpoint.pt")


def _resume(
    folder: Path, head: Head, optimizer: torch.optim.Optimizer, plan: Plan
) -> tuple[int, list[Judgement]]:
    file = folder / "checkpoint.pt"
    if not file.exists():
        return 0, []
    state = torch.load(file, map_location="cpu", weights_only=True)
    if state["plan"]["kind"] != plan.kind:
        raise OutriderError(
            f"{folder} holds a {state['plan']['kind']} drafter in the making, not {plan.kind}; "
            "give another --out"
        )
    head.load_state_dict(state["head"], strict=False)
    optimizer.load_state_dict(state["optimizer"])
    return state["step"], [Judgement(**each) for each in state["judged"]]


def write(head: Head, config: dict[str, Any], folder: Path) -> None:
    """The drafter's own files, as it is loaded: in bfloat16."""
    tensors = {
        key: (tensor if tensor.dtype == torch.int64 else tensor.bfloat16()).contiguous().cpu()
        for key, tensor in _own_state(head).items()
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=2))
