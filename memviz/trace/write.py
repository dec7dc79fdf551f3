"""Writing a Trace: as a snapshot in torch's newest layout, or as CSV tables; a file is replaced whole or not at all.

Reading a snapshot back gives the same Trace, and nothing is invented: there is no `time_us` where no event has a time.
What torch has no place for goes under memviz's own key (`memviz_labels`). The pickle holds dicts, lists, tuples, texts
and numbers in protocol 4, because the reader inside PyTorch's page knows no more. Frames and stacks are shared as torch
shares them; JSON cannot share, so every event spells out its stack there.

In CSV, stacks are rows of a table of their own, because spelled out in each row they would make gigabytes. A text that
begins like a formula gets an apostrophe, because a spreadsheet would run it.
"""

from __future__ import annotations

import csv
import gzip
import json
import os
import pickle
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import Any, BinaryIO, TextIO, cast

import numpy as np

from memviz.errors import UsageError
from memviz.trace import memviz_labels
from memviz.trace.limits import MOST_DEVICES
from memviz.trace.model import (
    EMPTY_TEXT,
    FREE_UNKNOWN,
    NO_STACK,
    Action,
    Columns,
    DeviceTrace,
    Events,
    Ints4,
    Ints8,
    Stage,
    State,
    Trace,
    driver_free,
)


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file that takes the place of an older one only when it is complete; a link to it stays a link."""
    if os.path.isdir(path) or not path.name:
        raise UsageError(f"{path} is a folder. Name a file in it.")
    try:
        if os.path.exists(path) and not path.is_file():
            # A pipe or a device, such as /dev/null, is written to; nothing may take its place.
            with path.open("wb") as plain, _gzip_file(path, plain) as file:
                yield file
            return
        with _complete_file(path.resolve() if path.is_symlink() else path) as whole, _gzip_file(path, whole) as file:
            yield file
    except OSError as error:
        is_folder_missing = isinstance(error, FileNotFoundError) and not path.parent.exists()
        remedy = f" Make the folder {path.parent} first." if is_folder_missing else ""
        raise UsageError(f"{path} cannot be written ({error.strerror or error}).{remedy}") from None


@contextmanager
def _complete_file(path: Path) -> Iterator[BinaryIO]:
    # Short, so that every name that a file may have can be written.
    partial = path.with_name(f".{os.getpid()}-{os.urandom(4).hex()}.part")
    try:
        with partial.open("xb") as plain:
            yield plain
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def _gzip_file(path: Path, plain: BinaryIO) -> Iterator[BinaryIO]:
    if path.suffix != ".gz":
        yield plain
        return
    with gzip.GzipFile(fileobj=plain, mode="wb", filename="", mtime=0) as packed:
        yield cast(BinaryIO, packed)


_PROTOCOL = 4
_CHUNK = 65_536


def write_pickle(trace: Trace, file: BinaryIO) -> None:
    pickle.dump(snapshot_dict(trace), file, protocol=_PROTOCOL)


def write_json(trace: Trace, file: TextIO) -> None:
    """A chunk of events at a time, so that memory does not grow with the trace."""
    writer = _Writer(trace)
    file.write("{")
    for key, devices in writer.traces().items():
        file.write(f"{json.dumps(key)}: [")
        for number, events in enumerate(devices):
            file.write(",\n[" if number else "[")
            for at, chunk in enumerate(writer.chunks(events)):
                file.write((",\n" if at else "") + json.dumps(chunk)[1:-1])
            file.write("]")
        file.write("],\n")
    file.write(json.dumps(writer.state())[1:] + "\n")


def snapshot_dict(trace: Trace) -> dict[str, Any]:
    """Return the trace in the format of `torch.cuda.memory._snapshot()`."""
    writer = _Writer(trace)
    traces = {
        key: [[event for chunk in writer.chunks(events) for event in chunk] for events in devices]
        for key, devices in writer.traces().items()
    }
    return {**writer.state(), **traces}


class _Writer:
    """Makes each frame, stack and pool once, and hands out the same object wherever it is named."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        frames, strings = trace.stacks.frames, trace.strings
        columns = (frames.name.tolist(), frames.filename.tolist(), frames.line.tolist())
        made = [{"name": strings[n], "filename": strings[f], "line": line} for n, f, line in zip(*columns, strict=True)]
        bounds, indices = trace.stacks.offsets.tolist(), trace.stacks.indices.tolist()
        stacks = {i: [made[k] for k in indices[bounds[i] : bounds[i + 1]]] for i in range(len(trace.stacks))}
        # As torch writes it where it kept no stack.
        self.stacks = {NO_STACK: [], **stacks}
        every = [device.events for device in trace.devices]
        optional = {
            "frames": any((events.stack != NO_STACK).any() for events in every),
            "time_us": any(events.time_us.any() for events in every),
            "compile_context": any((events.context != EMPTY_TEXT).any() for events in every),
            "user_metadata": any((events.metadata != EMPTY_TEXT).any() for events in every),
            "pool_id": any(events.pool.any() for events in every),
        }
        self.keys = ("action", "addr", "size", "stream", *(key for key, used in optional.items() if used))

    def state(self) -> dict[str, Any]:
        """All but the events."""
        trace = self.trace
        root: dict[str, Any] = {"segments": self._segments("gpu")}
        if any(device.kind == "host" for device in trace.devices):
            root["host_segments"] = self._segments("host")
        if trace.settings:
            root["allocator_settings"] = dict(trace.settings)
        annotations = [row for device in trace.devices for row in self._annotations(device)]
        if annotations:
            root["external_annotations"] = annotations
        own = memviz_labels.dump(trace)
        if own is not None:
            root[memviz_labels.KEY] = own
        return root

    def traces(self) -> dict[str, list[Events]]:
        """Events by device number. Devices without events have a list too: PyTorch's page offers no others."""
        gpu_events = {device.device: device.events for device in self.trace.devices if device.kind == "gpu"}
        count = max((number + 1 for number in gpu_events if number < MOST_DEVICES), default=0)
        traces = {"device_traces": [gpu_events.get(number, Events.empty()) for number in range(count)]}
        host = [device.events for device in self.trace.devices if device.kind == "host"]
        return {**traces, "host_traces": host} if host else traces

    def chunks(self, events: Events) -> Iterator[list[dict[str, Any]]]:
        for first in range(0, len(events), _CHUNK):
            yield self._rows(events.select(slice(first, first + _CHUNK)))

    def _rows(self, events: Events) -> list[dict[str, Any]]:
        strings, streams, pools = self.trace.strings, self.trace.streams, self.trace.pools
        every = {
            "action": map(self.trace.action_name, events.action.tolist()),
            "addr": _unsigned(events.address),
            "size": events.size.tolist(),
            "stream": map(streams.__getitem__, events.stream.tolist()),
            "frames": map(self.stacks.__getitem__, events.stack.tolist()),
            "time_us": events.time_us.tolist(),
            "compile_context": map(strings.__getitem__, events.context.tolist()),
            "user_metadata": map(strings.__getitem__, events.metadata.tolist()),
            "pool_id": map(pools.__getitem__, events.pool.tolist()),
        }
        columns = [every[key] for key in self.keys]
        rows = [dict(zip(self.keys, row, strict=True)) for row in zip(*columns, strict=True)]
        for place in np.flatnonzero(events.action == Action.OOM).tolist():
            del rows[place]["addr"]
            free = driver_free(events, place)
            if free is not None:
                rows[place]["device_free"] = free
        for place in np.flatnonzero(events.forward_stack != NO_STACK).tolist():
            # Torch writes these frames as texts; they have neither file nor line.
            frames = self.stacks[int(events.forward_stack[place])]
            rows[place]["forward_frames"] = [
                frame if frame["filename"] or frame["line"] else frame["name"] for frame in frames
            ]
        return rows

    def _segments(self, kind: str) -> list[dict[str, Any]]:
        return [row for device in self.trace.devices if device.kind == kind for row in self._device_segments(device)]

    def _device_segments(self, device: DeviceTrace) -> Iterator[dict[str, Any]]:
        segments, pools, streams = device.segments, self.trace.pools, self.trace.streams
        blocks = self._blocks(device)
        bounds = np.searchsorted(device.blocks.segment, np.arange(len(segments) + 1)).tolist()
        addresses = _unsigned(segments.address)
        for row, address in enumerate(addresses):
            inside = blocks[bounds[row] : bounds[row + 1]]
            active = [block for block in inside if block["state"] != _STATE_NAMES[State.INACTIVE]]
            allocated = [block for block in active if block["state"] == _STATE_NAMES[State.ACTIVE_ALLOCATED]]
            yield {
                "device": device.device,
                "address": address,
                "total_size": int(segments.size[row]),
                "allocated_size": sum(block["size"] for block in allocated),
                "active_size": sum(block["size"] for block in active),
                "requested_size": sum(block["requested_size"] for block in active),
                "stream": streams[segments.stream[row]],
                "segment_type": "large" if segments.is_large[row] else "small",
                "segment_pool_id": pools[segments.pool[row]],
                "is_expandable": bool(segments.is_expandable[row]),
                "frames": self.stacks[int(segments.stack[row])],
                "blocks": inside,
            }

    def _blocks(self, device: DeviceTrace) -> list[dict[str, Any]]:
        blocks = device.blocks
        columns = {
            "address": _unsigned(blocks.address),
            "size": blocks.size.tolist(),
            "requested_size": blocks.requested.tolist(),
            "state": map(_STATE_NAMES.__getitem__, blocks.state.tolist()),
            "frames": map(self.stacks.__getitem__, blocks.stack.tolist()),
        }
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    def _annotations(self, device: DeviceTrace) -> Iterator[dict[str, Any]]:
        rows = device.annotations
        for name, stage, time in zip(rows.name.tolist(), rows.stage.tolist(), rows.time_us.tolist(), strict=True):
            said = {"stage": Stage(stage).name, "name": self.trace.strings[name]}
            yield {**said, "device": device.device, "time_us": time}


_STATE_NAMES = {int(state_value): state_value.name.lower() for state_value in State}


def _unsigned(addresses: Ints8) -> list[int]:
    numbers: list[int] = np.ascontiguousarray(addresses).view(np.uint64).tolist()
    return numbers


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


def csv_text(table: Table) -> str:
    file = StringIO(newline="")
    write_tables(file, [table])
    return file.getvalue()


def slices(columns: Columns) -> Iterator[slice]:
    """At least one, so that an empty table still has its header."""
    for first in range(0, max(len(columns), 1), _CHUNK):
        yield slice(first, first + _CHUNK)


class Cells:
    """Decodes the numbers in a Trace's columns to texts."""

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
    return list(map(hex, _unsigned(addresses)))


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
    events = device.events.select(rows)
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
