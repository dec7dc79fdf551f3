"""The table of differences, whose rows light their allocations in every timeline and can be taken away as files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from memviz.analysis.comparing.changes import changes
from memviz.analysis.comparing.match_allocations import Pair, alike
from memviz.analysis.lifetimes import lifetimes
from memviz.errors import UsageError
from memviz.figures.packed_timeline import Packed, as_sent, pack_rows
from memviz.ui.compare.changes_csv import changes_csv
from memviz.ui.components.component import Find, Request, served
from memviz.ui.components.panel import Panel
from memviz.ui.saved.report import report_page

_MOST_SIDES = 8


class WaterfallTable(Panel):
    """`value` is what `compare.waterfall.waterfall_html` makes; whatever has `data-act` in it becomes a `click`."""

    script = Path(__file__).parent / "waterfall.js"

    def __init__(self, find: Find, **options: Any) -> None:
        super().__init__(server_functions=[rows_server(find), file_server(find)], **options)


def rows_server(find: Find) -> Callable[[Any], dict[str, Any]]:
    @served
    def compared_rows(request: Request) -> dict[str, Any]:
        """{sides, by, row} -> per side which of its allocations belong to that row, one bit each."""
        masks = lit(_sides(find, request), str(request.get("by")), str(request.get("row")))
        return {"lit": [as_sent(mask) for mask in masks]}

    return compared_rows


def lit(sides: Sequence[Pair], by: str, row: str) -> list[Packed]:
    alikes = alike(sides, by)
    return [pack_rows(alikes.rows_of(number, side, row), len(lifetimes(side[1]))) for number, side in enumerate(sides)]


def file_server(find: Find) -> Callable[[Any], dict[str, Any]]:
    @served
    def compared_file(request: Request) -> dict[str, Any]:
        """{kind, sides, by} -> a file's name, type and text."""
        return file(_sides(find, request), str(request.get("kind")), str(request.get("by")))

    return compared_file


def file(sides: Sequence[Pair], kind: str, by: str) -> dict[str, Any]:
    if kind == "html":
        return {"name": "comparison.html", "type": "text/html;charset=utf-8", "text": report_page(sides, by)}
    if kind == "csv":
        text = changes_csv(changes(sides, by))
        return {"name": f"comparison-by-{by}.csv", "type": "text/csv;charset=utf-8", "text": text}
    raise UsageError(f"A comparison cannot be saved as {kind!r}.")


def _sides(find: Find, request: Request) -> list[Pair]:
    keys = request.get("sides")
    pairs = [find(str(key)) for key in keys[:_MOST_SIDES]] if isinstance(keys, list) else []
    sides = [pair for pair in pairs if pair is not None]
    if not sides or len(sides) != len(pairs):
        raise UsageError("One of these traces is not open any more.")
    return sides
