"""A progress bar on a terminal, nothing elsewhere."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress_bar(
    total: int, what: str, shown: bool | Callable[[], None]
) -> Iterator[Callable[[], None]]:
    """Yields the function to call for each finished item; `shown` may be a caller's own."""
    if callable(shown):
        yield shown
        return
    if not shown or total < 2:
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=total)
        yield lambda: progress.advance(task)
