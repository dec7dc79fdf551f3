"""Words inside figures: texts from a trace made harmless, and axes of bytes.

plotly reads a part of HTML in every label, hover text and title (<b>, <br>, <a href>), and TeX between dollar
signs where MathJax is there. A function name in a snapshot is anybody's text, so all of it goes through `plain`.
It must never stand in a template either (`hovertemplate`, `texttemplate`): there `%{...}` is read as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from memviz.units import count_text, unit_text

LONGEST = 80
"""Characters of one text from a trace; a megabyte of function name must not become a megabyte of page."""

_TICKS = 5
_STEPS = (1, 2, 2.5, 5, 10)


def plain(text: str, longest: int = LONGEST) -> str:
    """The text as it stands, for plotly to show as it stands. The tail is kept: it holds file and line."""
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
    """Ticks at round multiples of one unit; the unit stands at the top tick only."""
    unit = _unit(max(top, -bottom, 1))
    # There are no half bytes; of larger units there are.
    step = _round_step((top - bottom) / unit, 1 if unit == 1 else 0.1)
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


def _unit(size: int) -> int:
    """Where `bytes_text` changes its unit; except that 1.5 KiB is read more easily as 1,500 B."""
    limits = ((2 << 10, 1), (2 << 20, 1 << 10), (10 << 30, 1 << 20), (10 << 40, 1 << 30))
    return next((unit for limit, unit in limits if size < limit), 1 << 40)


def _round_step(span: float, least: float) -> float:
    rough = max(span / _TICKS, least)
    scale = 10.0 ** _floor_log10(rough)
    return next(step * scale for step in _STEPS if step * scale >= rough)


def _floor_log10(value: float) -> int:
    exponent = 0
    while 10.0 ** (exponent + 1) <= value:
        exponent += 1
    while 10.0**exponent > value:
        exponent -= 1
    return exponent
