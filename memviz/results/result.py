"""The base of results: a sentence, a table for terminals and notebooks, a pandas frame, and JSON."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from memviz.errors import library_needed
from memviz.results.headline import Headline
from memviz.text import Html, escape_control_chars, joined, tag

if TYPE_CHECKING:
    import pandas

_MOST_ROWS = 20
_LONGEST = 120
_NUMBER = "padding:0 0.6em;text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums"
_TEXT = "padding:0 0.6em;text-align:left;font-family:ui-monospace,monospace;overflow-wrap:anywhere"
_BAR_CELL = "width:12em;min-width:12em"


@dataclass(frozen=True)
class Bar:
    """A bar between two shares of the cell's width."""

    start: float
    end: float
    opacity: float = 0.55


@dataclass(frozen=True)
class TableRow:
    numbers: tuple[str, ...]
    label: str
    bars: tuple[Bar, ...] = ()


@dataclass(frozen=True)
class Table:
    head: tuple[str, ...]
    """Names of the numbers, then of the label."""
    rows: tuple[TableRow, ...]


def _table_html(table: Table) -> Html:
    if not table.rows:
        return Html("")
    has_bars = any(row.bars for row in table.rows)
    names = [tag("th", name, style=_NUMBER if i < len(table.head) - 1 else _TEXT) for i, name in enumerate(table.head)]
    headings = tag("tr", *names, tag("th", style=_BAR_CELL) if has_bars else "")
    body = [_table_row(row, has_bars=has_bars) for row in table.rows]
    return tag("table", tag("thead", headings), tag("tbody", *body), style="min-width:60%")


def _table_row(row: TableRow, *, has_bars: bool) -> Html:
    cells = [tag("td", number, style=_NUMBER) for number in row.numbers]
    label = row.label if len(row.label) <= _LONGEST else f"…{row.label[1 - _LONGEST :]}"
    cells.append(tag("td", label, style=_TEXT))
    if has_bars:
        pieces = [tag("i", style=_bar_style(bar)) for bar in row.bars if bar.end > bar.start]
        bars = tag("div", *pieces, style="position:relative;height:0.8em", aria_hidden="true")
        cells.append(tag("td", bars, style=_BAR_CELL))
    return tag("tr", *cells)


def _bar_style(bar: Bar) -> str:
    place = f"position:absolute;top:0;bottom:0;left:{100 * bar.start:.2f}%;width:{100 * (bar.end - bar.start):.2f}%"
    return f"{place};background:currentColor;opacity:{bar.opacity}"


def share(part: int, total: int) -> float:
    return part / total if total else 0.0


def stacked_bars(parts: Sequence[int], total: int, opacities: Sequence[float]) -> tuple[Bar, ...]:
    bars, at = [], 0
    for part, opacity in zip(parts, opacities, strict=True):
        bars.append(Bar(share(at, total), share(at + part, total), opacity))
        at += part
    return tuple(bars)


def area(live: Sequence[int], reserved: Sequence[int], *, label: str) -> Html:
    """Live bytes as an area below the line of what is reserved; a column is as wide as the next."""
    top, count = max(*live, *reserved, 1), len(live)
    width, height = 600, 120

    def line(values: Sequence[int]) -> str:
        steps = [f"H{width * (i + 1) / count:.1f}" for i in range(count)]
        levels = [f"V{height * (1 - value / top):.1f}" for value in values]
        return "".join(f"{level}{step}" for level, step in zip(levels, steps, strict=True))

    shapes = joined(
        tag("path", d=f"M0 {height}{line(live)}V{height}Z", fill="currentColor", opacity="0.35"),
        tag("path", d=f"M0 {height}{line(reserved)}", fill="none", stroke="currentColor"),
    )
    style = "width:100%;max-width:60em;height:8em;overflow:visible"
    return tag(
        "svg", shapes, viewBox=f"0 0 {width} {height}", preserveAspectRatio="none", style=style, aria_label=label
    )


def named_fields(value: Any, *names: str) -> dict[str, Any]:
    """Return fields whose names in JSON are their own."""
    return {name: getattr(value, name) for name in names}


class Result(ABC):
    """An answer that prints as a sentence and shows as a table in a notebook."""

    @property
    @abstractmethod
    def headline(self) -> Headline:
        """The answer and its reason; texts from the trace are not escaped."""

    @abstractmethod
    def as_json(self) -> dict[str, Any]:
        """Return the output of the command line's `--json`."""

    @abstractmethod
    def columns(self) -> Mapping[str, list[Any]]:
        """Every row of the table, by column, in plain values."""

    def to_frame(self) -> pandas.DataFrame:
        """`columns` as a pandas frame.

        Raises:
            LibraryNeeded: pandas is not installed.
        """
        try:
            import pandas
        except ModuleNotFoundError as error:
            raise (library_needed(error) or error) from None
        return pandas.DataFrame(dict(self.columns()))

    @abstractmethod
    def table(self, most: int | None = None) -> Table:
        """The rows as texts: the first `most`, and a row for the others."""

    def _above_table(self) -> Html:
        """HTML between the sentence and the table."""
        return Html("")

    def __str__(self) -> str:
        return escape_control_chars(str(self.headline), keep="")

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return tag("div", tag("p", tag("strong", str(self))), self._above_table(), _table_html(self.table(_MOST_ROWS)))

    def _repr_mimebundle_(
        self, include: Collection[str] | None = None, exclude: Collection[str] | None = None
    ) -> dict[str, str]:
        bundle = {"text/plain": str(self), "text/html": self._repr_html_()}
        return {
            kind: text
            for kind, text in bundle.items()
            if (not include or kind in include) and not (exclude and kind in exclude)
        }
