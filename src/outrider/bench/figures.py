"""The six drawings of the report. Each takes a View and gives a figure with its caption."""

from collections.abc import Callable
from typing import Any

from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from outrider.bench.theme import CARD, HATCHES, INK, MUTED, PLAIN, SERIES, looks
from outrider.bench.view import OVERALL, Cell, View, acceptance

PANEL = 5.6  # inches across; one panel fills half of the page
Drawing = tuple[Figure, str]
TIMES = "\N{MULTIPLICATION SIGN}"
PHASE_COLOURS = {"draft": SERIES[4], "forward": SERIES[0], "verify": SERIES[2], "rest": PLAIN}


class NoData(Exception):
    """Why a plot is left out, as a sentence for the page."""


def speedup(view: View) -> Drawing:
    drafters = [name for name in view.drafters if name != "none"]
    batch_size = view.batch_sizes[0] if view.batch_sizes else 1
    cells = [c for c in view.pick(batch_size=batch_size) if c.get("ratio") is not None]
    cells = [c for c in cells if c["drafter"] in drafters]
    if not cells:
        raise NoData(
            "No drafter was compared with plain decoding: measure `none` and at least one other."
        )
    drafters = [name for name in drafters if view.pick(cells, drafter=name)]
    rows = [OVERALL, *view.categories]
    height = 1.25 + len(rows) * (0.16 + 0.17 * len(drafters))
    temperatures = sorted({cell["temperature"] for cell in cells})
    figure, panels = _panels(len(temperatures), height, sharex=True, sharey=True)
    for panel, temperature in zip(panels, temperatures):
        _forest(panel, view.pick(cells, temperature=temperature), rows, drafters)
        if len(temperatures) > 1:
            panel.set_title(f"temperature {temperature:g}")
    _legend(figure, panels[0])
    return figure, (
        f"Tokens per second divided by those of plain decoding, at batch size {batch_size}. Right"
        f" of the line at 1.0{TIMES} the drafter pays; a bar is the 95 % interval over repeats."
    )


def _forest(panel: Axes, cells: list[Cell], rows: list[str], drafters: list[str]) -> None:
    step = 0.7 / len(drafters)
    ends = [1.0]
    for place, drafter in enumerate(drafters):
        look = looks(drafters)[drafter]
        found = {cell["category"]: cell for cell in cells if cell["drafter"] == drafter}
        shown = [(row, found[name]) for row, name in enumerate(rows) if name in found]
        heights = [row + (place - (len(drafters) - 1) / 2) * step for row, _ in shown]
        ratios = [cell["ratio"] for _, cell in shown]
        spans = _spans([cell for _, cell in shown], "ratio")
        panel.errorbar(
            ratios,
            heights,
            xerr=spans,
            fmt=look.marker,
            color=look.colour,
            label=drafter,
            capsize=2.5,
        )
        ends += [ratio + high for ratio, high in zip(ratios, spans[1])]
        for (_, cell), height, ratio, high in zip(shown, heights, ratios, spans[1]):
            weight = "bold" if cell["category"] == OVERALL else "normal"
            _note(panel, f"{ratio:.2f}{TIMES}", (ratio + high, height), (5, 0), weight=weight)
    panel.axvline(1.0, color=INK.light, linewidth=1.2)
    panel.axhline(0.5, color=MUTED.light, linewidth=0.8)
    panel.set_ylim(len(rows) - 0.5, -0.5)
    panel.set_yticks(range(len(rows)), [name.replace("_", " ") for name in rows])
    panel.grid(axis="y", visible=False)
    panel.tick_params(axis="y", length=0)
    left, right = panel.get_xlim()
    panel.set_xlim(min(left, 0.9), max(right, max(ends) + 0.13 * (max(ends) - min(left, 0.9))))
    panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.1f}{TIMES}"))
    panel.set_xlabel("speed-up over plain decoding")


def systems(view: View) -> Drawing:
    cells = view.pick(view.cells, category=OVERALL, batch_size=1, temperature=0.0)
    cells = [cell for cell in cells if cell.get("tokens_per_second")]
    order = [name for name in view.systems if view.pick(cells, system=name)]
    if len(order) < 2:
        raise NoData("No other system was measured beside Outrider: `--peers` adds them.")
    heights: list[float] = []
    labels: list[str] = []
    bars: list[Cell] = []
    for system in order:
        start = heights[-1] + 1.5 if heights else 0.0
        for place, cell in enumerate(view.pick(cells, system=system)):
            heights.append(start + place)
            labels.append(f"{system} · {'plain' if cell['drafter'] == 'none' else cell['drafter']}")
            bars.append(cell)
    figure, (panel,) = _panels(1, 0.9 + 0.3 * (heights[-1] + 1), width=2 * PANEL)
    look = looks(view.names)
    speeds = [cell["tokens_per_second"] for cell in bars]
    spans = _spans(bars, "tokens_per_second")
    panel.barh(
        heights,
        speeds,
        height=0.74,
        xerr=spans,
        color=[look[cell["drafter"]].colour for cell in bars],
        hatch=["" if cell["drafter"] == "none" else HATCHES[1] for cell in bars],
        edgecolor=CARD.light,
        error_kw={"ecolor": INK.light, "capsize": 2.5, "elinewidth": 1.2},
    )
    for height, speed, high in zip(heights, speeds, spans[1]):
        _note(panel, f"{speed:.1f}", (speed + high, height), (5, 0))
    panel.set_yticks(heights, labels)
    panel.set_ylim(heights[-1] + 0.7, -0.7)
    panel.tick_params(axis="y", length=0)
    panel.grid(axis="y", visible=False)
    panel.set_xlabel("tokens per second")
    return figure, (
        "Greedy, batch size 1, the same prompts and lengths, each system in a process of its own:"
        " plain in grey, its own speculation hatched. The thin line spans the quartiles."
    )


