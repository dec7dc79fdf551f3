"""Colours, the two templates, and helpers of all figures.

Colour belongs to bytes: it means a category, a change or an alarm, and everything else is ink on paper.
The category colours keep hue and order in both modes and stay apart for colour-blind people; a test
recomputes their distances, so that none is tuned alone.

The page, the command line and reports use only the colours, so plotly is imported with the first figure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from html import escape
from typing import TYPE_CHECKING, Any

from memviz.trace.model import Category
from memviz.units import count_text, unit_text

if TYPE_CHECKING:
    import plotly.graph_objects as go

CONFIG: dict[str, Any] = {
    "displaylogo": False,
    # plotly.js 4 offers to upload the chart to Plotly unless disabled.
    "showSendToCloud": False,
    "displayModeBar": False,
    "responsive": True,
}

FONT = "IBM Plex Sans, ui-sans-serif, system-ui, sans-serif"
MONO = "IBM Plex Mono, ui-monospace, monospace"


@dataclass(frozen=True)
class Palette:
    page: str
    raised: str
    fill: str
    ink: str
    ink_2: str
    """The second voice."""
    ink_3: str
    """Labels, axes, and bytes that are in no category."""
    line: str
    grew: str
    shrank: str
    bad: str
    warn: str
    before: str
    """Live at the first event, without a stack."""
    categories: dict[Category, str]
    """Kinds that hardly ever meet in one trace share a colour."""

    def category(self, category: Category) -> str:
        return self.categories[category]


_CATEGORIES = {
    Category.PARAMETER: ("#3569bf", "#396bbe"),
    Category.OPTIMIZER_STATE: ("#a482d9", "#b08fe5"),
    Category.GRADIENT: ("#cb7900", "#ce7e0a"),
    Category.ACTIVATION: ("#46b08a", "#53b892"),
    Category.TEMPORARY: ("#d0b338", "#d7bb47"),
    Category.WORKSPACE: ("#9c4b23", "#a2532d"),
    Category.INPUT: ("#8abbd8", "#98c8e5"),
    Category.OUTPUT: ("#8abbd8", "#98c8e5"),
    Category.KV_CACHE: ("#6a3a80", "#842e8a"),
    Category.COLLECTIVE: ("#9c4b23", "#a2532d"),
    Category.GRAPH_POOL: ("#9c4b23", "#a2532d"),
    Category.HOST_COPY: ("#8abbd8", "#98c8e5"),
    Category.AUTOCAST_WEIGHT_COPIES: ("#7a1f2e", "#86242f"),
    Category.WEIGHT_COPIES: ("#7a1f2e", "#86242f"),
    Category.UNKNOWN: ("#7a7d86", "#7c7f88"),
}
"""Light and dark."""

LIGHT = Palette(
    page="#ffffff",
    raised="#ffffff",
    fill="#ebebed",
    ink="#18181b",
    ink_2="#52525b",
    ink_3="#71717a",
    line="#e4e4e7",
    grew="#b93a1a",
    shrank="#1f6f9f",
    bad="#c62828",
    warn="#9a6700",
    before="#c9c9cf",
    categories={kind: light for kind, (light, _) in _CATEGORIES.items()},
)

DARK = Palette(
    page="#0f0f11",
    raised="#1b1b1f",
    fill="#26262b",
    ink="#f4f4f5",
    ink_2="#b4b4bd",
    ink_3="#8d8d98",
    line="#2b2b30",
    grew="#f0835f",
    shrank="#6db3de",
    bad="#ff6b64",
    warn="#e0b341",
    before="#4a4a52",
    categories={kind: dark for kind, (_, dark) in _CATEGORIES.items()},
)


def palette(dark: bool) -> Palette:
    return DARK if dark else LIGHT


def text_on(fill: str) -> str:
    """Ink or white, whichever can be read on this fill."""
    return "#131316" if luminance(fill) > 0.19 else "#ffffff"


def luminance(colour: str) -> float:
    """Relative luminance as WCAG defines it, 0 to 1."""
    shares = (part / 255 for part in _rgb(colour))
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in shares)
    return float(0.2126 * red + 0.7152 * green + 0.0722 * blue)


@lru_cache(4096)
def mixed(colour: str, other: str, share: float) -> str:
    """Mix a `share` of the other colour into the first."""
    pairs = zip(_rgb(colour), _rgb(other), strict=True)
    return "#" + "".join(f"{round(channel + (towards - channel) * share):02x}" for channel, towards in pairs)


def hatched(colours: Palette, shape: str = "/") -> dict[str, Any]:
    """The pattern of memory that is reserved and not used."""
    return {"shape": shape, "size": 6, "solidity": 0.12, "fgcolor": colours.ink_3, "bgcolor": colours.page}


def _rgb(colour: str) -> tuple[int, ...]:
    return tuple(int(colour[at : at + 2], 16) for at in (1, 3, 5))


def figure(*, dark: bool, title: str = "", **layout: Any) -> go.Figure:
    """An empty figure with the template. `title` must not contain text from a trace."""
    import plotly.graph_objects as go

    drawing = go.Figure(layout={"template": _template(dark), **layout})
    if title:
        drawing.update_layout(title_text=title)
    return drawing


def nothing_to_show(drawing: go.Figure, message: str) -> go.Figure:
    """Show why a figure is empty, in place of its data."""
    drawing.update_xaxes(visible=False)
    drawing.update_yaxes(visible=False)
    drawing.add_annotation(text=message, x=0.5, y=0.5, xref="paper", yref="paper", showarrow=False)
    return drawing


@cache
def _template(dark: bool) -> go.layout.Template:
    import plotly.graph_objects as go

    colours = palette(dark)
    axis = {"zeroline": False, "tickcolor": colours.ink_3, "linecolor": colours.ink_3, "automargin": True}
    return go.layout.Template(
        layout={
            "font": {"family": FONT, "size": 11, "color": colours.ink_2},
            # Above the legend, which is above the plot: they overlap at no width.
            "title": {
                "x": 0,
                "xref": "paper",
                "y": 1,
                "yref": "paper",
                "yanchor": "bottom",
                "pad": {"b": 26},
                "font": {"size": 13, "color": colours.ink},
            },
            "height": 380,
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "colorway": list(dict.fromkeys(colours.categories.values())),
            "margin": {"l": 54, "r": 24, "t": 56, "b": 36},
            "bargap": 0.35,
            "xaxis": {**axis, "showgrid": False, "showline": True, "ticks": "outside", "ticklen": 4},
            "yaxis": {**axis, "gridcolor": colours.line, "ticks": ""},
            "legend": {
                "orientation": "h",
                "traceorder": "normal",
                "y": 1,
                "yanchor": "bottom",
                "x": 0,
                "font": {"size": 12},
            },
            "hoverlabel": {
                "bgcolor": colours.raised,
                "bordercolor": colours.line,
                "font": {"size": 12, "color": colours.ink},
                "align": "left",
            },
        }
    )


# plotly reads a part of HTML in every label, hover text and title (<b>, <br>, <a href>), and TeX between dollar signs
# where MathJax is there. A function name in a snapshot is untrusted text, so all of it goes through `plain`. It must
# never be part of a template either (`hovertemplate`, `texttemplate`): there `%{...}` is read as well.

LONGEST = 80
"""Characters of one text from a trace; a megabyte of function name must not become a megabyte of page."""

HOVER_TEXT = "%{hovertext}<extra></extra>"
"""Template that shows the hover text unchanged."""

_TICKS = 5
_STEPS = (1, 2, 2.5, 5, 10)


def plain(text: str, longest: int = LONGEST) -> str:
    """Escape a text so that plotly shows it literally. A long text keeps its tail: it holds file and line."""
    short = text if len(text) <= longest else "…" + text[1 - longest :]
    # Line breaks, marks that turn the writing direction round and lone surrogates are not for display.
    visible = "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in short)
    return escape(visible, quote=False).replace("$", "&#36;")


def lines(*texts: str) -> str:
    """One under the other; each is plain already."""
    return "<br>".join(texts)


def moment(event: int) -> str:
    return f"after event {count_text(event)}" if event >= 0 else "before the first event"


def byte_axis(top: int, bottom: int = 0) -> dict[str, Any]:
    """Ticks at round multiples of one unit; only the top tick names the unit."""
    # The unit that `bytes_text` uses; except that 1.5 KiB is read more easily as 1,500 B.
    limits = ((2 << 10, 1), (2 << 20, 1 << 10), (10 << 30, 1 << 20), (10 << 40, 1 << 30))
    unit = next((unit for limit, unit in limits if max(top, -bottom, 1) < limit), 1 << 40)
    # There are no half bytes; of larger units there are.
    rough = max((top - bottom) / unit / _TICKS, 1 if unit == 1 else 0.1)
    scale = 10.0 ** math.floor(math.log10(rough))
    step = next(step * scale for step in _STEPS if step * scale >= rough)
    first, last = int(bottom / unit / step), int(top / unit / step)
    values = [number * step for number in range(first, last + 1)]
    texts = [f"{value:,g}".replace("-", "−") for value in values]
    texts[-1] += f" {unit_text(unit)}"
    return {"tickmode": "array", "tickvals": [round(value * unit) for value in values], "ticktext": texts}


def rows_axis(labels: Sequence[str]) -> dict[str, Any]:
    """One row per label, the first on top. Rows are numbers, so that equal labels stay two rows."""
    places = list(range(len(labels)))
    return {
        "tickmode": "array",
        "tickvals": places,
        "ticktext": list(labels),
        "range": [max(len(labels), 1) - 0.5, -0.5],
        "showgrid": False,
    }
