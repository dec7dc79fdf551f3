"""The lifetimes of a Trace as CSV, beside the tables of `memviz.trace.formats.write_tables`."""

from __future__ import annotations

from typing import Any, TextIO

import numpy as np

from memviz.analysis.lifetimes import Lifetimes, lifetimes
from memviz.analysis.purpose.categories import categories
from memviz.analysis.purpose.kinds import KINDS, kinds
from memviz.analysis.purpose.phases import label_of_rows, phases
from memviz.analysis.purpose.reasons import Certainty
from memviz.trace.formats.write_tables import Cells, Table, hexadecimal, slices, where, write_tables
from memviz.trace.model import Action, Bools, Category, DeviceTrace, Phase, Trace


def write_allocations(trace: Trace, file: TextIO) -> None:
    """One row per allocation. Event -1 is before the first event; an empty one never came."""
    cells = Cells(trace)
    pairs = ((device, rows) for device in trace.devices for rows in slices(lifetimes(device)))
    write_tables(file, (_allocations(cells, trace, device, rows) for device, rows in pairs))


def _allocations(cells: Cells, trace: Trace, device: DeviceTrace, rows: slice) -> Table:
    lives = Lifetimes(**{name: column[rows] for name, column in lifetimes(device).columns()})
    never = len(device.events)
    return {
        "device": [device.name] * len(lives),
        "start_event": lives.start.tolist(),
        "free_requested_event": where(_was_requested(device, lives), lives.free_requested.tolist()),
        "end_event": where(lives.end < never, lives.end.tolist()),
        "start_us": _times(device, lives.start),
        "end_us": _times(device, lives.end),
        "bytes": lives.size.tolist(),
        "address": hexadecimal(lives.address),
        "stream": cells.streams(lives.stream),
        "pool": cells.pools(lives.pool),
        "stack": where(lives.stack >= 0, lives.stack.tolist()),
        **_purpose(cells, trace, device, rows),
    }


def _was_requested(device: DeviceTrace, lives: Lifetimes) -> Bools:
    """Not where only the end is on record: then a lifetime has it for both."""
    action = np.append(device.events.action, Action.OTHER)
    inside = lives.free_requested >= 0
    return np.asarray(~inside | (action[lives.free_requested] == Action.FREE_REQUESTED), dtype=np.bool_)


def _times(device: DeviceTrace, events: Any) -> list[Any]:
    known = (events >= 0) & (events < len(device.events)) & device.is_timed
    times = np.zeros(len(events), dtype=np.int64)
    times[known] = device.events.time_us[events[known]]
    return where(times != 0, times.tolist())


def _purpose(cells: Cells, trace: Trace, device: DeviceTrace, rows: slice) -> Table:
    """What the page says of it too, and how sure that is; empty where nothing is known."""
    said, phase = categories(trace, device), phases(trace, device)[rows]
    kind, certainty = kinds(trace, device, rows), said.certainty[rows]
    module = label_of_rows(device, "module")
    named = np.zeros(len(kind), np.int32) if module is None else module[rows].astype(np.int32)
    words = [level.word for level in Certainty]
    return {
        "category": where(kind != Category.UNKNOWN, [KINDS[code] for code in kind.tolist()]),
        "certainty": where(certainty != Certainty.OPEN, [words[code] for code in certainty.tolist()]),
        "module": cells.texts(named),
        "phase": where(phase != Phase.UNKNOWN, [Phase(code).name.lower() for code in phase.tolist()]),
    }
