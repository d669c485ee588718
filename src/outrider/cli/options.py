"""The options that several commands share, and what they build."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outrider.core.errors import ConfigError

if TYPE_CHECKING:
    from outrider import LLM, SamplingParams

DEFAULT_MODEL = "smollm2-135m"
DEFAULT_DRAFTER = "auto"

Model = Annotated[
    str,
    typer.Option(
        "--model",
        "-m",
        help="Built-in name, hub id, folder or .gguf file (see: outrider models).",
        rich_help_panel="Model",
    ),
]
Drafter = Annotated[
    str | None,
    typer.Option(
        help="Who rides ahead: auto, suffix, ngram, none, …, or files: ./folder or owner/name.",
        show_default=DEFAULT_DRAFTER,
        rich_help_panel="Speculation",
    ),
]
DraftLength = Annotated[
    int | None,
    typer.Option(
        "--num-speculative-tokens",
        help="Tokens proposed per step; without it, as many as pay.",
        rich_help_panel="Speculation",
    ),
]
SpeculativeConfig = Annotated[
    str | None,
    typer.Option(
        metavar="JSON",
        help="vLLM's keys, instead of the two above: method, model, num_speculative_tokens, …",
        rich_help_panel="Speculation",
    ),
]
Temperature = Annotated[float, typer.Option(help="0 is greedy.", rich_help_panel="Sampling")]
TopP = Annotated[
    float | None,
    typer.Option(help="Keep the likeliest tokens up to this mass.", rich_help_panel="Sampling"),
]
TopK = Annotated[
    int | None, typer.Option(help="Keep this many tokens.", rich_help_panel="Sampling")
]
MinP = Annotated[
    float | None,
    typer.Option(
        help="Keep tokens with at least this share of the likeliest one's probability.",
        rich_help_panel="Sampling",
    ),
]
Seed = Annotated[
    int | None,
    typer.Option(help="The same seed gives the same text.", rich_help_panel="Sampling"),
]
MaxTokens = Annotated[int, typer.Option(help="Length of the answer.", rich_help_panel="Sampling")]
Stop = Annotated[
    list[str] | None,
    typer.Option(help="End before this string; may be repeated.", rich_help_panel="Sampling"),
]
System = Annotated[str | None, typer.Option(help="System message.")]
Color = Annotated[
    bool | None,
    typer.Option(
        "--color/--no-color",
        help="Colour the tokens that came from a draft.",
        show_default="on a terminal",
    ),
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, …", rich_help_panel="Model")]
Dtype = Annotated[
    str,
    typer.Option(help="auto, float32, bfloat16, float16.", rich_help_panel="Model"),
]
Quantization = Annotated[
    str | None,
    typer.Option(
        help="Weights in int8 or int4, by torchao; smaller, and no longer quite the same model.",
        show_default="as the checkpoint has them",
        rich_help_panel="Model",
    ),
]
Reproducible = Annotated[
    bool,
    typer.Option(
        "--reproducible",
        help="The text does not depend on the drafter in any precision; costs speed.",
        rich_help_panel="Model",
    ),
]


def speculative_config(
    drafter: str | None, draft_length: int | None, config: str | None
) -> str | dict[str, Any]:
    """What LLM takes, from the three options that say it."""
    if config is None:
        name = DEFAULT_DRAFTER if drafter is None else drafter
        if "/" not in name and draft_length is None:
            return name
        # A drafter's name has no slash; a folder is given as ./folder, a hub id as owner/name.
        chosen: dict[str, Any] = {"model" if "/" in name else "method": name}
        if draft_length is not None:
            chosen["num_speculative_tokens"] = draft_length
        return chosen
    if drafter is not None or draft_length is not None:
        raise ConfigError(
            "--speculative-config stands alone: put --drafter (method) and"
            " --num-speculative-tokens into its JSON"
        )
    try:
        parsed = json.loads(config)
    except json.JSONDecodeError as error:
        raise ConfigError(
            f"--speculative-config is not JSON ({error}); write for example"
            """ '{"method": "ngram", "num_speculative_tokens": 4}'"""
        ) from None
    if not isinstance(parsed, dict):
        raise ConfigError(f"--speculative-config must be a JSON object, not {config}")
    return parsed


def sampling_params(**given: Any) -> "SamplingParams":
    """Options that were not given keep SamplingParams' own defaults."""
    from outrider import SamplingParams

    return SamplingParams(**{name: value for name, value in given.items() if value is not None})


def load(model: str, speculation: str | dict[str, Any] | None, **engine: Any) -> "LLM":
    """The model, with a sign of life on stderr while it loads."""
    from outrider.drafters.registry import parse_config
    from outrider.model import zoo

    parse_config(speculation)  # a wrong drafter should not cost a download
    if model in zoo.ZOO:
        zoo.pull(model)  # before the rest: it shows a progress of its own
    with _sign_of_life(f"loading {model} …"):
        from outrider import LLM

        return LLM(model, speculation, **engine)


@contextmanager
def _sign_of_life(text: str) -> Iterator[None]:
    """A line that is wiped at the end. It stands still: a hub's own bars may write over it."""
    if not sys.stderr.isatty():
        yield
        return
    print(text, end="", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
