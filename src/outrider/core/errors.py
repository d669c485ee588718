"""Errors a user can meet. Each message is one line: what is wrong, and what to do about it."""

from collections.abc import Iterable
from difflib import get_close_matches


class OutriderError(Exception):
    """Base of all that Outrider raises on purpose; the command line prints it and exits with 2."""


class ConfigError(OutriderError):
    """An option of the engine, the drafter or the command line is wrong."""


class InvalidRequest(OutriderError, ValueError):
    """One request is wrong; the other requests of its batch are not touched."""


class ModelError(OutriderError):
    """A checkpoint is missing, damaged, or of a kind that cannot be run."""


def unknown_name(what: str, name: str, known: Iterable[str]) -> str:
    """The message for a name that does not exist, with the nearest one that does."""
    known = sorted(known)
    near = get_close_matches(name, known, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"unknown {what} {name!r}{hint} (known: {', '.join(known)})"
