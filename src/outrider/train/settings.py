"""What a training run was asked for."""

from dataclasses import dataclass
from pathlib import Path

KINDS = ("medusa", "eagle3", "dspark", "distill")


@dataclass(frozen=True)
class Settings:
    kind: str
    target: str
    out: Path
    data: tuple[str, ...]  # each "self", or a file of prompts; texts come from them in turn
    texts: int
    longest: int  # tokens of a text
    temperature: float
    steps: int
    texts_per_step: int
    vocabulary: int | None  # tokens that a drafter knows; None: all of the target's
    layers: int | None  # of a distilled model; None: by those of the target
    start: str | None  # a drafter that was trained before, to go on from; None: from nothing
    normed: bool  # of eagle3: the target's states are normed before they are mixed
    learning_rate: float
    seed: int
    device: str
    dtype: str
