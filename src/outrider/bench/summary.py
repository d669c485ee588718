"""What a benchmark says at its end."""

from collections.abc import Callable
from itertools import groupby
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table

from outrider.bench.statistics import Ratio
from outrider.bench.workloads import OVERALL

Cell = dict[str, Any]
LONGEST = 60  # rows; beyond that only the cells over all categories are shown
FEW = 4  # imprecise ratios that are named
CODE = "Draft code: share of the steps' time in drafting and policy, without models."


def summary(results: dict[str, Any]) -> Group:
    parts: list[RenderableType] = [speed_table(results)]
    if results.get("best_fixed"):
        parts += ["", best_fixed_table(results)]
    if line := precision_line(results):
        parts += ["", escape(line)]
    return Group(*parts)


def speed_table(results: dict[str, Any]) -> Table:
    arguments = results["arguments"]
    title = f"{arguments['model']}, answers of up to {arguments['max_tokens']} tokens"
    cells, caption = _shown(results, results["cells"])
    table = _table(title, f"{caption} {CODE}".strip())
    names = ("\ntok/s", "speed-up\n(95 %)", "mean\nlength", "draft\ncode", "s to\nfirst")
    for name in (*names, "ms per\ntoken"):
        table.add_column(name, justify="right", no_wrap=True)
    _fill(table, cells, _speeds)
    return table


def best_fixed_table(results: dict[str, Any]) -> Table:
    """How the drafter that chooses by itself holds against the best of those that do not."""
    entries, caption = _shown(results, results["best_fixed"])
    table = _table("Against the best drafter with a fixed length", caption)
    table.add_column("speed-\nup", justify="right", no_wrap=True)
    table.add_column("best fixed\n", overflow="fold")
    table.add_column("speed-\nup", justify="right", no_wrap=True)
    table.add_column("ratio of both\n(95 %)", justify="right", no_wrap=True)
    _fill(table, entries, _duel)
    return table


def precision_line(results: dict[str, Any]) -> str | None:
    precision = (results.get("arguments") or {}).get("precision")
    if precision is None:
        return None
    judged = [cell for cell in results["cells"] if cell.get("precision_reached") is not None]
    wide = [cell for cell in judged if not cell["precision_reached"]]
    aim = f"{100 * precision:g} %"
    if not wide:
        return f"All {len(judged)} speed-ups are known to within {aim} of themselves (95 %)."
    named = ", ".join(_named(cell) for cell in wide[:FEW])
    more = f" and {len(wide) - FEW} more" if len(wide) > FEW else ""
    return (
        f"{len(wide)} of {len(judged)} speed-ups are not known to within {aim} of themselves:"
        f" {named}{more}. A higher --max-repeat with --resume goes on."
    )


def _named(cell: Cell) -> str:
    half = Ratio(*(cell[name] for name in ("ratio", "ratio_low", "ratio_high"))).half_width
    known = "" if half is None else f" (within {100 * half:.1f} %)"
    setting = f"{cell['category']}, batch {cell['batch_size']}, T={cell['temperature']:g}"
    return f"{cell['drafter']} in {setting}{known}"


def _table(title: str, caption: str) -> Table:
    table = Table(
        title=title, caption=caption or None, title_justify="left", caption_justify="left",
        box=None, padding=(0, 1, 0, 0),
    )  # fmt: skip
    table.add_column("\ncategory", no_wrap=True)
    table.add_column("\ndrafter", overflow="fold")
    return table


def _shown(results: dict[str, Any], rows: list[Cell]) -> tuple[list[Cell], str]:
    """All categories together come last; systems and drafters keep their order."""
    caption = ""
    if len(rows) > LONGEST:
        rows = [row for row in rows if row["category"] == OVERALL]
        caption = "Over all prompts; results.json and the report have every category."
    order = [*results["categories"], OVERALL]
    in_order = sorted(rows, key=lambda row: (*_conditions(row), order.index(row["category"])))
    return in_order, caption


def _fill(table: Table, rows: list[Cell], show: Callable[[Cell], list[str]]) -> None:
    """Batch size and temperature stand over their rows: columns of their own would not fit into
    80 characters."""
    for (temperature, batch_size), group in groupby(rows, _conditions):
        table.add_row(f"[dim]batch {batch_size}, T={temperature:g}[/dim]")
        for row in group:
            style = "bold" if row["category"] == OVERALL else None
            table.add_row(*map(escape, (row["category"], *show(row))), style=style)


def _conditions(row: Cell) -> tuple[float, int]:
    return row["temperature"], row["batch_size"]


def _duel(entry: Cell) -> list[str]:
    return [
        entry["drafter"],
        _number(entry["drafter_ratio"], "{:.2f}"),
        entry["best"],
        _number(entry["best_ratio"], "{:.2f}"),
        _with_interval(entry),
    ]


def _speeds(cell: Cell) -> list[str]:
    plain = cell["drafter"] == "none"
    ours = cell["system"] == "outrider"
    return [
        cell["drafter"] if ours else f"{cell['system']} {cell['drafter']}",
        _number(cell.get("tokens_per_second"), "{:.1f}"),
        "" if plain else _with_interval(cell),
        "" if plain else _number(cell.get("mean_acceptance_length"), "{:.2f}"),
        "" if plain else _number(cell.get("drafting_share"), "{:.1f}%", 100),
        _number(cell.get("time_to_first_token"), "{:.2f}"),
        _number(cell.get("inter_token_latency"), "{:.1f}", 1e3),
    ]


def _with_interval(row: Cell) -> str:
    low, high = row.get("ratio_low"), row.get("ratio_high")
    interval = "" if low is None or high is None else f" ({low:.2f}-{high:.2f})"
    return _number(row.get("ratio"), "{:.2f}") + interval


def _number(value: float | None, form: str, unit: float = 1) -> str:
    return "-" if value is None else form.format(value * unit)
