"""A seed's published table beside ours, computed when somebody asks for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from memviz.ui.html.markup import Html, tag
from memviz.ui.run.stories import STORIES


def table_html(story: str, rows: Sequence[Mapping[str, Any]] | None, *, waiting: bool = False, fault: str = "") -> Html:
    """`rows` is None before they were asked for."""
    if story not in STORIES:
        return Html("")
    title = tag("h2", "The published table, beside ours", class_="mv-h2")
    if not rows and not waiting and not fault:
        words = "The figures that this example was published with, each predicted anew. It takes some seconds."
        button = tag("button", "Compute it", type="button", class_="mv-quiet", data_act="table")
        return tag("section", title, tag("p", words, class_="mv-soft"), button)
    head = [tag("th", words, scope="col", class_=kind) for words, kind in _HEADS]
    body = [tag("tr", *_cells(row)) for row in rows or ()]
    table = tag("table", tag("thead", tag("tr", *head)), tag("tbody", *body), class_="mv-table")
    below = [tag("p", f"Computing the next figure, {len(body)} done …", class_="mv-phase", role="status")]
    below = below if waiting else [tag("p", fault, class_="mv-fault", role="alert")] if fault else []
    return tag("section", title, table if body else "", *below)


_HEADS = (
    ("Case", None),
    ("Figure", None),
    ("Published", "mv-number"),
    ("Ours", "mv-number"),
    ("Difference", "mv-number"),
    ("", None),
)


def _cells(row: Mapping[str, Any]) -> list[Html]:
    change = row["difference_percent"]
    numbers = (_number(row["published"]), _number(row["ours"]), "" if change is None else f"{change:+.2f} %")
    return [
        tag("td", row["case"]),
        tag("td", row["figure"]),
        *(tag("td", number, class_="mv-number") for number in numbers),
        tag("td", row["note"], class_="mv-soft"),
    ]


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
