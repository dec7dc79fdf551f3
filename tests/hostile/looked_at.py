"""The views that the page computes for a trace, without a browser."""

import sys
from pathlib import Path

import numpy as np

from memviz.errors import TraceError
from memviz.figures.colouring import colouring, pixel_palette
from memviz.figures.packed_timeline import pack_allocations, pack_colouring, pack_times
from memviz.trace.load import read_trace
from memviz.trace.model import DeviceTrace, Trace
from memviz.ui.explore.answer import ALL, details
from memviz.ui.explore.state import GROUPINGS, TABS, ExploreState
from memviz.ui.payloads.event_rows import EventFilter, chosen_events, event_rows, list_value
from memviz.ui.payloads.segment_view import moment_of
from memviz.ui.shell.session import open_trace
from memviz.ui.shell.store import TraceStore


def look(path: str) -> int:
    file = Path(path)
    try:
        with file.open("rb") as opened_file:
            trace = read_trace(opened_file, file.name, file.stat().st_size)
    except TraceError as error:
        sys.stderr.write(f"memviz: {error}\n")
        return 2
    found = open_trace(TraceStore(), trace)
    device = next(each for each in trace.devices if each.name == found.device)
    timelines(trace, device)
    tables(trace, device)
    return 0


def timelines(trace: Trace, device: DeviceTrace) -> None:
    pack_allocations(device)
    pack_times(device)
    for meaning in ("category", "size", "site"):
        colours = colouring(trace, device, meaning)
        pack_colouring(colours)
        pixel_palette(colours, dark=True)


def tables(trace: Trace, device: DeviceTrace) -> None:
    for by in GROUPINGS:
        details(trace, device, "k", ExploreState(by=by), selection={"key": "k", "pin": 0}, parts=ALL)
    said = {"key": "k", "range": [0, len(device.events) - 1]}
    for tab in TABS:
        details(trace, device, "k", ExploreState(tab=tab, by="site", query="f >1MiB"), selection=said, parts=ALL)
    moment_of(trace, device, {"at": len(device.events) - 1, "table": True})
    list_value(trace, device, "k", 0)
    chosen = chosen_events(trace, device, EventFilter(text="f"))
    event_rows(trace, device, chosen.rows(0, 200))
    event_rows(trace, device, np.arange(min(200, len(device.events))))
