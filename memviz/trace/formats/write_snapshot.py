"""Trace -> a snapshot in torch's own newest layout, so that PyTorch's tools and ours can open it.

Reading it back gives the same Trace. What the file that was read did not have is not invented: there is no
`time_us` where no event has a time, no `compile_context` where none has a text, and so on. What torch has no
place for goes under our own key (`own_labels`).

The pickle holds nothing but dicts, lists, tuples, texts and numbers, in protocol 4, because the reader inside
PyTorch's page knows no more. Frames and stacks are shared as torch shares them: the file stays small and the
page's memory too. JSON cannot share, so there every event spells out its stack; take it for small traces.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from typing import Any, BinaryIO, TextIO

import numpy as np

from memviz.trace.collect import no_events
from memviz.trace.formats import own_labels
from memviz.trace.model import (
    EMPTY_TEXT,
    NO_STACK,
    Action,
    DeviceTrace,
    Events,
    Ints8,
    Stage,
    State,
    Trace,
    driver_free,
)

_PROTOCOL = 4
_CHUNK = 65_536
_MOST_DEVICES = 512
"""What our reader takes."""


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
    """What `torch.cuda.memory._snapshot()` would have returned."""
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
        self.stacks = _stacks(trace)
        self.keys = _keys_in_use(trace)

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
        own = own_labels.dump(trace)
        if own is not None:
            root[own_labels.KEY] = own
        return root

    def traces(self) -> dict[str, list[Events]]:
        """Events by device number. Devices without events have a list too: PyTorch's page offers no others."""
        gpu_events = {device.device: device.events for device in self.trace.devices if device.kind == "gpu"}
        count = max((number + 1 for number in gpu_events if number < _MOST_DEVICES), default=0)
        traces = {"device_traces": [gpu_events.get(number, no_events()) for number in range(count)]}
        host = [device.events for device in self.trace.devices if device.kind == "host"]
        return {**traces, "host_traces": host} if host else traces

    def chunks(self, events: Events) -> Iterator[list[dict[str, Any]]]:
        for first in range(0, len(events), _CHUNK):
            yield self._rows(Events(**{name: column[first : first + _CHUNK] for name, column in events.columns()}))

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
            rows[place]["forward_frames"] = self._forward(int(events.forward_stack[place]))
        return rows

    def _forward(self, stack: int) -> list[Any]:
        """Torch writes these frames as texts; they have neither file nor line."""
        return [frame if frame["filename"] or frame["line"] else frame["name"] for frame in self.stacks[stack]]

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


def _stacks(trace: Trace) -> dict[int, list[dict[str, Any]]]:
    """By number; NO_STACK is an empty list, as torch writes it."""
    frames, strings = trace.stacks.frames, trace.strings
    columns = (frames.name.tolist(), frames.filename.tolist(), frames.line.tolist())
    made = [{"name": strings[n], "filename": strings[f], "line": line} for n, f, line in zip(*columns, strict=True)]
    bounds, indices = trace.stacks.offsets.tolist(), trace.stacks.indices.tolist()
    stacks = {i: [made[k] for k in indices[bounds[i] : bounds[i + 1]]] for i in range(len(trace.stacks))}
    return {NO_STACK: [], **stacks}


def _keys_in_use(trace: Trace) -> tuple[str, ...]:
    every = [device.events for device in trace.devices]
    optional = {
        "frames": any((columns.stack != NO_STACK).any() for columns in every),
        "time_us": any(columns.time_us.any() for columns in every),
        "compile_context": any((columns.context != EMPTY_TEXT).any() for columns in every),
        "user_metadata": any((columns.metadata != EMPTY_TEXT).any() for columns in every),
        "pool_id": any(columns.pool.any() for columns in every),
    }
    return ("action", "addr", "size", "stream", *(key for key, used in optional.items() if used))


def _unsigned(addresses: Ints8) -> list[int]:
    numbers: list[int] = np.ascontiguousarray(addresses).view(np.uint64).tolist()
    return numbers
