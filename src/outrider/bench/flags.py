"""The options of `outrider bench`, as the command line takes them."""

from pathlib import Path
from typing import Annotated

import typer

WHAT, HOW, MODEL, PEERS = "What is measured", "How", "Model", "Peers"

Workload = Annotated[
    str | None,
    typer.Option(
        help="standard: 50 prompts of 8 kinds. agents: repeated traffic, 20 tasks for tools, forms"
        " and files, asked three times round with other names and numbers.",
        show_default="standard",
        rich_help_panel=WHAT,
    ),
]
Prompts = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="JSONL with id, category, turns; also Spec-Bench's own question file.",
        show_default="the workload's",
        rich_help_panel=WHAT,
    ),
]
Limit = Annotated[
    int | None,
    typer.Option(help="Prompts per category.", show_default="all", rich_help_panel=WHAT),
]
Drafters = Annotated[
    list[str] | None,
    typer.Option(
        help="Names, ngram:k=4, or JSON objects with vLLM's keys; none is always included.",
        show_default="none,auto",
        rich_help_panel=WHAT,
    ),
]
BatchSizes = Annotated[
    str | None,
    typer.Option(help="Requests at once, e.g. 1,8,32.", show_default="1,8", rich_help_panel=WHAT),
]
Temperatures = Annotated[
    str | None,
    typer.Option(help="E.g. 0,1; 0 is greedy.", show_default="0", rich_help_panel=WHAT),
]
MaxTokens = Annotated[
    int | None,
    typer.Option(help="Length of an answer.", show_default="128", rich_help_panel=WHAT),
]
Repeat = Annotated[
    int | None,
    typer.Option(
        help="Runs of each cell; intervals need at least 2.",
        show_default="3",
        rich_help_panel=HOW,
    ),
]
Precision = Annotated[
    float | None,
    typer.Option(
        help="Repeat each comparison until its speed-up is known to within this share of itself:"
        " half the width of the 95 % interval. Takes 6 runs at least. E.g. 0.03.",
        show_default="as --repeat says",
        rich_help_panel=HOW,
    ),
]
MaxRepeat = Annotated[
    int | None,
    typer.Option(
        help="Runs of each cell at most, with --precision.",
        show_default="20",
        rich_help_panel=HOW,
    ),
]
Quick = Annotated[
    bool,
    typer.Option(
        "--quick",
        help="Under three minutes: one prompt per category, short answers, one run."
        " Options that are given still hold.",
        rich_help_panel=HOW,
    ),
]
Seed = Annotated[
    int, typer.Option(help="Of the texts at temperatures above 0.", rich_help_panel=HOW)
]
SameTexts = Annotated[
    bool,
    typer.Option(
        "--same-texts",
        help="Everybody writes plain decoding's texts, so that none is lucky: in low precision near"
        " ties are decided by the shapes of passes, and drafters write different texts. CPU only.",
        rich_help_panel=HOW,
    ),
]
Out = Annotated[
    Path, typer.Option(metavar="DIR", help="Where the results go.", rich_help_panel=HOW)
]
Resume = Annotated[
    bool,
    typer.Option(
        "--resume",
        help="Go on where it was interrupted, or with more --repeat or --precision.",
        rich_help_panel=HOW,
    ),
]
Compare = Annotated[
    tuple[Path, Path] | None,
    typer.Option(
        metavar="A.json B.json",
        help="Measure nothing: show what changed from A to B and what is noise.",
    ),
]
Model = Annotated[
    str,
    typer.Option(
        "--model",
        "-m",
        help="Built-in name, hub id, folder or .gguf file (see: outrider models).",
        rich_help_panel=MODEL,
    ),
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, …", rich_help_panel=MODEL)]
Dtype = Annotated[
    str, typer.Option(help="auto, float32, bfloat16, float16.", rich_help_panel=MODEL)
]
Quantization = Annotated[
    str | None,
    typer.Option(
        help="Weights in int8 or int4, by torchao; peers run the model as it is.",
        show_default="as the checkpoint has them",
        rich_help_panel=MODEL,
    ),
]
MaxModelLen = Annotated[
    int | None,
    typer.Option(
        help="Context; less takes less memory.",
        show_default="the model's",
        rich_help_panel=MODEL,
    ),
]
Peers = Annotated[
    str,
    typer.Option(
        help="Other systems with the same prompts: transformers,llama.cpp,openvino,vllm.",
        rich_help_panel=PEERS,
    ),
]
PeerTimeout = Annotated[
    float, typer.Option(help="Seconds for each of them.", rich_help_panel=PEERS)
]
Gguf = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="The model for peers that read GGUF.",
        show_default="the built-in model's own",
        rich_help_panel=PEERS,
    ),
]
