"""Colours of the report, once for the light and once for the dark page."""

import re
from typing import NamedTuple


class Colour(NamedTuple):
    """A plot is drawn in the light colours; on the page each becomes a variable that dark mode
    sets anew. Every light colour must therefore be unique."""

    variable: str
    light: str
    dark: str


INK = Colour("--ink", "#1c2430", "#e6e9ee")
MUTED = Colour("--muted", "#5b6675", "#a3adbb")
GRID = Colour("--grid", "#dfe3e8", "#303844")
CARD = Colour("--card", "#fefefe", "#1a2029")
PLAIN = Colour("--plain", "#848e9b", "#8893a2")  # plain decoding, in every plot

# After Okabe and Ito: apart from each other also for readers who do not see red or green.
SERIES = (
    Colour("--series-1", "#0072b2", "#4aa8e0"),
    Colour("--series-2", "#d55e00", "#f2853d"),
    Colour("--series-3", "#008f68", "#2fc79b"),
    Colour("--series-4", "#b5578f", "#e08fc0"),
    Colour("--series-5", "#c28500", "#f0bb45"),
    Colour("--series-6", "#5a4fcf", "#a49bff"),
    Colour("--series-7", "#7a5230", "#c79d78"),
)
MARKERS = ("o", "s", "^", "D", "v", "P", "X")  # a second sign beside the colour
HATCHES = ("", "///", "...", "xxx")

ALL = (INK, MUTED, GRID, CARD, PLAIN, *SERIES)


class Look(NamedTuple):
    colour: str
    marker: str


def looks(drafters: list[str]) -> dict[str, Look]:
    """The same colour and marker for a drafter in every plot; plain decoding is grey."""
    drawn = [name for name in drafters if name != "none"]
    found = {
        name: Look(SERIES[place % len(SERIES)].light, MARKERS[place % len(MARKERS)])
        for place, name in enumerate(drawn)
    }
    return {"none": Look(PLAIN.light, "*"), **found}


def variables(dark: bool) -> str:
    """The CSS declarations of one mode."""
    return " ".join(f"{c.variable}: {c.dark if dark else c.light};" for c in ALL)


def themed(svg: str) -> str:
    """An SVG drawn in the light colours, following the page's mode instead."""
    names = {colour.light: colour.variable for colour in ALL}
    pattern = re.compile("|".join(map(re.escape, names)), re.IGNORECASE)
    return pattern.sub(lambda match: f"var({names[match[0].lower()]})", svg)
