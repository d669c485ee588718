"""`make demo`: plain and speculative decoding of the same prompts, measured side by side."""

import gc
import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.rule import Rule
from rich.table import Table

from outrider.cli import options
from outrider.cli.render import Screen
from outrider.cli.stream import Answer, follow
from outrider.core.errors import OutriderError
from outrider.model.machine import cores, cpu_name

if TYPE_CHECKING:
    from outrider import LLM

MODEL = options.DEFAULT_MODEL
DRAFTER: dict[str, Any] = {"method": "ngram", "num_speculative_tokens": 4}
ENGINE: dict[str, Any] = {"kv_cache_tokens": 4096, "max_num_seqs": 4}  # one request at a time

ARTICLE = """\
The Antikythera mechanism is an ancient Greek hand-powered device that showed the positions of \
the Sun, the Moon and the planets. It was found in 1901 in a shipwreck near the island of \
Antikythera. The mechanism had at least thirty bronze gears in a wooden case about the size of a \
shoebox. Turning a crank moved the pointers on its dials, which showed the calendar, the phases \
of the Moon and the dates of eclipses decades in advance. Machines of similar complexity did not \
appear again until the astronomical clocks of the fourteenth century."""


FAULTY = ARTICLE.replace("device", "devise").replace("gears", "geers")

FOOTNOTE = (
    "tok/s counts writing only, after the prompt is read. The speeds are those of the normal mode."
    " Identity is checked on a second pair of runs, in reproducible mode, where rounding cannot"
    " make a difference either and the same text is guaranteed."
)


@dataclass(frozen=True)
class Case:
    kind: str
    prompt: str
    max_tokens: int = 96


CASES = (
    Case("correct a text (copying helps)", f"Correct the errors in this text.\n\n{FAULTY}"),
    Case("summarise a text", f"Summarise this text in two sentences.\n\n{ARTICLE}"),
    Case("open-ended", "Write a short story about a lighthouse keeper who finds a map."),
)


@dataclass(frozen=True)
class Measured:
    """One prompt, decoded in four ways."""

    kind: str
    plain: Answer
    speculative: Answer
    reproducible_plain: Answer
    reproducible_speculative: Answer

    @property
    def identical(self) -> bool:
        return self.reproducible_plain.token_ids == self.reproducible_speculative.token_ids

    @property
    def identical_in_normal_mode(self) -> bool:
        return self.plain.token_ids == self.speculative.token_ids

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
    console.print(f"{FOOTNOTE} {in_normal_mode(measured)}")
    console.print(f"peak memory: {peak_memory()}")
    return 0 if all(case.identical for case in measured) else 1


def measure(console: Console) -> list[Measured]:
    ways = [
        decode_all(console, title, drafter, reproducible=reproducible)
        for title, drafter, reproducible in (
            ("plain decoding", None, False),
            ("speculative decoding", DRAFTER, False),
            ("the proof: plain decoding in reproducible mode", None, True),
            ("the proof: speculative decoding in reproducible mode", DRAFTER, True),
        )
    ]
    return [Measured(case.kind, *answers) for case, *answers in zip(CASES, *ways)]


def in_normal_mode(measured: list[Measured]) -> str:
    same = sum(case.identical_in_normal_mode for case in measured)
    return f"In normal mode, {same} of {len(measured)} texts were identical as well."


def decode_all(
    console: Console, title: str, drafter: dict[str, Any] | None, *, reproducible: bool
) -> list[Answer]:
    """All cases on one engine. There is only one at a time, so that memory holds one model."""
    llm = options.load(MODEL, drafter, reproducible=reproducible, **ENGINE)
    dtype = str(llm.engine.loaded.dtype).removeprefix("torch.")
    console.print(Rule(f"{title}, {dtype}", align="left"))
    screen = Screen(None)
    show = not reproducible  # the proof's texts are the same once more
    if drafter is not None and show:
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
        plain, speed = case.plain.writing_speed, case.speculative.writing_speed
        table.add_row(
            case.kind,
            f"{plain:.1f}",
            f"{speed:.1f}",
            f"{speed / plain:.2f}x" if plain else "-",
            f"{case.acceptance:.2f}",
            "[green]yes[/green]" if case.identical else "[bold red]no[/bold red]",
        )
    return table


def hardware() -> str:
    import torch

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else cpu_name()
    return (
        f"{device}, {cores()} cores · torch {torch.__version__} ({torch.get_num_threads()} threads)"
        f" · transformers {version('transformers')} · Python {platform.python_version()}"
    )


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
