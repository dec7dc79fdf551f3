"""The lifetimes of a Trace as CSV, beside the tables of `memviz.trace.formats.write_tables`."""

from __future__ import annotations

from typing import Any, TextIO

import numpy as np

from memviz.analysis.lifetimes import Lifetimes, lifetimes
from memviz.trace.formats.write_tables import Cells, Table, hexadecimal, slices, where, write_tables
from memviz.trace.model import Category, DeviceTrace, Ints4, Labels, Phase, Trace


def write_allocations(trace: Trace, file: TextIO) -> None:
    """One row per allocation. Event -1 is before the first event; an empty one never came."""
    cells = Cells(trace)
    pairs = ((device, rows) for device in trace.devices for rows in slices(lifetimes(device)))
    write_tables(file, (_allocations(cells, device, rows) for device, rows in pairs))


def _allocations(cells: Cells, device: DeviceTrace, rows: slice) -> Table:
    lives = Lifetimes(**{name: column[rows] for name, column in lifetimes(device).columns()})
    never = len(device.events)
    return {
        "device": [device.name] * len(lives),
        "start_event": lives.start.tolist(),
        "free_requested_event": where(lives.free_requested < never, lives.free_requested.tolist()),
        "end_event": where(lives.end < never, lives.end.tolist()),
        "start_us": _times(device, lives.start),
        "end_us": _times(device, lives.end),
        "bytes": lives.size.tolist(),
        "address": hexadecimal(lives.address),
        "stream": cells.streams(lives.stream),
        "pool": cells.pools(lives.pool),
        "stack": where(lives.stack >= 0, lives.stack.tolist()),
        **_labels(cells, device, lives),
    }


def _times(device: DeviceTrace, events: Any) -> list[Any]:
    known = (events >= 0) & (events < len(device.events)) & device.is_timed
    times = np.zeros(len(events), dtype=np.int64)
    times[known] = device.events.time_us[events[known]]
    return where(times != 0, times.tolist())


def _labels(cells: Cells, device: DeviceTrace, lives: Lifetimes) -> Table:
    """Empty where our own runs have not said what a tensor is for."""
    category, module, phase = (np.zeros(len(lives), dtype=np.int32) for _ in range(3))

    def fill(labels: Labels | None, chosen: Any, source: Any) -> None:
        if labels is not None:
            for column, values in ((category, labels.category), (module, labels.module), (phase, labels.phase)):
                column[chosen] = values[source[chosen]]

    fill(device.event_labels, lives.start >= 0, lives.start)
    fill(device.block_labels, (lives.start < 0) & (lives.block >= 0), lives.block)
    return {
        "category": where(category != 0, _names(Category, category)),
        "module": cells.texts(module),
        "phase": where(phase != 0, _names(Phase, phase)),
    }


def _names(kind: type[Category] | type[Phase], codes: Ints4) -> list[str]:
    names = [member.name.lower().replace("_", " ") for member in kind]
    return [names[code] for code in codes.tolist()]
