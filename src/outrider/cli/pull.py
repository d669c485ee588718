"""`outrider pull`: a built-in model, fetched into the cache."""

import json
from typing import Annotated

import typer


def pull(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name from: outrider models.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Fetch a built-in model and print its folder.

    The folder holds an ordinary checkpoint: transformers' from_pretrained loads it.
    What is there already is checked, not fetched again. Progress goes to stderr.

    Examples:

    outrider pull smollm2-135m
    MODEL=$(outrider pull smollm2-135m)
    """
    from outrider.model import zoo

    path = zoo.pull(name)
    print(json.dumps({"path": str(path)}) if as_json else path)
