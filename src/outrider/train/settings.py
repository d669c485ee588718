"""What a training run was asked for."""

from dataclasses import dataclass
from pathlib import Path

KINDS = ("medusa", "eagle3", "dspark")


@dataclass(frozen=True)
class Settings:
    kind: str
    target: str
    out: Path
    data: str  # "self", or a file of prompts
    texts: int
    longest: int  # tokens of a text
    temperature: float
    steps: int
    texts_per_step: int
    vocabulary: int
    learning_rate: float | None
    seed: int
    device: str
    dtype: str
