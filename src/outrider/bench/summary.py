"""The table at the end of a benchmark."""

from typing import Any

from rich.table import Table

from outrider.bench.workloads import OVERALL

Cell = dict[str, Any]
LONGEST = 60  # rows; beyond that only the cells over all categories are shown


def summary(results: dict[str, Any]) -> Table:
    cells: list[Cell] = results["cells"]
    arguments = results["arguments"]
    title = f"{arguments['model']}, answers of up to {arguments['max_tokens']} tokens"
    caption = None
    if len(cells) > LONGEST:
        cells = [cell for cell in cells if cell["category"] == OVERALL]
        caption = "Over all prompts; results.json and the report have every category."
    table = Table(
        title=title, caption=caption, title_justify="left", caption_justify="left",
        box=None, padding=(0, 1, 0, 0),
    )  # fmt: skip
    table.add_column("\nbatch")
    table.add_column("\nT")
    table.add_column("\ncategory", no_wrap=True)
    table.add_column("\ndrafter", overflow="fold")
    for name in ("\ntok/s", "speed-up\n(95 %)", "mean\nlength", "first\ntoken", "each\ntoken"):
        table.add_column(name, justify="right", no_wrap=True)
    # All categories together come last; systems and drafters keep their order.
    order = [*results["categories"], OVERALL]
    cells = sorted(
        cells, key=lambda c: (c["temperature"], c["batch_size"], order.index(c["category"]))
    )
    for cell in cells:
        table.add_row(*_row(cell), style="bold" if cell["category"] == OVERALL else None)
    return table


def _row(cell: Cell) -> list[str]:
    plain = cell["drafter"] == "none"
    ours = cell["system"] == "outrider"
    return [
        str(cell["batch_size"]),
        f"{cell['temperature']:g}",
        cell["category"],
        cell["drafter"] if ours else f"{cell['system']} {cell['drafter']}",
        _number(cell.get("tokens_per_second"), "{:.1f}"),
        "" if plain else _speed_up(cell),
        "" if plain else _number(cell.get("mean_acceptance_length"), "{:.2f}"),
        _number(cell.get("time_to_first_token"), "{:.2f} s"),
        _number(cell.get("inter_token_latency"), "{:.1f} ms", 1e3),
    ]


def _speed_up(cell: Cell) -> str:
    low, high = cell.get("ratio_low"), cell.get("ratio_high")
    interval = "" if low is None or high is None else f" ({low:.2f}-{high:.2f})"
    return _number(cell.get("ratio"), "{:.2f}x") + interval


def _number(value: float | None, form: str, unit: float = 1) -> str:
    return "-" if value is None else form.format(value * unit)
