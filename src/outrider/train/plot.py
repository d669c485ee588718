"""The picture of a training run's report."""

from pathlib import Path
from typing import Any

from outrider.core.errors import ConfigError
from outrider.train.loop import Judgement

PIXELS_PER_INCH = 160
INK, MUTED, GRID = "#1c2430", "#5b6675", "#dfe3e8"
# After Okabe and Ito: apart from each other also for readers who do not see red or green.
COLOURS = ("#0072b2", "#d55e00", "#008f68", "#b5578f", "#c28500", "#5a4fcf", "#7a5230", "#848e9b")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
STYLE: Any = {
    "text.color": INK,
    "axes.titlesize": 11,
    "axes.titlecolor": INK,
    "axes.titlelocation": "left",
    "axes.labelcolor": MUTED,
    "axes.edgecolor": GRID,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "lines.markersize": 4.5,
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same picture everywhere
    "font.size": 9.5,
    "text.parse_math": False,  # a $ in a name is a $
}


def draw(judged: list[Judgement], title: str, file: Path) -> None:
    """Loss, guesses that hold by depth, and tokens per pass, over the steps."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError(
            "the report's picture needs matplotlib: pip install 'outrider[bench]'"
        ) from None
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(11.5, 3.6), layout="constrained")
        figure.suptitle(title, x=0.006, ha="left", fontweight="bold")
        loss, depths, length = figure.subplots(1, 3)
        steps = [each.step for each in judged]
        _losses(loss, judged)
        _depths(depths, judged)
        _lengths(length, judged)
        for axes in (loss, depths, length):
            axes.set_xlabel("step")
            axes.set_xlim(0, max(steps) * 1.08)
            axes.xaxis.get_major_locator().set_params(integer=True)
        figure.savefig(file, dpi=PIXELS_PER_INCH, format="png")


def _losses(axes: Any, judged: list[Judgement]) -> None:
    taught = [(each.step, each.lessons) for each in judged if each.lessons is not None]
    if taught:
        axes.plot(*zip(*taught), "s--", color=MUTED, label="lessons")
    axes.plot(
        [each.step for each in judged],
        [each.loss for each in judged],
        "o-",
        color=COLOURS[0],
        label="held-out text",
    )
    axes.set_title("Loss")
    axes.legend()


def _depths(axes: Any, judged: list[Judgement]) -> None:
    for depth in range(max(len(each.depths) for each in judged)):
        deep = [each for each in judged if len(each.depths) > depth]
        steps, shares = [each.step for each in deep], [each.depths[depth] for each in deep]
        colour = COLOURS[depth % len(COLOURS)]
        marker = MARKERS[depth % len(MARKERS)]
        axes.plot(steps, shares, marker=marker, color=colour, label=str(depth + 1))
    axes.set_title("Guesses that hold, once one came so deep")
    axes.set_ylim(0, 1)
    axes.yaxis.set_major_formatter("{x:.0%}")
    axes.legend(title="depth", ncols=4, loc="best", fontsize=8.5, title_fontsize=8.5)


def _lengths(axes: Any, judged: list[Judgement]) -> None:
    steps, lengths = [each.step for each in judged], [each.length for each in judged]
    axes.plot(steps, lengths, "o-", color=COLOURS[0])
    axes.set_title("Tokens per pass of the target")
    axes.set_ylim(1, max(2.0, 1.1 * max(lengths)))
    axes.annotate(
        f"{lengths[-1]:.2f}",
        (steps[-1], lengths[-1]),
        xytext=(0, 7),
        textcoords="offset points",
        ha="center",
        color=COLOURS[0],
        fontweight="bold",
    )
