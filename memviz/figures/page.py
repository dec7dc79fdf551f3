"""One self-contained HTML page of figures and tables. It asks no other host for anything.

plotly.js travels inside it, gzipped (2 MB instead of 5), and is unpacked by the browser. A policy in the page's
head forbids every connection, so that this stays true whatever plotly learns to do.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

import plotly
import plotly.graph_objects as go

from memviz.figures.theme import CONFIG, figure
from memviz.trace.model import Note

_HERE = Path(__file__).parent
_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"


@dataclass(frozen=True)
class Drawing:
    """A figure in both modes; the browser picks the reader's."""

    light: go.Figure
    dark: go.Figure
    caption: str = ""

    @staticmethod
    def of(plot: Callable[..., go.Figure], *arguments: Any, caption: str = "", **options: Any) -> Drawing:
        return Drawing(plot(*arguments, **options), plot(*arguments, dark=True, **options), caption)


@dataclass(frozen=True)
class Table:
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: int
    """The first columns are numbers; the others are text from a trace."""
    total: Sequence[str] | None = None


@dataclass(frozen=True)
class Section:
    title: str
    text: str = ""
    parts: Sequence[Drawing | Table | Section] = ()


def html_page(title: str, facts: str, notes: Sequence[Note], sections: Sequence[Section]) -> str:
    figures: dict[str, Drawing] = {}
    body = "\n".join(_section(each, figures, "h2") for each in sections)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<title>{escape(title)}</title>
<style>{_read("page.css")}</style>
</head>
<body>
<header><h1>{escape(title)}</h1><p class="second">{escape(facts)}</p></header>
{"".join(_note(each) for each in notes)}
<main>
{body}
</main>
<footer>Made with memviz. Nothing on this page was loaded from elsewhere.</footer>
<script type="text/plain" id="plotly">{_packed_plotly()}</script>
<script type="application/json" id="figures">{_figures_json(figures)}</script>
<script>{_read("page.js")}</script>
</body>
</html>
"""


def _section(section: Section, figures: dict[str, Drawing], heading: str) -> str:
    text = f"<p>{escape(section.text)}</p>" if section.text else ""
    parts = "".join(_part(each, figures) for each in section.parts)
    return f"<section><{heading}>{escape(section.title)}</{heading}>{text}{parts}</section>"


def _part(part: Drawing | Table | Section, figures: dict[str, Drawing]) -> str:
    if isinstance(part, Section):
        return _section(part, figures, "h3")
    if isinstance(part, Table):
        return _table(part)
    name = f"figure-{len(figures)}"
    figures[name] = part
    caption = f"<figcaption>{escape(part.caption)}</figcaption>" if part.caption else ""
    label = escape(part.caption or "Figure")
    return f'<figure><div class="plot" id="{name}" role="img" aria-label="{label}"></div>{caption}</figure>'


def _table(table: Table) -> str:
    head = "".join(f"<th{_kind(i, table)}>{escape(text)}</th>" for i, text in enumerate(table.head))
    rows = "".join(f"<tr>{_cells(row, table)}</tr>" for row in table.rows)
    total = f'<tr class="total">{_cells(table.total, table)}</tr>' if table.total else ""
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{rows}{total}</tbody></table></div>'


def _cells(row: Iterable[str], table: Table) -> str:
    return "".join(f"<td{_kind(i, table)}>{escape(text)}</td>" for i, text in enumerate(row))


def _kind(column: int, table: Table) -> str:
    return ' class="number"' if column < table.numbers else ' class="code"'


def _note(note: Note) -> str:
    remedy = f' <span class="remedy">{escape(note.remedy)}</span>' if note.remedy else ""
    return f'<div class="note {note.level}"><div>{escape(note.text)}{remedy}</div></div>'


def _figures_json(figures: dict[str, Drawing]) -> str:
    templates = {mode: _plain(figure(dark=mode == "dark"))["layout"]["template"] for mode in ("light", "dark")}
    drawn = {name: {"light": _bare(each.light), "dark": _bare(each.dark)} for name, each in figures.items()}
    text = json.dumps({"figures": drawn, "templates": templates, "config": CONFIG}, separators=(",", ":"))
    # Nothing in a text can end the script element or start another.
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _bare(drawing: go.Figure) -> dict[str, Any]:
    """Without its template, which the page holds once."""
    plain = _plain(drawing)
    plain["layout"].pop("template", None)
    return plain


def _plain(drawing: go.Figure) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(drawing.to_json())
    return value


def _read(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")


@cache
def _packed_plotly() -> str:
    source = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
    return base64.b64encode(gzip.compress(source.read_bytes(), 9, mtime=0)).decode("ascii")
