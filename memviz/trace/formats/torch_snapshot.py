"""The snapshot of torch.cuda.memory, of every release from 2.0 on, as plain dicts and lists -> Trace.

Pickle and JSON arrive here alike. Differences between releases end in this file:
torch 2.0 keeps stacks in each block's `history` and gives blocks no address; a bare list of segments is
what `torch.cuda.memory_snapshot()` returned before there was history; `host_*` is pinned memory (2.14);
XPU writes the same shape.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import islice
from math import isfinite
from typing import Any

import numpy as np

from memviz.errors import TraceError
from memviz.trace.budget import Budget
from memviz.trace.collect import LARGEST_SUM, EventCollector, integers, name_of
from memviz.trace.formats import own_labels
from memviz.trace.formats.counting import charge_events, charge_rows
from memviz.trace.formats.external_annotations import annotations_of, of_devices
from memviz.trace.formats.fields import list_of, whole_of
from memviz.trace.formats.final_blocks import BlockCollector
from memviz.trace.intern import MOST_FRAMES, Interner
from memviz.trace.limits import Limits
from memviz.trace.model import (
    About,
    AnnotationRows,
    Blocks,
    Category,
    DeviceTrace,
    Labels,
    Note,
    Segments,
    Trace,
)
from memviz.trace.texts import MOST_TEXT, bounded, sound
from memviz.units import kind_text

_TOP_KEYS = {
    "segments",
    "device_traces",
    "allocator_settings",
    "external_annotations",
    "host_segments",
    "host_traces",
    own_labels.KEY,
}
_RECORD = (
    "Record with torch.cuda.memory._record_memory_history(max_entries=1_000_000) before the work "
    "and torch.cuda.memory._dump_snapshot('trace.pickle') after it."
)
_MOST_DEVICES = 512
"""A process sees 16 at most. Each is looked at by itself, which takes milliseconds, and one takes 10 bytes."""
_CHECKED_EVERY = 1024
_MOST_SETTINGS = 200
_UNSIGNED = 2**64 - 1
"""The C++ writer stores addresses of 2**63 and above as negative numbers."""


def read_snapshot(root: Any, about: About, interner: Interner, limits: Limits | None = None) -> Trace:
    """`interner` already holds the stacks and texts of events that were decoded while the file was read.

    `limits`: of a snapshot that is no file; those of a file are the interner's.
    """
    if limits is not None:
        interner.budget = Budget(limits)
    snapshot = _as_dict(root)
    _charge(snapshot, interner.budget)
    segments = _by_device(list_of(snapshot, "segments"))
    traces = _traces(snapshot.get("device_traces"), "device_traces")
    annotations = _by_device(list_of(snapshot, "external_annotations"))
    host_segments = list_of(snapshot, "host_segments")
    host_traces = _traces(snapshot.get("host_traces"), "host_traces")

    reader = _DeviceReader(interner)
    devices = []
    for number in sorted(segments.keys() | {i for i, trace in enumerate(traces) if trace}):
        events = traces[number] if 0 <= number < len(traces) else []
        devices.append(reader.device(number, "gpu", segments.get(number, []), events, annotations.get(number, [])))
    host_events = [event for host_trace in host_traces for event in host_trace]
    if host_segments or host_events:
        devices.append(reader.device(0, "host", host_segments, host_events, []))
    if not devices:
        raise TraceError("It is a snapshot, but an empty one: no segments and no events.", remedy=_RECORD)

    reader.unknown_top_keys = {name_of(key) for key in snapshot.keys() - _TOP_KEYS}
    trace = Trace(
        devices=tuple(devices),
        stacks=interner.frozen_stacks(),
        strings=(),
        streams=tuple(interner.streams),
        pools=tuple(interner.pools),
        other_actions=tuple(interner.other_actions),
        settings=_settings(snapshot.get("allocator_settings")),
        about=about,
        notes=reader.notes(),
    )
    trace = own_labels.apply(trace, snapshot.get(own_labels.KEY), interner)
    # The texts are frozen last: labels may have added module paths.
    return replace(trace, strings=tuple(interner.strings))


class _DeviceReader:
    """Reads one device after the other and remembers what it did not know."""

    def __init__(self, interner: Interner) -> None:
        self.interner = interner
        self.unknown_top_keys: set[str] = set()
        self.unknown_event_keys: set[str] = set()
        self.unknown_states: set[str] = set()
        self.untiled_bytes = 0

    def device(
        self, number: int, kind: Any, segments: list[Any], events: list[Any], annotations: list[Any]
    ) -> DeviceTrace:
        segments = sorted(segments, key=lambda entry: whole_of(entry, "address") & _UNSIGNED)
        collector = EventCollector(self.interner)
        collector.add(events)
        columns, categories = collector.finish()
        self.unknown_event_keys |= collector.unknown_keys
        blocks, block_categories = self._blocks(segments)
        return DeviceTrace(
            device=number,
            kind=kind,
            events=columns,
            segments=self._segments(segments),
            blocks=blocks,
            annotations=annotations_of(annotations, self.interner),
            event_labels=_labels(categories),
            block_labels=_labels(block_categories),
        )

    def _segments(self, segments: list[Any]) -> Segments:
        columns = Segments(
            address=integers([whole_of(segment, "address") for segment in segments], "address"),
            size=integers([whole_of(segment, "total_size") for segment in segments], "total_size"),
            stream=np.array([self.interner.stream(segment.get("stream", 0)) for segment in segments], dtype=np.int32),
            pool=np.array(
                [self.interner.pool(segment.get("segment_pool_id", (0, 0))) for segment in segments], np.int32
            ),
            is_large=np.array([segment.get("segment_type") == "large" for segment in segments], dtype=np.bool_),
            is_expandable=np.array([segment.get("is_expandable") is True for segment in segments], dtype=np.bool_),
            stack=np.array([self.interner.stack(segment.get("frames")) for segment in segments], dtype=np.int32),
        )
        if (columns.size < 0).any() or float(columns.size.sum(dtype=np.float64)) >= LARGEST_SUM:
            raise TraceError("The sizes of its segments are negative or beyond any real memory.")
        return columns

    def _blocks(self, segments: list[Any]) -> tuple[Blocks, list[Category]]:
        collector = BlockCollector(self.interner)
        for number, segment in enumerate(segments):
            if number % _CHECKED_EVERY == 0:
                self.interner.budget.check()
            collector.add(number, segment)
        self.unknown_states |= collector.unknown_states
        self.untiled_bytes += collector.untiled_bytes
        return collector.finish()

    def notes(self) -> tuple[Note, ...]:
        said: list[tuple[str, Iterable[str], str]] = [
            ("unknown_keys", self.unknown_top_keys, "Parts of the file we do not know were left aside"),
            ("unknown_event_keys", self.unknown_event_keys, "Keys of events we do not know were left aside"),
            ("unknown_frame_keys", self.interner.dropped_frame_keys, "Keys of frames were left aside"),
            ("unknown_actions", self.interner.other_actions, "Events of an unknown kind are kept, and change nothing"),
            ("unknown_states", self.unknown_states, "Blocks in an unknown state are taken as free"),
        ]
        notes = [Note(code, f"{text}: {_listed(names)}.") for code, names, text in said if names]
        if self.interner.has_cut_texts:
            notes.append(Note("cut_texts", f"Texts longer than {MOST_TEXT:,} characters are cut in their middle."))
        if self.interner.has_cut_stacks:
            text = f"Stacks deeper than {MOST_FRAMES:,} frames are cut in their middle; a frame there says how many."
            notes.append(Note("cut_stacks", text))
        if self.untiled_bytes:
            text = f"The blocks of its segments miss {self.untiled_bytes} bytes of the segments' own sizes."
            notes.append(Note("untiled_segments", text, level="warning"))
        return tuple(notes)


def _as_dict(root: Any) -> Mapping[str, Any]:
    if type(root) is list and all(type(segment) is dict and "total_size" in segment for segment in root):
        return {"segments": root, "device_traces": []}
    if type(root) is dict and ("segments" in root or "device_traces" in root):
        return root
    if type(root) is dict:
        kind = f"a dict with the keys {_listed(name_of(key) for key in root)}" if root else "an empty dict"
    else:
        kind = kind_text(root)
    raise TraceError(f"It holds {kind}, not a memory snapshot.", remedy=_RECORD)


def _charge(snapshot: Mapping[str, Any], budget: Budget) -> None:
    charge_events(
        [trace for key in ("device_traces", "host_traces") for trace in _traces(snapshot.get(key), key)], budget
    )
    segments = [list_of(snapshot, key) for key in ("segments", "host_segments")]
    charge_rows(segments, "segment", budget)
    charge_rows((list_of(row, "blocks") for rows in segments for row in rows if type(row) is dict), "block", budget)
    charge_rows([list_of(snapshot, "external_annotations")], "annotation", budget)
    budget.check()


def _traces(value: Any, key: str) -> list[list[Any]]:
    """One list of events per device; a flat list of events counts as the first device's."""
    rows = list_of({key: value}, key)
    if len(rows) > _MOST_DEVICES and any(type(row) in (list, tuple) for row in rows):
        raise TraceError(f"{key!r} names more than {_MOST_DEVICES} devices.")
    if rows and not any(type(row) in (list, tuple) for row in rows):
        return [rows]
    return [list_of({key: row}, key) for row in rows]


