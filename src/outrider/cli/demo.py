"""`make demo`: plain and speculative decoding of the same prompts, measured side by side."""

import gc
import os
import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.rule import Rule
from rich.table import Table

from outrider.cli import options
from outrider.cli.render import Screen
from outrider.cli.stream import Answer, follow
from outrider.core.errors import OutriderError

if TYPE_CHECKING:
    from outrider import LLM

MODEL = options.DEFAULT_MODEL
DRAFTER: dict[str, Any] = {"method": "ngram", "num_speculative_tokens": 4}
ENGINE: dict[str, Any] = {"kv_cache_tokens": 4096, "max_num_seqs": 4}  # one request at a time

CODE = """\
def load_settings(path):
    settings = {}
    with open(path) as file:
        for line in file:
            line = line.strip()
            if not line or line.startswith("#"):
                continue
            key, value = line.split("=", 1)
            settings[key.strip()] = value.strip()
    return settings"""

ARTICLE = """\
The Antikythera mechanism is an ancient Greek hand-powered device that showed the positions of \
the Sun, the Moon and the planets. It was found in 1901 in a shipwreck near the island of \
Antikythera. The mechanism had at least thirty bronze gears in a wooden case about the size of a \
shoebox. Turning a crank moved the pointers on its dials, which showed the calendar, the phases \
of the Moon and the dates of eclipses decades in advance. Machines of similar complexity did not \
appear again until the astronomical clocks of the fourteenth century."""


FOOTNOTE = (
    "tok/s counts writing only, after the prompt is read. Plain is the faster of two runs, in"
    " normal and in reproducible mode. Speculative decoding ran in reproducible mode, where the"
    " text is guaranteed to be identical; it is compared with the plain text of that mode."
)


@dataclass(frozen=True)
class Case:
    kind: str
    prompt: str
    max_tokens: int = 96


CASES = (
    Case(
        "edit code (copying)",
        f"Rewrite this function with `settings` renamed to `options`. Only code.\n\n{CODE}",
    ),
    Case("summarise a text", f"Summarise this text in two sentences.\n\n{ARTICLE}"),
    Case("open-ended", "Write a short story about a lighthouse keeper who finds a map."),
)


@dataclass(frozen=True)
class Measured:
    """One prompt, decoded in all three ways."""

    kind: str
    plain: Answer  # as fast as plain decoding goes
    reproducible: Answer  # plain, in the mode that fixes the text to the bit
    speculative: Answer  # in the same mode

    @property
    def identical(self) -> bool:
        return self.reproducible.token_ids == self.speculative.token_ids

    @property
    def plain_speed(self) -> float:
        return max(self.plain.writing_speed, self.reproducible.writing_speed)

    @property
    def acceptance(self) -> float:
        assert self.speculative.result is not None
        return self.speculative.result.speculation.mean_acceptance_length


def main() -> int:
    console = Console(highlight=False)
    console.print(hardware())
    try:
        measured = measure(console)
    except OutriderError as error:
        print(f"outrider: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    console.print(table(measured))
    console.print(FOOTNOTE)
    console.print(f"peak memory: {peak_memory()}")
    return 0 if all(case.identical for case in measured) else 1


def measure(console: Console) -> list[Measured]:
    plain = decode_all(console, "plain decoding", None, reproducible=False, show=True)
    reproducible = decode_all(
        console, "plain decoding in reproducible mode", None, reproducible=True, show=False
    )
    speculative = decode_all(
        console, "speculative decoding, reproducible mode", DRAFTER, reproducible=True, show=True
    )
    rows = zip(CASES, plain, reproducible, speculative)
    return [Measured(case.kind, *answers) for case, *answers in rows]


def decode_all(
    console: Console, title: str, drafter: dict[str, Any] | None, *, reproducible: bool, show: bool
) -> list[Answer]:
    """All cases on one engine. There is only one at a time, so that memory holds one model."""
    llm = options.load(MODEL, drafter, reproducible=reproducible, **ENGINE)
    dtype = str(llm.engine.loaded.dtype).removeprefix("torch.")
    console.print(Rule(f"{title}, {dtype}", align="left"))
    screen = Screen(None)
    if drafter is not None:
        screen.legend(llm.model_name, llm.drafter_name)
    _run(llm, Case("warm-up", "Hello", max_tokens=8), lambda text, drafted: None)
    answers = []
    for case in CASES:
        console.print(f"[bold]{case.kind}[/bold]", end="\n" if show else ": ")
        answers.append(_run(llm, case, screen.write if show else lambda text, drafted: None))
        if show:
            screen.end()
        console.print(f"[dim]{answers[-1].writing_speed:.1f} tok/s[/dim]")
    del llm
    gc.collect()
    return answers


def _run(llm: "LLM", case: Case, write: Callable[[str, bool], None]) -> Answer:
    prompt = llm.chat_prompt([{"role": "user", "content": case.prompt}])
    params = options.sampling_params(temperature=0.0, max_tokens=case.max_tokens)
    return follow(llm, prompt, params, write)


def table(measured: list[Measured]) -> Table:
    table = Table(title=f"{MODEL}, drafter {DRAFTER['method']}", title_justify="left")
    table.add_column("prompt")
    table.add_column("plain\ntok/s", justify="right")
    table.add_column("speculative\ntok/s", justify="right")
    table.add_column("speed-up", justify="right")
    table.add_column("mean\nacceptance\nlength", justify="right")
    table.add_column("identical\ntext")
    for case in measured:
        speed = case.speculative.writing_speed
        table.add_row(
            case.kind,
            f"{case.plain_speed:.1f}",
            f"{speed:.1f}",
            f"{speed / case.plain_speed:.2f}x" if case.plain_speed else "-",
            f"{case.acceptance:.2f}",
            "[green]yes[/green]" if case.identical else "[bold red]no[/bold red]",
        )
    return table


def hardware() -> str:
    import torch

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else _cpu_name()
    return (
        f"{device}, {cores} cores · torch {torch.__version__} ({torch.get_num_threads()} threads)"
        f" · transformers {version('transformers')} · Python {platform.python_version()}"
    )


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def peak_memory() -> str:
    try:
        import resource
    except ImportError:  # Windows
        return "unknown"
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    unit = 1 if sys.platform == "darwin" else 1024  # bytes there, KiB elsewhere
    return f"{peak * unit / 2**30:.2f} GiB"


if __name__ == "__main__":
    sys.exit(main())
