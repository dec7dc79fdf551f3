"""The table of differences, whose rows light their allocations in every timeline and can be taken away as files."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gradio as gr

from memviz.analysis.comparing.match_allocations import Pair, alike
from memviz.analysis.lifetimes import lifetimes
from memviz.errors import MemvizError
from memviz.figures.packed_timeline import Packed, pack_rows

_HERE = Path(__file__).parent
Find = Callable[[str], Pair | None]
MakeFile = Callable[[Sequence[Pair], str, str], dict[str, Any]]
"""From the compared traces, the kind of file and the grouping to its name, type and text."""
_MOST_SIDES = 8


def scripts() -> str:
    """For the page's head, after those of `memory_timeline`."""
    return f"<script>{(_HERE / 'waterfall.js').read_text(encoding='utf-8')}</script>"


class WaterfallTable(gr.HTML):
    """`value` is what `compare.waterfall.waterfall_html` makes; whatever has `data-act` in it becomes a `click`."""

    def __init__(self, find: Find, make_file: MakeFile, **options: Any) -> None:
        super().__init__(
            js_on_load="memvizWaterfall.mount(element, { watch, trigger, server });",
            server_functions=[rows_server(find), file_server(find, make_file)],
            apply_default_css=False,
            **options,
        )


def rows_server(find: Find) -> Callable[[Any], dict[str, Any]]:
    def compared_rows(request: Any) -> dict[str, Any]:
        """{sides, by, row} -> per side which of its allocations belong to that row, one bit each."""
        asked, sides = _asked(find, request)
        try:
            return {"lit": [_sent(each) for each in lit(sides, str(asked.get("by")), str(asked.get("row")))]}
        except MemvizError as error:
            raise gr.Error(str(error), print_exception=False) from None

    return compared_rows


def lit(sides: Sequence[Pair], by: str, row: str) -> list[Packed]:
    found = alike(sides, by)
    return [pack_rows(found.rows_of(number, side, row), len(lifetimes(side[1]))) for number, side in enumerate(sides)]


def file_server(find: Find, make_file: MakeFile) -> Callable[[Any], dict[str, Any]]:
    def compared_file(request: Any) -> dict[str, Any]:
        """{kind, sides, by} -> a file's name, type and text."""
        asked, sides = _asked(find, request)
        try:
            return make_file(sides, str(asked.get("kind")), str(asked.get("by")))
        except MemvizError as error:
            raise gr.Error(str(error), print_exception=False) from None

    return compared_file


def _asked(find: Find, request: Any) -> tuple[dict[str, Any], list[Pair]]:
    asked = request[0] if isinstance(request, list) and request else request
    keys = asked.get("sides") if isinstance(asked, dict) else None
    found = [find(str(key)) for key in keys[:_MOST_SIDES]] if isinstance(keys, list) else []
    sides = [each for each in found if each is not None]
    if not isinstance(asked, dict) or not sides or len(sides) != len(found):
        raise gr.Error("One of these traces is not open any more.", print_exception=False)
    return asked, sides


def _sent(packed: Packed) -> dict[str, Any]:
    return {"header": packed.header, "body": base64.b64encode(packed.body).decode("ascii")}
