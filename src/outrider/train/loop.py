"""The lessons: steps, checkpoints, and going on after a kill."""

import math
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from outrider.core.errors import OutriderError
from outrider.heads.head import Head, Target
from outrider.train import objective
from outrider.train.batch import Vocabulary
from outrider.train.checkpoint import keep, resume, write
from outrider.train.distill import distill
from outrider.train.ranks import ALONE, Ranks
from outrider.train.sheets import Sheets
from outrider.train.texts import Text

OBJECTIVES: dict[str, objective.Objective] = {**objective.OBJECTIVES, "distill": distill}
LEARNING_RATES = {"medusa": 1e-3, "eagle3": 6e-4, "dspark": 6e-4, "distill": 3e-4}
WARM_UP = 0.04  # of all steps
HELD_OUT = 0.05  # of all texts: never learned, only judged by
MOST_HELD_OUT = 128  # texts
SHEETS = 4  # of a lesson: texts of several lengths; a GPU does better with one that fills it
CLIP = 1.0


@dataclass(frozen=True)
class Plan:
    kind: str
    steps: int
    texts_per_step: int
    every: int  # steps between two checkpoints
    seed: int
    learning_rate: float | None = None
    sheets: int = SHEETS  # of a lesson

    @property
    def texts_per_sheet(self) -> int:
        return max(1, self.texts_per_step // self.sheets)

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
    lessons: float | None = None  # mean loss of the lessons since the judgement before
    seconds: float = 0.0  # of all lessons so far

    @property
    def length(self) -> float:
        """Tokens per pass of the target, its own included, as greedy chains would give."""
        total, path = 1.0, 1.0
        for share in self.depths:
            path *= share
            total += path
        return total


def held_out_of(texts: int) -> int:
    """How many of so many texts, the first ones, are only judged by."""
    return max(1, min(MOST_HELD_OUT, int(HELD_OUT * texts)))


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
    ranks: Ranks = ALONE,
) -> list[Judgement]:
    """Teach the head; its files are in `folder` at the end. A checkpoint there is gone on with.
    Processes that learn together must start alike."""
    device = words.ids.device
    head.to(device).float().train()
    model.requires_grad_(False)
    own = [each for each in head.parameters() if each.requires_grad]  # before it borrows any
    head.borrow(Target.of(model))
    optimizer = torch.optim.AdamW(own, lr=1.0, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
    held = held_out_of(len(texts))
    if len(texts) <= held:
        raise OutriderError(f"{len(texts)} texts are too few to learn from; ask for more")
    held_out, lessons = (
        Sheets(model, head.taps, words, some, plan.texts_per_sheet)
        for some in (texts[:held], texts[held:])
    )
    kept = resume(folder, plan.kind, head, optimizer)
    judged = [Judgement(**each) for each in kept["judged"]]
    begun = time.monotonic() - (judged[-1].seconds if judged else 0.0)
    losses: list[float] = []
    for step in range(kept["step"], plan.steps):
        some = random.Random(f"{plan.seed} {step}").sample(
            range(len(lessons)), min(plan.sheets, len(lessons))
        )
        loss = _learn(head, lessons, some, words, plan, step, optimizer, own, ranks)
        losses.append(loss)
        verdict = None
        if (step + 1) % plan.every == 0 or step + 1 == plan.steps:
            found = judge(head, held_out, words, plan, step + 1)
            _must_be_finite(found.loss, step)  # before the checkpoint that it would spoil
            mean, seconds = sum(losses) / len(losses), time.monotonic() - begun
            verdict = replace(found, lessons=mean, seconds=seconds)
            judged.append(verdict)
            losses = []
            if ranks.first:
                told = [asdict(each) for each in judged]
                keep(folder, head, optimizer, plan=asdict(plan), step=step + 1, judged=told)
        tell(step + 1, loss, verdict)
    if ranks.first:
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
    ranks: Ranks,
) -> float:
    """One step, from some sheets: they differ in length, so their gradients are added up."""
    device = words.ids.device
    optimizer.zero_grad()
    weights = [lessons.learned(index) for index in some]
    total = torch.zeros((), device=device)
    for place in ranks.share(range(len(some))):
        # Drawn for this place of the lesson, whichever process it falls to.
        seed = (plan.seed * 1_000_003 + step) * plan.sheets + place
        generator = torch.Generator().manual_seed(seed)
        with _room(step):
            with _precision(device):
                loss = OBJECTIVES[plan.kind](head, lessons[some[place]], words, generator).loss
            loss = loss * (weights[place] / sum(weights))
            loss.backward()
        total += loss.detach()
    value = float(ranks.sum(total))
    _must_be_finite(value, step)
    ranks.sum_gradients(own)
    for group in optimizer.param_groups:
        group["lr"] = plan.rate(step)
    nn.utils.clip_grad_norm_(own, CLIP)
    optimizer.step()
    return value


def _must_be_finite(loss: float, step: int) -> None:
    if not math.isfinite(loss):
        raise OutriderError(
            f"the loss is {loss} in step {step + 1}; the last checkpoint is kept. Go on with "
            "--resume and a lower --learning-rate"
        )


@contextmanager
def _room(step: int) -> Iterator[None]:
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise OutriderError(
            f"the texts of step {step + 1} do not fit into memory; the last checkpoint is kept. Go "
            "on with --resume and a lower --texts-per-step"
        ) from error


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
