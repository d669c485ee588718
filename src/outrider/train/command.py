"""`outrider train`: a drafter for one's own model. Imports nothing heavy: `--help` is instant."""

import os
from pathlib import Path
from typing import Annotated

import typer

from outrider.core.errors import ConfigError
from outrider.train.settings import KINDS

BY_SIZE = "by the target's size"


def train_command(
    kind: Annotated[
        str, typer.Argument(help="medusa, eagle3, dspark, or distill: a small draft model.")
    ],
    target: Annotated[str, typer.Option(help="Built-in name, hub id, folder or .gguf file.")],
    out: Annotated[Path, typer.Option(help="Folder for the drafter, its texts and checkpoints.")],
    data: Annotated[
        list[str],
        typer.Option(
            help="self: the target asks and answers itself; or a JSONL of prompts. Given several "
            "times: in turn.",
        ),
    ] = ["self"],  # noqa: B006
    texts: Annotated[
        int | None,
        typer.Option(min=2, help="How many texts the target writes.", show_default=BY_SIZE),
    ] = None,
    longest: Annotated[int, typer.Option(min=8, help="Tokens of a text at most.")] = 768,
    temperature: Annotated[float, typer.Option(min=0, help="At which it answers.")] = 0.7,
    steps: Annotated[int | None, typer.Option(min=1, help="Lessons.", show_default=BY_SIZE)] = None,
    texts_per_step: Annotated[
        int | None,
        typer.Option(min=1, help="Texts of one lesson, of all GPUs.", show_default=BY_SIZE),
    ] = None,
    vocabulary: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens that the drafter knows.", show_default="16384"),
    ] = None,
    layers: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Of a distilled model, taken evenly from the target's.",
            show_default="an eighth of the target's",
        ),
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(
            help="A drafter that this command made, for the same target: go on from it, with other "
            "texts, say.",
            show_default="from nothing",
        ),
    ] = None,
    normed: Annotated[
        bool,
        typer.Option(
            "--normed",
            help="eagle3: norm the target's states before they are mixed. Learns faster, but the "
            "authors' own layout cannot hold it (see: outrider export).",
        ),
    ] = False,
    learning_rate: Annotated[
        float | None,
        typer.Option(min=0, help="At its highest.", show_default=f"by kind and {BY_SIZE}"),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of texts and lessons.")] = 0,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with what --out holds.")] = False,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, …")] = "auto",
    dtype: Annotated[str, typer.Option(help="Of the target.")] = "auto",
) -> None:
    """Train a drafter for one's own model.

    The target writes the texts itself, so no data set is needed. Texts, checkpoints, the drafter
    and a report (report.md) are in the folder given by --out; after Ctrl-C or a kill, the same
    command with --resume goes on. The result is used as speculative_config={"model": FOLDER}.
    Several GPUs of one machine share the work under torchrun.

    Examples:

    outrider train dspark --target smollm2-135m --out drafter

    outrider train eagle3 --target ./my-model --data prompts.jsonl --data self --out drafter

    outrider train distill --target ./my-model --layers 4 --out small-model

    torchrun --nproc-per-node 4 --no-python outrider train dspark --target ./my-model --out drafter
    """
    if kind not in KINDS:
        raise ConfigError(f"{kind!r} cannot be trained; known are {', '.join(KINDS)}")
    first = os.environ.get("RANK", "0") == "0"  # of torchrun's processes: it writes into --out
    if first and not resume and out.exists() and any(out.iterdir()):
        raise ConfigError(f"{out} is not empty; give --resume to go on there, or another --out")
    from outrider.train.defaults import filled
    from outrider.train.run import run

    run(
        filled(
            kind=kind, target=target, out=out, data=tuple(data), texts=texts, longest=longest,
            temperature=temperature, steps=steps, texts_per_step=texts_per_step,
            vocabulary=vocabulary, layers=layers, start=start, normed=normed,
            learning_rate=learning_rate, seed=seed, device=device, dtype=dtype,
        )
    )  # fmt: skip
