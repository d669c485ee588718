"""report.html and its PNG files: what a benchmark found, for people."""

import json
import re
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from outrider.bench.page import page
from outrider.bench.plots import Plot, draw_all
from outrider.bench.summary import precision_line
from outrider.bench.view import OVERALL, Cell, View

UNKNOWN = "&ndash;"


def write_report(results: dict[str, Any], folder: Path) -> Path:
    """Writes `report.html` and one PNG per plot into the folder; gives the page's path."""
    view = View(results)
    folder.mkdir(parents=True, exist_ok=True)
    plots = draw_all(view, folder)
    parts = [_head(view), _plots(plots), _cells(view), _best_fixed(view), _setting(view)]
    body = "\n".join(filter(None, parts))
    path = folder / "report.html"
    path.write_text(page(f"Outrider benchmark: {escape(view.model)}", body), encoding="utf-8")
    return path


def _head(view: View) -> str:
    hardware = view.results.get("hardware") or {}
    place = hardware.get("gpu") or hardware.get("cpu") or "unknown hardware"
    created = str(view.results.get("created") or "").replace("T", " ")[:16]
    about = [view.model, str(place)]
    if hardware.get("cores") and not hardware.get("gpu"):
        about.append(f"{hardware['cores']} cores")
    about += [f"Outrider {view.results.get('outrider', '')}".strip(), created]
    lead = " · ".join(escape(part) for part in about if part)
    return f'<h1>Outrider benchmark</h1>\n<p class="lead">{lead}</p>\n{_tiles(view)}'


def _tiles(view: View) -> str:
    """The answer in figures: the best drafter over all prompts."""
    drafted = [view.simplest(drafter=name) for name in view.drafters if name != "none"]
    rated = [cell for cell in drafted if cell and cell.get("ratio")]
    if not rated:
        return ""
    best = max(rated, key=lambda cell: cell["ratio"])
    low, high = best.get("ratio_low"), best.get("ratio_high")
    between = f" (95 %: {low:.2f} to {high:.2f})" if low and high else ""
    tiles = [
        (f"{best['ratio']:.2f}&times;", f"plain decoding's speed, with {best['drafter']}{between}"),
        (f"{best['tokens_per_second']:.1f}", f"tokens per second, with {best['drafter']}"),
    ]
    if plain := view.simplest(drafter="none"):
        tiles.append((f"{plain['tokens_per_second']:.1f}", "tokens per second, plain"))
    if length := best.get("mean_acceptance_length"):
        tiles.append((f"{length:.2f}", "tokens per checked draft, the model's own included"))
    boxes = "".join(
        f'<div class="tile"><b>{figure}</b><span>{escape(text)}</span></div>'
        for figure, text in tiles
    )
    note = (
        f"Over all prompts, at batch size {best['batch_size']} and"
        f" temperature {best['temperature']:g}."
    )
    return f'<div class="tiles">{boxes}</div>\n<p class="note">{note}</p>'


def _plots(plots: list[Plot]) -> str:
    shown = "\n".join(
        f'<figure id="{plot.name}"{" class=wide" if plot.wide else ""}><h3>{plot.title}</h3>'
        f'<div class="scroll">{plot.svg}</div><figcaption>{plot.text}</figcaption></figure>'
        for plot in plots
        if plot.svg is not None
    )
    left_out = "\n".join(
        f'<p class="note" id="{plot.name}-missing">{plot.title}: {_with_code(plot.text)}</p>'
        for plot in plots
        if plot.svg is None
    )
    return f'<h2>Plots</h2>\n<div class="plots">{shown}</div>\n{left_out}'


class Column(NamedTuple):
    head: str
    show: Callable[[Cell], str]
    left: bool = False


def _number(key: str, pattern: str, scale: float = 1.0) -> Callable[[Cell], str]:
    def show(cell: Cell) -> str:
        value = cell.get(key)
        return UNKNOWN if value is None else pattern.format(scale * value)

    return show


def _interval(key: str, pattern: str) -> Callable[[Cell], str]:
    def show(cell: Cell) -> str:
        middle, low, high = (cell.get(key + end) for end in ("", "_low", "_high"))
        if middle is None:
            return UNKNOWN
        text = pattern.format(middle)
        if low is None or high is None or low == high:
            return text
        return f"{text} <small>{pattern.format(low)}&ndash;{pattern.format(high)}</small>"

    return show


def _kept(cell: Cell) -> str:
    return f"{cell['accepted'] / cell['drafted']:.0%}" if cell.get("drafted") else UNKNOWN


