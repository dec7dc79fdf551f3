"""A Trace as CSV: its events and its stacks. Its allocations are in `memviz.analysis.allocations`.

Stacks are rows of a table of their own, named by number in the others: spelled out in each row they would make
a file of gigabytes. Empty cells say that there is no such thing, as a stack or a time.

Texts come from whoever wrote the trace. A spreadsheet would run one that begins like a formula, so that one gets
an apostrophe in front.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TextIO

import numpy as np

from memviz.trace.model import FREE_UNKNOWN, NO_STACK, Action, Columns, DeviceTrace, Events, Ints4, Ints8, Trace

_CHUNK = 65_536
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")

Table = Mapping[str, Iterable[Any]]
"""Columns by name, of one length."""


def write_events(trace: Trace, file: TextIO) -> None:
    """One row per event, in the order recorded, device after device."""
    cells = Cells(trace)
    write_tables(file, (_events(cells, device, rows) for device in trace.devices for rows in slices(device.events)))


def write_stacks(trace: Trace, file: TextIO) -> None:
    """One row per frame of each stack, innermost first."""
    cells = Cells(trace)
    # The empty stack comes first, so that a trace without stacks still has the header.
    write_tables(file, (_stack(cells, number) for number in range(NO_STACK, len(trace.stacks))))


def write_tables(file: TextIO, tables: Iterable[Table]) -> None:
    """Tables of the same columns below each other, each written before the next is made.

    Lines end as RFC 4180 has it, and a cell that holds either half of that is quoted; open files with newline="".
    """
    writer = csv.writer(file)
    for number, table in enumerate(tables):
        if number == 0:
            writer.writerow(table)
        writer.writerows(zip(*table.values(), strict=True))


def slices(columns: Columns) -> Iterator[slice]:
    """At least one, so that an empty table still has its header."""
    for first in range(0, max(len(columns), 1), _CHUNK):
        yield slice(first, first + _CHUNK)


class Cells:
    """What the numbers in a Trace's columns stand for."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self._strings = [safe(text) for text in trace.strings]
        self._pools = [f"({first}, {second})" for first, second in trace.pools]

    def texts(self, codes: Ints4) -> list[str]:
        return [self._strings[code] for code in codes.tolist()]

    def pools(self, codes: Ints4) -> list[str]:
        return [self._pools[code] for code in codes.tolist()]

    def streams(self, codes: Ints4) -> list[int]:
        return [self.trace.streams[code] for code in codes.tolist()]

    def actions(self, codes: Any) -> list[str]:
        return [safe(self.trace.action_name(code)) for code in codes.tolist()]


def safe(text: str) -> str:
    """Neither a formula, nor anything that cannot be written as UTF-8."""
    text = text.encode("utf-8", "replace").decode("utf-8")
    return f"'{text}" if text.startswith(_FORMULA) else text


def hexadecimal(addresses: Ints8) -> list[str]:
    return [hex(address) for address in np.ascontiguousarray(addresses).view(np.uint64).tolist()]


def where(known: Any, values: Iterable[Any]) -> list[Any]:
    """The values, and an empty cell where there is none."""
    return [value if use else "" for use, value in zip(known.tolist(), values, strict=True)]


def _stack(cells: Cells, number: int) -> Table:
    stacks = cells.trace.stacks
    frames = stacks.of(number)
    return {
        "stack": [number] * len(frames),
        "depth": range(len(frames)),
        "function": cells.texts(stacks.frames.name[frames]),
        "file": cells.texts(stacks.frames.filename[frames]),
        "line": stacks.frames.line[frames].tolist(),
    }


def _events(cells: Cells, device: DeviceTrace, rows: slice) -> Table:
    events = Events(**{name: column[rows] for name, column in device.events.columns()})
    is_oom = events.action == Action.OOM
    return {
        "device": [device.name] * len(events),
        "event": range(rows.start, rows.start + len(events)),
        "time_us": where(events.time_us != 0, events.time_us.tolist()),
        "action": cells.actions(events.action),
        "address": where(~is_oom, hexadecimal(events.address)),
        "bytes": events.size.tolist(),
        "device_free": where(is_oom & (events.address != FREE_UNKNOWN), events.address.tolist()),
        "stream": cells.streams(events.stream),
        "pool": cells.pools(events.pool),
        "stack": where(events.stack >= 0, events.stack.tolist()),
        "forward_stack": where(events.forward_stack >= 0, events.forward_stack.tolist()),
        "compile_context": cells.texts(events.context),
        "user_metadata": cells.texts(events.metadata),
    }
