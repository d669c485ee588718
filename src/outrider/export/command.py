"""`outrider export`: a drafter for other programs. Imports nothing heavy: `--help` is instant."""

from pathlib import Path
from typing import Annotated

import typer


def export_command(
    drafter: Annotated[str, typer.Argument(metavar="DIR", help="A trained drafter, or a hub id.")],
    format: Annotated[
        str, typer.Option(help="speculators, eagle3, dspark, medusa or medusa-vllm.")
    ] = "speculators",
    out: Annotated[
        Path | None, typer.Option(help="Folder to write.", show_default="NAME-FORMAT")
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            help="The model it was trained for, as others shall find it: hub id or folder.",
            show_default="what its files say",
        ),
    ] = None,
) -> None:
    """Write a trained drafter in another format.

    speculators is for EAGLE-3, DSpark and DFlash, and is what vLLM serves: vllm serve FOLDER.
    eagle3, dspark and medusa are the layouts of the methods' authors; medusa-vllm is vLLM's own
    for Medusa. Weights keep their precision, so guesses stay what they were. What a format cannot
    hold is refused. Prints the folder.

    Examples:

    outrider export drafter --format speculators

    outrider export drafter --format eagle3 --out as-published

    outrider export drafter --target owner/my-model --out to-publish
    """
    from outrider.export.run import export

    folder = out or Path(f"{Path(drafter).resolve().name}-{format}")
    export(drafter, folder, format, target)
    print(folder)