COLUMNS = [
    Column("system", lambda cell: escape(cell.get("system", "outrider")), left=True),
    Column("category", lambda cell: escape(cell["category"]), left=True),
    Column("drafter", lambda cell: escape(cell["drafter"]), left=True),
    Column("batch<br>size", _number("batch_size", "{:.0f}")),
    Column("tempe-<br>rature", _number("temperature", "{:g}")),
    Column("tokens/s<br><small>quartiles</small>", _interval("tokens_per_second", "{:.1f}")),
    Column("speed-up, &times;<br><small>95 %</small>", _interval("ratio", "{:.2f}")),
    Column("mean accep-<br>tance length", _number("mean_acceptance_length", "{:.2f}")),
    Column("drafted<br>tokens kept", _kept),
    Column("draft<br>code, %", _number("drafting_share", "{:.1f}", 1e2)),
    Column("first<br>token, ms", _number("time_to_first_token", "{:.0f}", 1e3)),
    Column("between<br>tokens, ms", _number("inter_token_latency", "{:.1f}", 1e3)),
    Column("peak<br>memory, MB", _number("peak_memory_bytes", "{:,.0f}", 1e-6)),
    Column("tokens", _number("tokens", "{:,.0f}")),
]


def _cells(view: View) -> str:
    overall = [cell for cell in view.cells if cell["category"] == OVERALL]
    note = (
        '<p class="note">Speed-up is against the same system\'s plain decoding; &ndash; means not'
        " measured, or that the system does not tell. Draft code is the share of the steps' time"
        " spent on drafting and policy, models not counted. Peak memory is of the whole process:"
        " Outrider's holds one engine for each drafter at once, a peer's holds one."
        f"{_precision(view)}</p>"
    )
    every = _table(view.cells, COLUMNS)
    short = _table(overall, [c for c in COLUMNS if c.head not in ("category", "tokens")])
    whole = f"<details><summary>Every cell ({len(view.cells)})</summary>{every}</details>"
    return f"<h2>Over all prompts</h2>\n{short}\n{note}\n{whole}"


def _precision(view: View) -> str:
    line = precision_line(view.results)
    return f" {escape(line)}" if line else ""


DUEL_COLUMNS = [
    Column("category", lambda entry: escape(entry["category"]), left=True),
    Column("batch<br>size", _number("batch_size", "{:.0f}")),
    Column("tempe-<br>rature", _number("temperature", "{:g}")),
    Column("drafter", lambda entry: escape(entry["drafter"]), left=True),
    Column("speed-up,<br>&times;", _number("drafter_ratio", "{:.2f}")),
    Column("best<br>fixed", lambda entry: escape(entry["best"]), left=True),
    Column("speed-up,<br>&times;", _number("best_ratio", "{:.2f}")),
    Column("ratio of both<br><small>95 %</small>", _interval("ratio", "{:.2f}")),
]


def _best_fixed(view: View) -> str:
    """Only where both kinds of drafter were measured."""
    entries = view.results.get("best_fixed") or []
    if not entries:
        return ""
    note = (
        '<p class="note">The drafter that chooses by itself, against the best of those with a fixed'
        " length, found anew for every row. The ratio is of runs made next to each other.</p>"
    )
    table = _table(entries, DUEL_COLUMNS)
    return f"<h2>Against the best fixed drafter</h2>\n{table}\n{note}"


def _table(cells: list[Cell], columns: list[Column]) -> str:
    head = "".join(f"<th{_side(column)}>{column.head}</th>" for column in columns)
    rows = "\n".join(
        "<tr>"
        + "".join(f"<td{_side(column)}>{column.show(cell)}</td>" for column in columns)
        + "</tr>"
        for cell in cells
    )
    return (
        f'<div class="table"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'
        "</div>"
    )


def _side(column: Column) -> str:
    return ' class="left"' if column.left else ""


def _setting(view: View) -> str:
    results = view.results
    hardware = dict(results.get("hardware") or {})
    if memory := hardware.pop("memory_bytes", None):
        hardware["memory"] = f"{memory / (1 << 30):.1f} GiB"
    versions = {"outrider": results.get("outrider"), **(results.get("versions") or {})}
    arguments = {**(results.get("arguments") or {}), "seed": results.get("seed")}
    if results.get("dtype"):
        arguments["dtype"] = results["dtype"]  # what "auto" came to
    if results.get("peers"):
        arguments["peers"] = results["peers"]
    tables = [
        _facts("Hardware", hardware),
        _facts("Versions", versions),
        _facts("Arguments", arguments),
    ]
    reasons: dict[str, str] = {}
    for item in results.get("skipped") or []:  # both modes of a system may have one
        reasons[item["system"]] = "; ".join(
            filter(None, [reasons.get(item["system"]), item["reason"]])
        )
    if reasons:
        tables.append(_facts("Skipped", reasons))
    return f'<h2>How it was measured</h2>\n<div class="side">{"".join(tables)}</div>'


def _facts(title: str, facts: dict[str, Any]) -> str:
    rows = "".join(
        f'<tr><th class="left">{escape(str(key).replace("_", " "))}</th>'
        f'<td class="left">{escape(_plain(value))}</td></tr>'
        for key, value in facts.items()
    )
    return (
        f'<section><h3>{title}</h3><div class="table"><table class="facts"><tbody>{rows}</tbody>'
        "</table></div></section>"
    )


def _plain(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(_plain, value))
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else str(value)


def _with_code(text: str) -> str:
    """Backquoted words as code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))
