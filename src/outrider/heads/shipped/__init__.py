"""Drafters that come with the package: each for one model of the zoo, in a folder of its name."""

from pathlib import Path

from outrider.model.zoo import ZOO

FOLDER = Path(__file__).parent


def shipped_for(model: str) -> str | None:
    """The folder of the drafter for the zoo model of that name; None where there is none."""
    folder = FOLDER / model
    return str(folder) if model in ZOO and folder.is_dir() else None
