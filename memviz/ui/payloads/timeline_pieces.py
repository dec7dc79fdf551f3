"""What the browser asks for of one timeline, piece by piece; components/memory_timeline/README.md has the list."""

from __future__ import annotations

from typing import Any

import numpy as np

from memviz.analysis.breakdown import parse_path, rows_below
from memviz.analysis.callstacks.sites import sites
from memviz.analysis.find import rows_found
from memviz.analysis.findings.ranking import finding_named
from memviz.analysis.groups import keyed_by
from memviz.analysis.lifetimes import lifetimes
from memviz.errors import UsageError
from memviz.figures.colouring import Colouring, colouring, group_colour, pixel_palette
from memviz.figures.packed_timeline import PackedTimeline, pack_groups, pack_rows, pack_sites, pack_timeline, pack_times
from memviz.trace.model import DeviceTrace, Ints8, Trace


def piece(trace: Trace, device: DeviceTrace, request: dict[str, Any]) -> PackedTimeline:
    kind = request.get("piece")
    if kind == "timeline":
        return pack_timeline(device)
    if kind == "groups":
        return groups_piece(colouring(trace, device, str(request.get("meaning", "category")), _among(request)))
    if kind == "times":
        return pack_times(device)
    if kind == "sites":
        table = sites(trace)
        return pack_sites(table.of_stack[lifetimes(device).stack], [site.label for site in table.sites])
    if kind == "lit":
        return pack_rows(
            lit_rows(trace, device, str(request.get("by", "site")), request.get("group")), len(lifetimes(device))
        )
    raise UsageError(f"A timeline has no piece {kind!r}.")


def _among(request: dict[str, Any]) -> tuple[str, ...]:
    """Of several traces that share their colours. It comes from a browser."""
    keys = request.get("among")
    return tuple(key for key in keys if isinstance(key, str)) if isinstance(keys, list) else ()


def lit_rows(trace: Trace, device: DeviceTrace, by: str, group: Any) -> Ints8:
    """All allocations of one group, wherever in time; of what a person looks for, of one box of the icicle, or of a
    finding."""
    rows = np.arange(len(lifetimes(device)))
    if by == "find":
        return rows_found(trace, device, str(group))
    if by == "finding":
        return finding_named(trace, device, str(group)).rows
    if by == "path":
        return rows_below(trace, device, rows, parse_path(trace, str(group)))
    keyed = keyed_by(trace, device, rows, by)
    wanted = [code for code in np.unique(keyed.codes).tolist() if keyed.name(int(code))[0] == group]
    return np.asarray(rows[np.isin(keyed.codes, wanted)], dtype=np.int64)


def groups_piece(colours: Colouring) -> PackedTimeline:
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
    return PackedTimeline(header, packed.body)