def _by_device(rows: list[Any]) -> dict[int, list[Any]]:
    devices: dict[int, list[Any]] = {}
    for row in rows:
        if type(row) is AnnotationRows:
            for number, own in of_devices(row):
                devices.setdefault(number, []).append(own)
            continue
        if type(row) is not dict:
            raise TraceError(f"A segment or annotation is {kind_text(row)}, not a dict.")
        devices.setdefault(whole_of(row, "device", 0), []).append(row)
    if len(devices) > _MOST_DEVICES:
        raise TraceError(f"It names more than {_MOST_DEVICES} devices.")
    return devices


def _settings(value: Any, *, tables: bool = True) -> dict[str, Any]:
    """Plain values, and tables of them, one deep, as torch writes them. Anything else is no setting."""
    kept: dict[str, Any] = {}
    for key, setting in islice(value.items(), _MOST_SETTINGS) if type(value) is dict else ():
        if type(key) is not str:
            continue
        if type(setting) is dict and tables:
            kept[name_of(key)] = _settings(setting, tables=False)
        elif type(setting) is str:
            kept[name_of(key)] = bounded(sound(setting))
        elif type(setting) is bool or (type(setting) is int and abs(setting) < 2**64) or _is_finite(setting):
            kept[name_of(key)] = setting
    return kept


def _is_finite(value: Any) -> bool:
    return type(value) is float and isfinite(value)


def _labels(categories: Any) -> Labels | None:
    if categories is None or not len(categories):
        return None
    column = np.array(categories, dtype=np.uint8)
    return Labels(column, np.zeros(len(column), dtype=np.int32), np.zeros(len(column), dtype=np.uint8))


def _listed(names: Iterable[str], most: int = 8) -> str:
    ordered = sorted(names)
    text = ", ".join(repr(name[:40]) for name in ordered[:most])
    return f"{text} and {len(ordered) - most} more" if len(ordered) > most else text
