"""`outrider train`: a drafter for one's own model. Imports nothing heavy: `--help` is instant."""

from pathlib import Path
from typing import Annotated

import typer

from outrider.core.errors import ConfigError
from outrider.train.settings import KINDS, Settings


def train_command(
    kind: Annotated[str, typer.Argument(help="medusa, eagle3 or dspark.")],
    target: Annotated[str, typer.Option(help="Built-in name, hub id, folder or .gguf file.")],
    out: Annotated[Path, typer.Option(help="Folder for the drafter, its texts and checkpoints.")],
    data: Annotated[
        str, typer.Option(help="self: the target asks and answers itself; or a JSONL of prompts.")
    ] = "self",
    texts: Annotated[int, typer.Option(help="How many texts the target writes.")] = 2000,
    longest: Annotated[int, typer.Option(help="Tokens of a text at most.")] = 512,
    temperature: Annotated[float, typer.Option(help="At which it answers.")] = 0.7,
    steps: Annotated[int, typer.Option(help="Lessons.")] = 1000,
    texts_per_step: Annotated[int, typer.Option(help="Texts of one lesson.")] = 8,
    vocabulary: Annotated[int, typer.Option(help="Tokens that the drafter knows.")] = 16384,
    learning_rate: Annotated[
        float | None, typer.Option(help="At its highest.", show_default="by kind")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of texts and lessons.")] = 0,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with what --out holds.")] = False,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, …")] = "auto",
    dtype: Annotated[str, typer.Option(help="Of the target.")] = "auto",
) -> None:
    """Train a drafter for one's own model.

    The target writes the texts itself, so no data set is needed. Texts, checkpoints and the
    drafter are in the folder given by --out; after Ctrl-C or a kill, the same command with
    --resume goes on. The result is used as speculative_config={"model": FOLDER}.

    Examples:

    outrider train dspark --target smollm2-135m --out drafter

    outrider train eagle3 --target ./my-model --data prompts.jsonl --out drafter
    """
    if kind not in KINDS:
        raise ConfigError(f"{kind!r} cannot be trained; known are {', '.join(KINDS)}")
    if out.exists() and any(out.iterdir()) and not resume:
        raise ConfigError(f"{out} is not empty; give --resume to go on there, or another --out")
    from outrider.train.run import run

    run(
        Settings(
            kind, target, out, data, texts, longest, temperature, steps, texts_per_step, vocabulary,
            learning_rate, seed, device, dtype,
        )
    )  # fmt: skip
