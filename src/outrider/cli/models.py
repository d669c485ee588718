"""`outrider models`: the built-in models."""

import json
from typing import Annotated

import typer

OTHERS = (
    "Hugging Face ids (org/name), folders with a checkpoint and .gguf files work as well:"
    " give them as --model."
)


def models(
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list.")] = False,
) -> None:
    """List the built-in models, and whether they are in the cache.

    Examples:

    outrider models
    outrider models --json
    """
    from rich.console import Console
    from rich.table import Table

    from outrider.model.zoo import zoo_names

    entries = zoo_names()
    if as_json:
        rows = [{**vars(entry), "cached": entry.cached and str(entry.cached)} for entry in entries]
        print(json.dumps(rows))
        return
    table = Table("name", "model", "licence", "size", "cached", box=None, pad_edge=False)
    for entry in entries:
        size = f"{entry.size / 1e6:.0f} MB"
        cached = "yes" if entry.cached else "no"
        table.add_row(entry.name, entry.description, entry.licence, size, cached)
    console = Console(highlight=False)
    console.print(table)
    console.print(f"\n{OTHERS}", markup=False)