def acceptance_by_position(view: View) -> Drawing:
    batch_size = view.batch_sizes[0] if view.batch_sizes else 1
    cells = [cell for cell in view.pick(batch_size=batch_size) if acceptance(cell)]
    temperatures = sorted({c["temperature"] for c in cells if c["category"] == OVERALL})
    if not temperatures:
        raise NoData("No draft was checked, so there is no acceptance to show.")
    figure, panels = _panels(len(temperatures), 3.4, sharex=True, sharey=True)
    for panel, temperature in zip(panels, temperatures):
        for drafter, look in looks(view.drafters).items():
            mine = view.pick(cells, temperature=temperature, drafter=drafter)
            for cell in view.pick(mine, category=OVERALL):
                shares = [100 * share for share in acceptance(cell)]
                positions = range(1, len(shares) + 1)
                panel.plot(positions, shares, color=look.colour, marker=look.marker, label=drafter)
                others = [acceptance(other) for other in mine if other["category"] != OVERALL]
                if others:
                    columns = [_at(others, place) for place in range(len(shares))]
                    low, high = [min(c) for c in columns], [max(c) for c in columns]
                    panel.fill_between(positions, low, high, color=look.colour, alpha=0.16, lw=0)
        panel.set_ylim(0, 100)
        panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f} %"))
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
        panel.set_xlabel("position in the draft")
        if len(temperatures) > 1:
            panel.set_title(f"temperature {temperature:g}")
    panels[0].set_ylabel("drafts with this token kept")
    _legend(figure, panels[0])
    return figure, (
        "How often the model keeps the first, second, … token of a draft (batch size"
        f" {batch_size}). The line is over all prompts, the band spans the categories."
    )


def _at(rows: list[list[float]], place: int) -> list[float]:
    """Percent at one position in every category; a shorter list kept nothing there."""
    return [100 * row[place] if place < len(row) else 0.0 for row in rows]


def pass_cost(view: View) -> Drawing:
    points = sorted((p["rows"], p["milliseconds"]) for p in view.results.get("pass_cost") or [])
    if len(points) < 2:
        raise NoData("The cost of a pass was not measured at several sizes.")
    rows, times = zip(*points)
    figure, (panel,) = _panels(1, 3.4)
    one = times[0] / rows[0]
    panel.plot(
        rows,
        [one * count for count in rows],
        color=PLAIN.light,
        linestyle=(0, (4, 3)),
        label="the same tokens one by one",
    )
    blue = SERIES[0].light
    panel.plot(rows, times, color=blue, marker="o", label="one pass over all of them")
    _powers(panel, list(rows))
    _log_height(panel)
    panel.set_ylim(bottom=min(times) / 1.6)  # room for the label below the first point
    panel.set_xlabel("tokens in the pass")
    panel.set_ylabel("milliseconds")
    _note(panel, f"{times[0]:.3g} ms", (rows[0], times[0]), (-5, -13), ha="left")
    _note(panel, f"{times[-1]:.3g} ms", (rows[-1], times[-1]), (0, 9), ha="center")
    _legend(figure, panel)
    return figure, (
        f"A pass over {rows[-1]} tokens takes {times[-1] / times[0]:.1f} times as long as one over"
        f" {rows[0]}; both axes are logarithmic. The wider the gap to the dashed line, the more a"
        " right guess is worth."
    )


def batches(view: View) -> Drawing:
    cells = [c for c in view.pick(category=OVERALL) if c.get("tokens_per_second")]
    sizes = sorted({cell["batch_size"] for cell in cells})
    if len(sizes) < 2:
        raise NoData("Only one batch size was measured: `--batch-sizes 1,8,32` compares several.")
    temperatures = sorted({cell["temperature"] for cell in cells})
    figure, panels = _panels(len(temperatures), 3.4, sharex=True, sharey=True)
    for panel, temperature in zip(panels, temperatures):
        for drafter, look in looks(view.drafters).items():
            mine = view.pick(cells, temperature=temperature, drafter=drafter)
            mine.sort(key=lambda cell: cell["batch_size"])
            if mine:
                panel.errorbar(
                    [cell["batch_size"] for cell in mine],
                    [cell["tokens_per_second"] for cell in mine],
                    yerr=_spans(mine, "tokens_per_second"),
                    color=look.colour,
                    marker=look.marker,
                    label="plain" if drafter == "none" else drafter,
                    capsize=2.5,
                )
        _log_height(panel)
        _powers(panel, sizes)
        panel.set_xlabel("batch size (requests at once)")
        if len(temperatures) > 1:
            panel.set_title(f"temperature {temperature:g}")
    panels[0].set_ylabel("tokens per second, all requests")
    _legend(figure, panels[0])
    return figure, (
        "Tokens per second of all requests together; both axes are logarithmic. Where a drafter's"
        " line falls under the plain one, its drafts cost more than they save."
    )


