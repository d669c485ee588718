"""What a benchmark shows while it runs: on stderr, so that stdout holds the table alone."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)


class TerminalDisplay:
    """Live on a terminal; elsewhere one line per stage, for logs."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True, highlight=False)

    def note(self, text: str) -> None:
        self.console.print(text, markup=False, soft_wrap=True)

    @contextmanager
    def stage(self, text: str) -> Iterator[None]:
        if not self.console.is_terminal:
            self.note(f"{text} …")
            yield
            return
        with self.console.status(text):
            yield

    @contextmanager
    def bar(self, total: int) -> Iterator[Callable[[str, int], None]]:
        """`advance(what, count)`: what runs now, and how many more conversations are over."""
        progress = Progress(
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.description}", markup=False),
            console=self.console,
            transient=True,
            disable=not self.console.is_terminal,
        )
        if not self.console.is_terminal:
            self.note(f"running {total} conversations …")
        with progress:
            task = progress.add_task("", total=total)
            yield lambda what, count: progress.update(task, description=what, advance=count)
