"""What is asked for where nothing was said: by the size of the target, and by what it runs on."""

from pathlib import Path
from typing import Any, NamedTuple

from outrider.core.errors import ConfigError
from outrider.model.loading import choose_device, parameters_of
from outrider.train.loop import LEARNING_RATES
from outrider.train.settings import Settings

VOCABULARY = 16384


class Scale(NamedTuple):
    texts: int
    steps: int
    texts_per_step: int
    rate: float = 1.0  # of a kind's learning rate: wide layers bear less


# Up to so many parameters of the target. A larger one writes slower and fills more memory.
ON_GPU = {
    0.5e9: Scale(16_384, 2000, 128, 1.5),
    2e9: Scale(16_384, 2000, 64),
    5e9: Scale(8000, 1500, 32, 0.5),
    float("inf"): Scale(6000, 1500, 16, 0.5),
}
# For hours of a few cores, not for days.
ON_CPU = {
    0.3e9: Scale(2000, 1000, 8),
    float("inf"): Scale(500, 300, 4),
}


def scale_for(parameters: int, on_gpu: bool) -> Scale:
    table = ON_GPU if on_gpu else ON_CPU
    return next(scale for most, scale in table.items() if parameters <= most)


def filled(
    *,
    kind: str,
    target: str,
    out: Path,
    texts: int | None,
    steps: int | None,
    texts_per_step: int | None,
    vocabulary: int | None,
    layers: int | None,
    start: str | None,
    normed: bool,
    learning_rate: float | None,
    device: str,
    **others: Any,
) -> Settings:
    """The settings of a run; None stands for what was not said."""
    distilled = kind == "distill"
    if layers is not None and not distilled:
        raise ConfigError(f"--layers is for distill; leave it out for {kind}")
    if normed and kind != "eagle3":
        raise ConfigError(f"--normed is for eagle3; leave it out for {kind}")
    if vocabulary is not None and distilled:
        raise ConfigError("a distilled model knows all tokens; leave out --vocabulary")
    if start is not None and (distilled or normed or vocabulary is not None):
        raise ConfigError(
            "a drafter that is given by --start stays of its kind; leave out --vocabulary and "
            "--normed, and do not distill"
        )
    if learning_rate is not None and learning_rate <= 0:
        raise ConfigError(f"--learning-rate must be above 0, not {learning_rate}")
    scale = scale_for(parameters_of(target), choose_device(device).type == "cuda")
    return Settings(
        kind=kind,
        target=target,
        out=out,
        texts=texts or scale.texts,
        steps=steps or scale.steps,
        texts_per_step=texts_per_step or scale.texts_per_step,
        vocabulary=None if distilled else vocabulary or VOCABULARY,
        layers=layers,
        start=start,
        normed=normed,
        learning_rate=learning_rate or scale.rate * LEARNING_RATES[kind],
        device=device,
        **others,
    )
