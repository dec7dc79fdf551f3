"""The table of differences, whose rows light their allocations in every timeline and can be taken away as files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from memviz.analysis.comparing.matching import Pair, match_allocations
from memviz.analysis.lifetimes import lifetimes
from memviz.errors import UsageError
from memviz.figures.packed_timeline import PackedTimeline, as_sent, pack_rows
from memviz.ui.components.component import Find, Request, served
from memviz.ui.components.panel import Panel

MakeFile = Callable[[Sequence[Pair], str, str], dict[str, Any]]
"""From the compared traces, the kind of file and the grouping to its name, type and text."""
_MOST_SIDES = 8


class WaterfallTable(Panel):
    """`value` is what `compare.waterfall.waterfall_html` makes; whatever has `data-act` in it becomes a `click`."""

    script = Path(__file__).parent / "waterfall.js"

    def __init__(self, find: Find, make_file: MakeFile, **options: Any) -> None:
        super().__init__(server_functions=[rows_server(find), file_server(find, make_file)], **options)


def rows_server(find: Find) -> Callable[[Any], dict[str, Any]]:
    @served
    def compared_rows(request: Request) -> dict[str, Any]:
        """{sides, by, row} -> per side which of its allocations belong to that row, one bit each."""
        masks = lit(_sides(find, request), str(request.get("by")), str(request.get("row")))
        return {"lit": [as_sent(mask) for mask in masks]}

    return compared_rows


def lit(sides: Sequence[Pair], by: str, row: str) -> list[PackedTimeline]:
    alikes = match_allocations(sides, by)
    return [pack_rows(alikes.rows_of(number, side, row), len(lifetimes(side[1]))) for number, side in enumerate(sides)]


def file_server(find: Find, make_file: MakeFile) -> Callable[[Any], dict[str, Any]]:
    @served
    def compared_file(request: Request) -> dict[str, Any]:
        """{kind, sides, by} -> a file's name, type and text."""
        return make_file(_sides(find, request), str(request.get("kind")), str(request.get("by")))

    return compared_file


def _sides(find: Find, request: Request) -> list[Pair]:
    keys = request.get("sides")
    pairs = [find(str(key)) for key in keys[:_MOST_SIDES]] if isinstance(keys, list) else []
    sides = [pair for pair in pairs if pair is not None]
    if not sides or len(sides) != len(pairs):
        raise UsageError("One of these traces is not open any more.")
    return sides
