"""One stage of long work, shown on stderr: a bar on a terminal, one plain line elsewhere."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)


@contextmanager
def stage(text: str, total_bytes: int | None = None) -> Iterator[Callable[[int], None]]:
    """Yields a function that takes the bytes done so far; without a total it only spins."""
    if not sys.stderr.isatty():
        print(text, file=sys.stderr, flush=True)
        yield lambda done: None
        return
    columns: list[ProgressColumn] = [SpinnerColumn(), TextColumn("{task.description}")]
    columns += [BarColumn(), DownloadColumn()] if total_bytes else [TimeElapsedColumn()]
    # The stream is bound now: while transformers is kept quiet, sys.stderr is another one.
    console = Console(file=sys.stderr)
    with Progress(*columns, console=console, redirect_stdout=False, redirect_stderr=False) as bar:
        task = bar.add_task(text, total=total_bytes)
        yield lambda done: bar.update(task, completed=min(done, total_bytes or done))
        bar.update(task, total=total_bytes or 1, completed=total_bytes or 1)
