"""Files that are whole or not there: a kill, or a full disk, loses nothing."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from outrider.core.errors import OutriderError


@contextmanager
def safely(what: str, file: Path) -> Iterator[Path]:
    """The path to write to: it takes the place of `file` once all is there."""
    partial = file.with_suffix(".partial")
    try:
        yield partial
        partial.replace(file)
    # torch and safetensors have their own words for a disk that is full.
    except (OSError, RuntimeError, SafetensorError) as error:
        partial.unlink(missing_ok=True)
        raise not_written(what, file, error) from error


def not_written(what: str, file: Path, error: Exception) -> OutriderError:
    return OutriderError(
        f"{what} could not be written ({error}); what was kept before is still in {file.parent}. "
        "Make room, then go on with --resume"
    )
