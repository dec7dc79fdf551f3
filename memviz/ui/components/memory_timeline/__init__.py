"""The memory timeline as one Gradio component; README.md beside this file describes it."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gradio as gr
import numpy as np

from memviz.analysis.callstacks.sites import sites
from memviz.analysis.callstacks.stack_paths import parse_path, rows_below
from memviz.analysis.find import rows_found
from memviz.analysis.groups import keyed_by
from memviz.analysis.lifetimes import lifetimes
from memviz.errors import MemvizError, UsageError
from memviz.figures.colouring import Colouring, colouring, group_colour, pixel_palette
from memviz.figures.packed_timeline import Packed, pack_groups, pack_rows, pack_sites, pack_timeline, pack_times
from memviz.trace.model import DeviceTrace, Ints8, Trace

_HERE = Path(__file__).parent
Find = Callable[[str], tuple[Trace, DeviceTrace] | None]
"""The trace and device behind a key; None for a key that nobody (any more) has."""


def scripts() -> str:
    """For the page's head: once, however many timelines there are."""
    texts = ((_HERE / name).read_text(encoding="utf-8") for name in ("words.js", "timeline.js", "total.js"))
    return "".join(f"<script>{text}</script>" for text in (raster(), *texts))


def raster() -> str:
    """What draws and unpacks; it needs no page."""
    return (_HERE / "raster.js").read_text(encoding="utf-8")


def style() -> str:
    return (_HERE / "timeline.css").read_text(encoding="utf-8")


class MemoryTimeline(gr.HTML):
    """`value` is what `timeline_value` makes; the event `select` carries what a person has chosen."""

    def __init__(self, find: Find, **options: Any) -> None:
        super().__init__(
            html_template='<div class="mvt-place"></div>',
            js_on_load="""memvizTimeline.mount(element, { props, watch, server, trigger: (name, data) => {
                if (name === 'select') trigger('select', data);
            } });""",
            server_functions=[piece_server(find)],
            apply_default_css=False,
            **options,
        )

    def api_info(self) -> dict[str, Any]:
        return {"type": "object"}


def piece_server(find: Find) -> Callable[[Any], dict[str, Any]]:
    def timeline_piece(request: Any) -> dict[str, Any]:
        """Called by the browser: {key, piece, ...} -> {header, body}."""
        asked = request[0] if isinstance(request, list) and request else request
        found = find(str(asked.get("key", ""))) if isinstance(asked, dict) else None
        if found is None:
            raise gr.Error("This trace is not open any more.", print_exception=False)
        try:
            packed = piece(*found, asked)
        except MemvizError as error:
            raise gr.Error(str(error), print_exception=False) from None
        return {"header": packed.header, "body": base64.b64encode(packed.body).decode("ascii")}

    return timeline_piece


def piece(trace: Trace, device: DeviceTrace, asked: dict[str, Any]) -> Packed:
    kind = asked.get("piece")
    if kind == "timeline":
        return pack_timeline(device)
    if kind == "groups":
        return _groups(colouring(trace, device, str(asked.get("meaning", "category"))))
    if kind == "times":
        return pack_times(device)
    if kind == "sites":
        table = sites(trace)
        return pack_sites(table.of_stack[lifetimes(device).stack], [each.label for each in table.sites])
    if kind == "lit":
        return pack_rows(
            lit_rows(trace, device, str(asked.get("by", "site")), asked.get("group")), len(lifetimes(device))
        )
    raise UsageError(f"A timeline has no piece {kind!r}.")


def lit_rows(trace: Trace, device: DeviceTrace, by: str, group: Any) -> Ints8:
    """All allocations of one group, wherever in time; of what a person looks for, or of one box of the icicle."""
    rows = np.arange(len(lifetimes(device)))
    if by == "find":
        return rows_found(trace, device, str(group))
    if by == "path":
        return rows_below(trace, device, rows, parse_path(trace, str(group)))
    keyed = keyed_by(trace, device, rows, by)
    wanted = [code for code in np.unique(keyed.codes).tolist() if keyed.name(int(code))[0] == group]
    return np.asarray(rows[np.isin(keyed.codes, wanted)], dtype=np.int64)


def _groups(colours: Colouring) -> Packed:
    packed = pack_groups(colours)
    palettes = {
        f"{mode}{'_dimmed' if dimmed else ''}": pixel_palette(colours, dark=mode == "dark", dimmed=dimmed)
        for mode in ("light", "dark")
        for dimmed in (False, True)
    }
    header = {
        **packed.header,
        "meaning": colours.meaning,
        "labels": list(colours.labels),
        "colours": {
            mode: [group_colour(colours, i, dark=mode == "dark") for i in range(len(colours.labels))]
            for mode in ("light", "dark")
        },
        "palettes": {mode: table.reshape(-1).tolist() for mode, table in palettes.items()},
    }
    return Packed(header, packed.body)
