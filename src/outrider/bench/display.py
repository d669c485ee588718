"""What a benchmark shows while it runs: on stderr, so that stdout holds the table alone."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
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
    def bar(self, estimated: bool) -> Iterator["TerminalBar"]:
        progress = Progress(
            BarColumn(),
            MofNCompleteColumn(separator=" of about " if estimated else "/"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.description}", markup=False),
            console=self.console,
            transient=True,
            disable=not self.console.is_terminal,
        )
        with progress:
            yield TerminalBar(progress, progress.add_task("", total=None), self)


class TerminalBar:
    def __init__(self, progress: Progress, task: TaskID, display: TerminalDisplay) -> None:
        self._progress = progress
        self._task = task
        self._display = display
        self._done = 0

    def expect(self, more: int) -> None:
        """So many conversations are still to come."""
        self._progress.update(self._task, total=self._done + more)
        if not self._display.console.is_terminal:
            self._display.note(f"running {more} conversations …")

    def advance(self, what: str, count: int) -> None:
        """What runs now, and how many more conversations are over."""
        self._done += count
        self._progress.update(self._task, description=what, advance=count)
