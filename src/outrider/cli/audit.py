"""`outrider audit`: proof that speculation leaves the text as it is."""

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outrider.cli import options
from outrider.core.errors import ConfigError

if TYPE_CHECKING:
    from outrider.audit.report import AuditReport

SAMPLES = 1024
QUICK_SAMPLES = 256

Samples = Annotated[
    int | None,
    typer.Option(
        min=64,
        help="Samples of the distribution test; more of them show smaller differences.",
        show_default=f"{SAMPLES}, {QUICK_SAMPLES} with --quick",
    ),
]
Against = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="Judge an OpenAI-compatible server (http://…/v1) by the model run here.",
        rich_help_panel="Another engine",
    ),
]
ServedModel = Annotated[
    str | None,
    typer.Option(
        help="The model's name there.",
        show_default="the first that the server lists",
        rich_help_panel="Another engine",
    ),
]
KeyVariable = Annotated[
    str | None,
    typer.Option(
        "--api-key-env",
        metavar="NAME",
        help="Environment variable that holds the server's key.",
        rich_help_panel="Another engine",
    ),
]


def audit(
    model: options.Model = options.DEFAULT_MODEL,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    quantization: options.Quantization = None,
    reproducible: options.Reproducible = False,
    drafter: options.Drafter = None,
    num_speculative_tokens: options.DraftLength = None,
    speculative_config: options.SpeculativeConfig = None,
    against: Against = None,
    served_model: ServedModel = None,
    api_key_env: KeyVariable = None,
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Other seed, other samples.")] = 0,
    samples: Samples = None,
    quick: Annotated[bool, typer.Option("--quick", help="Shorter texts, fewer samples.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Prove that speculation is lossless for a model, a drafter and options.

    Compares speculative with plain decoding, greedy and seeded, option by option, and tests the
    distribution of the drafted tokens against the model's own softmax. Differences are shown with
    their margin: a float tie, or a real fault. Exit code 0: passed, 1: failed.

    Examples:

    outrider audit
    outrider audit --model ./my-model --drafter ngram --num-speculative-tokens 5 --quick
    outrider audit --speculative-config '{"model": "./small", "verification": "traversal"}'
    outrider audit --model org/name --against http://localhost:8000/v1 --json
    """
    count = samples or (QUICK_SAMPLES if quick else SAMPLES)
    sizes: dict[str, Any] = {"seed": seed, "samples": count, "tokens": 16 if quick else 24}
    if against is not None:
        _refuse_together(
            drafter, num_speculative_tokens, speculative_config, reproducible, quantization
        )
        place = {"dtype": dtype, "device": device, "served_model": served_model}
        report = _audit_server(against, model, api_key_env, as_json, **place, **sizes)
    else:
        config = options.speculative_config(drafter, num_speculative_tokens, speculative_config)
        engine = {
            "dtype": dtype,
            "device": device,
            "quantization": quantization,
            "reproducible": reproducible,
        }
        report = _audit_engine(model, config, as_json, **engine, **sizes)
    if as_json:
        print(json.dumps(report.to_dict()))
    else:
        _show(report)
    if not report.passed:
        raise typer.Exit(1)


def _refuse_together(*given: Any) -> None:
    if any(value not in (None, False) for value in given):
        raise ConfigError(
            "--against judges a server, which has its own drafter; leave out --drafter,"
            " --num-speculative-tokens, --speculative-config, --reproducible and --quantization"
        )


def _audit_engine(
    model: str, config: str | dict[str, Any], quiet: bool, **given: Any
) -> "AuditReport":
    fetch(model)
    with show_progress(quiet) as progress:
        from outrider.audit.run import audit_engine

        return audit_engine(model, config, progress=progress, **given)


def _audit_server(
    url: str, model: str, key_variable: str | None, quiet: bool, **given: Any
) -> "AuditReport":
    key = None
    if key_variable is not None and not (key := os.environ.get(key_variable)):
        raise ConfigError(f"--api-key-env names {key_variable}, which is not set")
    fetch(model)
    with show_progress(quiet) as progress:
        from outrider.audit.against import audit_server

        return audit_server(url, model, key=key, progress=progress, **given)


def fetch(model: str) -> None:
    """First: pulling a built-in model shows a progress of its own."""
    from outrider.model import zoo

    if model in zoo.ZOO:
        zoo.pull(model)


@contextmanager
def show_progress(quiet: bool) -> Iterator[Callable[[str, float], None]]:
    """A bar on a terminal; nothing elsewhere."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    if quiet or not sys.stderr.isatty():
        yield lambda stage, done: None
        return
    columns = (BarColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("loading", total=1.0)
        yield lambda stage, done: bar.update(task, description=stage, completed=done)


def _show(report: "AuditReport") -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console(highlight=False)
    table = Table("check", "", "what was found", box=None, pad_edge=False)
    for check in report.checks:
        mark = "[green]passed[/green]" if check.tested else "[yellow]not tested[/yellow]"
        mark = mark if check.passed else "[bold red]FAILED[/bold red]"
        table.add_row(check.name, mark, escape(check.detail))
    console.print(table)
    for check in report.checks:
        for difference in check.differences[: 3 if check.passed else 8]:
            console.print(f"{check.name}: {difference}", markup=False)
    about = ", ".join(f"{name} {value}" for name, value in report.subject.items())
    console.print(f"\n{about}; {report.seconds:.0f} s", markup=False)
    if report.detectable_total_variation is not None:
        console.print(
            f"Chance that any distribution test fails although nothing is wrong: at most "
            f"{report.false_alarm_probability:.0e}. A total variation of "
            f"{report.detectable_total_variation:.3f} in tokens 2 to 4 would have been found with "
            f"probability 0.99.",
            markup=False,
        )
    verdict = "passed" if report.passed else f"FAILED: {', '.join(c.name for c in report.failures)}"
    console.print(f"audit {verdict}", markup=False)
