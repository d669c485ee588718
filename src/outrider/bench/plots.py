"""From results to pictures: a PNG in the folder and the same drawing as SVG for the page."""

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from outrider.bench.theme import CARD, GRID, INK, MUTED, themed
from outrider.bench.view import View
from outrider.core.errors import ConfigError

PIXELS_PER_INCH = 160


class Plot(NamedTuple):
    name: str  # of the PNG, and of the figure on the page
    title: str
    text: str  # the caption; for a plot without data, why there is none
    svg: str | None
    wide: bool


def draw_all(view: View, folder: Path) -> list[Plot]:
    """All plots, in the order of the page. Writes their PNG files into the folder."""
    with _drawing():
        from outrider.bench import figures

        return [_draw(view, folder, *entry) for entry in figures.FIGURES]


def _draw(view: View, folder: Path, name: str, title: str, function: Any) -> Plot:
    from outrider.bench.figures import NoData

    file = folder / f"{name}.png"
    try:
        figure, caption = function(view)
    except NoData as reason:
        file.unlink(missing_ok=True)  # of an earlier report in the same folder
        return Plot(name, title, str(reason), None, False)
    figure.savefig(file, dpi=PIXELS_PER_INCH)
    wide = figure.get_figwidth() > 6
    return Plot(name, title, caption, _inline_svg(figure, name, title), wide)


@contextmanager
def _drawing() -> Iterator[None]:
    """matplotlib without a screen, and with our style only as long as we draw."""
    try:
        import matplotlib
        from matplotlib import pyplot
    except ImportError:
        raise ConfigError(
            "the report needs matplotlib: pip install 'outrider[bench]' (what was measured is "
            "kept in results.json)"
        ) from None
    with pyplot.rc_context(_style()):
        backend = matplotlib.get_backend()
        pyplot.switch_backend("agg")
        try:
            yield
        finally:
            pyplot.close("all")
            pyplot.switch_backend(backend)


def _style() -> Any:
    return {
        "figure.facecolor": CARD.light,
        "axes.facecolor": CARD.light,
        "savefig.facecolor": CARD.light,
        "text.color": INK.light,
        "axes.labelcolor": MUTED.light,
        "axes.edgecolor": GRID.light,
        "axes.titlecolor": INK.light,
        "axes.titlesize": 10.5,
        "axes.labelsize": 9.5,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": GRID.light,
        "grid.linewidth": 0.8,
        "xtick.color": GRID.light,
        "ytick.color": GRID.light,
        "xtick.labelcolor": INK.light,
        "ytick.labelcolor": INK.light,
        "xtick.labelsize": 9.5,
        "ytick.labelsize": 9.5,
        "legend.frameon": False,
        "legend.fontsize": 9.5,
        "lines.linewidth": 1.8,
        "lines.markersize": 6,
        "hatch.linewidth": 0.7,
        "hatch.color": CARD.light,
        "font.family": "DejaVu Sans",  # comes with matplotlib: the same picture everywhere
        "figure.constrained_layout.use": True,
        "svg.fonttype": "none",  # text stays text: it can be selected, found and read aloud
        "text.parse_math": False,  # a $ in a name is a $
        "svg.hashsalt": "outrider",
    }


def _inline_svg(figure: Any, name: str, title: str) -> str:
    """An <svg> element for HTML: follows the page's colours and fonts, and shares no id."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", svg)
    svg = re.sub(r"(font: [^;\"]*?px) [^;\"]*", r"\1 system-ui, sans-serif", svg)
    size = r'width="[\d.]+pt" height="[\d.]+pt"'
    label = f'role="img" aria-labelledby="{name}-title" data-plot="{name}"'
    svg = re.sub(size, label, svg, count=1).replace(" xmlns:xlink", "\n xmlns:xlink", 1)
    head, rest = svg.split(">", 1)
    return themed(f'{head}>\n<title id="{name}-title">{title}</title>{rest}')
