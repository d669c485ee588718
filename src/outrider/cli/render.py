"""What a terminal shows of an answer: drafted tokens in colour, a legend, a closing line."""

import os
import sys
from typing import TextIO

from rich.color import ColorSystem
from rich.style import Style

from outrider.cli.stream import Answer

DRAFTED = Style.parse("green")
DIM = Style.parse("dim")

# A model can write any byte; on a terminal, control characters could move the cursor or worse.
_UNSAFE = {code: None for code in [*range(32), *range(127, 160)] if chr(code) not in "\n\t"}


class Screen:
    """Writes an answer to stdout, and what is said about it where it cannot mix with the text."""

    def __init__(self, color: bool | None) -> None:
        self.out = sys.stdout
        self.terminal = self.out.isatty()
        self.color = _wants_color(self.out) if color is None else color
        self._about = self.out if self.terminal else sys.stderr
        self._line_open = False

    def write(self, text: str, drafted: bool) -> None:
        if self.terminal:
            text = text.translate(_UNSAFE)
        if not text:
            return
        self._line_open = not text.endswith("\n")
        self.out.write(_paint(text, DRAFTED) if self.color and drafted else text)
        self.out.flush()

    def end(self) -> None:
        """Text ends with a line end, as everything a shell reads should."""
        if self._line_open:
            self.out.write("\n")
        self._line_open = False
        self.out.flush()

    def note(self, text: str) -> None:
        """A line about the answer, not part of it."""
        self.end()
        dim = self.color and self._about.isatty()
        print(_paint(text, DIM) if dim else text, file=self._about, flush=True)

    def legend(self, model: str, drafter: str) -> None:
        if self.color:
            key = f"{_paint('green', DRAFTED)}{_paint(': proposed by the drafter, kept by', DIM)}"
            start = _paint(f"{model}, drafter {drafter} · ", DIM)
            print(f"{start}{key}{_paint(' the model', DIM)}\n", file=self._about, flush=True)


def closing_line(answer: Answer) -> str:
    parts = [
        f"{len(answer.token_ids)} tokens in {answer.seconds:.1f} s",
        f"{answer.tokens_per_second:.1f} tokens/s",
    ]
    result = answer.result
    if result is None:
        return " · ".join([*parts, "interrupted"])
    speculation = result.speculation
    if speculation.drafter != "none":
        parts.append(
            f"mean acceptance length {speculation.mean_acceptance_length:.2f}"
            f" ({speculation.accepted} of {speculation.drafted} drafted tokens kept)"
        )
    if result.outputs[0].finish_reason == "length":
        parts.append("cut at the maximum length")
    return " · ".join(parts)


def _wants_color(stream: TextIO) -> bool:
    dumb = os.environ.get("TERM") == "dumb"
    return stream.isatty() and not dumb and not os.environ.get("NO_COLOR")


def _paint(text: str, style: Style) -> str:
    return style.render(text, color_system=ColorSystem.STANDARD)
