"""`outrider bench --compare A.json B.json`: what changed, and what is noise."""

from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from outrider.bench.results import read_results
from outrider.bench.statistics import interval

Cell = dict[str, Any]
SETTING = ("system", "category", "drafter", "batch_size", "temperature")
# What should be equal for a comparison of speeds to mean anything.
CONDITIONS = ("outrider", "versions", "hardware", "arguments", "prompts_sha256")
FOOTNOTE = (
    "noise: the 95 % intervals overlap. ?: measured once, so nothing is known about noise;"
    " use --repeat."
)
COLOURS = {"faster": "green", "slower": "red"}


class Figure(NamedTuple):
    value: float | None
    low: float | None
    high: float | None


def compare(first: Path, second: Path, console: Console) -> None:
    a, b = read_results(first), read_results(second)
    console.print(f"A {first}, {a.get('created')}\nB {second}, {b.get('created')}")
    for name in CONDITIONS:
        if a.get(name) != b.get(name):
            console.print(f"A and B have different {name}{_where(a.get(name), b.get(name))}")
    cells_a, cells_b = _by_setting(a), _by_setting(b)
    common = [setting for setting in cells_a if setting in cells_b]
    table = _table()
    for setting in common:
        table.add_row(*_row(cells_a[setting], cells_b[setting]))
    if common:
        console.print(table)
        console.print(FOOTNOTE)
    else:
        console.print("A and B have no cell in common")
    for name, cells, others in (("A", cells_a, cells_b), ("B", cells_b, cells_a)):
        if alone := [setting for setting in cells if setting not in others]:
            console.print(f"only in {name}: {len(alone)} cells, first {_shown(alone[0])}")


def verdict(a: Figure, b: Figure) -> str:
    """Larger is better for every figure compared here."""
    if a.low is None or a.high is None or b.low is None or b.high is None:
        return "?"
    if b.low > a.high:
        return "faster"
    return "slower" if b.high < a.low else "noise"


def speed(cell: Cell) -> Figure:
    low, high = interval(tuple(cell.get("samples") or ())) or (None, None)
    return Figure(cell.get("tokens_per_second"), low, high)


def ratio(cell: Cell) -> Figure:
    return Figure(cell.get("ratio"), cell.get("ratio_low"), cell.get("ratio_high"))


def _by_setting(results: dict[str, Any]) -> dict[tuple[Any, ...], Cell]:
    return {tuple(cell.get(name) for name in SETTING): cell for cell in results["cells"]}


def _table() -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("\ncategory", no_wrap=True)
    table.add_column("\ndrafter", overflow="fold")
    names = ("\nbatch", "\nT", "tok/s\nA", "\nB", "\nchange", "", "ratio\nA", "\nB", "")
    for name in names:
        table.add_column(name, justify="right" if name else "left", no_wrap=True)
    return table


def _row(a: Cell, b: Cell) -> list[str]:
    speeds, ratios = (speed(a), speed(b)), (ratio(a), ratio(b))
    system, category, drafter, batch_size, temperature = (str(a.get(name)) for name in SETTING)
    plain = drafter == "none"  # its ratio is 1 by definition
    return [
        category,
        drafter if system == "outrider" else f"{system} {drafter}",
        *(batch_size, temperature.removesuffix(".0")),
        *(_number(figure.value, ".1f") for figure in speeds),
        _change(*speeds),
        _coloured(verdict(*speeds)),
        *("" if plain else _number(figure.value, ".2f") for figure in ratios),
        "" if plain else _coloured(verdict(*ratios)),
    ]


def _change(a: Figure, b: Figure) -> str:
    return f"{b.value / a.value - 1:+.0%}" if a.value and b.value else "-"


def _coloured(word: str) -> str:
    return f"[{COLOURS[word]}]{word}[/]" if word in COLOURS else f"[dim]{word}[/]"


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _shown(setting: tuple[Any, ...]) -> str:
    return ", ".join(f"{name} {value}" for name, value in zip(SETTING, setting))


def _where(a: Any, b: Any) -> str:
    if isinstance(a, dict) and isinstance(b, dict):
        keys = [key for key in {**a, **b} if a.get(key) != b.get(key)]
        return " (" + "; ".join(f"{key}: {a.get(key)} and {b.get(key)}" for key in keys) + ")"
    return "" if len(str(a)) > 40 else f" ({a} and {b})"