def phases(view: View) -> Drawing:
    found = [(name, view.simplest(drafter=name)) for name in view.drafters]
    bars = [(name, cell) for name, cell in found if cell and cell.get("phases") and cell["steps"]]
    if not bars:
        raise NoData("The time of a step was not measured by phase.")
    names = list(dict.fromkeys(phase for _, cell in bars for phase in cell["phases"]))
    figure, (panel,) = _panels(1, max(2.8, 1.35 + 0.42 * len(bars)))
    totals = [1000 * sum(cell["phases"].values()) / cell["steps"] for _, cell in bars]
    left = [0.0] * len(bars)
    others = iter((SERIES[1], SERIES[3], SERIES[5], SERIES[6]) * len(names))
    colours = [PHASE_COLOURS.get(name) or next(others) for name in names]
    for place, phase in enumerate(names):
        widths = [1000 * cell["phases"].get(phase, 0.0) / cell["steps"] for _, cell in bars]
        panel.barh(
            range(len(bars)),
            widths,
            left=left,
            height=0.62,
            color=colours[place].light,
            hatch=HATCHES[place % len(HATCHES)],
            edgecolor=CARD.light,
            label=phase,
        )
        left = [start + width for start, width in zip(left, widths)]
    for row, total in enumerate(totals):
        _note(panel, f"{total:.3g} ms", (total, row), (5, 0))
    panel.set_yticks(range(len(bars)), ["plain" if n == "none" else n for n, _ in bars])
    panel.set_ylim(len(bars) - 0.5, -0.5)
    panel.set_xlim(0, 1.18 * max(totals))
    panel.tick_params(axis="y", length=0)
    panel.grid(axis="y", visible=False)
    panel.set_xlabel("milliseconds per step")
    _legend(figure, panel)
    return figure, (
        f"Mean time of a step at batch size {view.batch_sizes[0]}, temperature"
        f" {view.temperatures[0]:g}. A step with a draft takes longer than a plain one and"
        " pays when it writes more than one token."
    )


def _panels(
    count: int, height: float, width: float | None = None, **shared: Any
) -> tuple[Figure, list[Axes]]:
    size = (width or PANEL * count, height)
    figure, grid = pyplot.subplots(1, count, figsize=size, squeeze=False, **shared)
    return figure, list(grid[0])


def _legend(figure: Figure, panel: Axes) -> None:
    """Below the axes, where it can never hide a point."""
    handles, labels = panel.get_legend_handles_labels()
    columns = min(len(labels), 4 if figure.get_figwidth() < 2 * PANEL else 8)
    figure.legend(handles, labels, loc="outside lower center", ncols=columns)


def _note(panel: Axes, text: str, at: tuple[float, float], by: tuple[int, int], **kw: Any) -> None:
    panel.annotate(text, at, xytext=by, textcoords="offset points", va="center", fontsize=9, **kw)


def _spans(cells: list[Cell], key: str) -> list[list[float]]:
    """Distances to the ends of the intervals, as matplotlib wants them; unknown ends are 0."""
    ends = {"low": -1, "high": 1}
    return [
        [max(0.0, sign * ((c.get(f"{key}_{end}") or c[key]) - c[key])) for c in cells]
        for end, sign in ends.items()
    ]


def _powers(panel: Axes, values: list[int]) -> None:
    """A logarithmic axis that names exactly the measured sizes."""
    panel.set_xscale("log", base=2)
    panel.set_xticks(values, [str(value) for value in values])
    panel.xaxis.set_minor_locator(NullLocator())
    panel.xaxis.set_minor_formatter(NullFormatter())


def _log_height(panel: Axes) -> None:
    panel.set_yscale("log")
    panel.yaxis.set_major_locator(LogLocator(base=10, subs=(1, 2, 5)))
    panel.yaxis.set_minor_locator(NullLocator())
    panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))


FIGURES: list[tuple[str, str, Callable[[View], Drawing]]] = [
    ("speedup", "Speed-up by kind of text", speedup),
    ("systems", "Systems side by side", systems),
    ("acceptance", "Acceptance by position", acceptance_by_position),
    ("batch-size", "Throughput by batch size", batches),
    ("pass-cost", "Cost of a pass", pass_cost),
    ("phases", "Where a step's time goes", phases),
]
