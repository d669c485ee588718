"""What a training run tells while it runs: a bar on a terminal, lines elsewhere."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from outrider.train.loop import Judgement, Plan, Tell

REMEMBERED = 300.0  # seconds of which the speed is estimated: texts end in bursts


class Display:
    def __init__(self, quiet: bool = False) -> None:
        self.console = Console(stderr=True, quiet=quiet, highlight=False)

    def note(self, text: str) -> None:
        self.console.print(text, markup=False, soft_wrap=True)

    @contextmanager
    def _bar(self, what: str, done: int, total: int) -> Iterator[tuple[Progress, TaskID]]:
        progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TimeRemainingColumn(),
            console=self.console,
            transient=True,
            disable=not self.console.is_terminal,
            speed_estimate_period=REMEMBERED,
        )
        with progress:
            yield progress, progress.add_task(what, total=total, completed=done)

    @contextmanager
    def writing(self, done: int, total: int) -> Iterator["WritingBar"]:
        """While the target writes texts, of which some are there."""
        self.note(f"the target writes {total - done} texts to learn from")
        with self._bar(_written(done, total), done, total) as (progress, task):
            yield WritingBar(self, progress, task, done, total)

    @contextmanager
    def learning(self, plan: Plan) -> Iterator[Tell]:
        with self._bar("learning", 0, plan.steps) as (progress, task):
            started = False

            def tell(step: int, loss: float, judged: Judgement | None) -> None:
                nonlocal started
                if not started:  # steps of an earlier run say nothing about the speed
                    progress.reset(task, completed=step)
                    started = True
                said = f"step {step} of {plan.steps}, loss {loss:.3f}"
                progress.update(task, completed=step, description=said)
                if judged is not None:
                    self.note(told(judged))

            yield tell


class WritingBar:
    def __init__(
        self, display: Display, progress: Progress, task: TaskID, done: int, total: int
    ) -> None:
        self._display, self._progress, self._task = display, progress, task
        self._begun, self._first, self._total = time.monotonic(), done, total

    def add(self, texts: float) -> None:
        """So many more are about done."""
        self._progress.advance(self._task, texts)
        done = int(self._progress.tasks[self._task].completed)
        self._progress.update(self._task, description=_written(done, self._total))

    def reached(self, texts: int) -> None:
        """So many are stored."""
        said = _written(texts, self._total)
        self._progress.update(self._task, completed=texts, description=said)
        new, left = texts - self._first, self._total - texts
        if not self._display.console.is_terminal and new > 0 and left > 0:
            seconds = (time.monotonic() - self._begun) / new * left
            self._display.note(f"{said}, about {span(seconds)} left")


def _written(done: int, total: int) -> str:
    return f"{done} of {total} texts written"


def told(judged: Judgement) -> str:
    depths = " ".join(f"{share:.2f}" for share in judged.depths)
    return (
        f"step {judged.step}: held-out loss {judged.loss:.3f}, guesses that hold by depth "
        f"{depths}, {judged.length:.2f} tokens per pass"
    )


def span(seconds: float) -> str:
    """For people: 42 s, 3 min, 2.5 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
