"""The snapshot of torch.cuda.memory, of every release from 2.0 on, as plain dicts and lists -> Trace.

Pickle and JSON arrive here alike. Differences between releases end in this file: torch 2.0 keeps stacks in each block's
`history` and gives blocks no address; a bare list of segments is what `torch.cuda.memory_snapshot()` returned before
there was history; `host_*` is pinned memory (2.14); XPU writes the same shape. Sizes are counted before anything is
made, because a few bytes can name one thing a million times.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import chain, groupby, islice
from math import isfinite
from typing import Any

import numpy as np

from memviz.errors import TraceError
from memviz.trace import memviz_labels
from memviz.trace.collect import LARGEST_SUM, EventCollector, category_of, integers, name_of
from memviz.trace.intern import MOST_FRAMES, MOST_TEXT, Interner, bounded, valid_unicode
from memviz.trace.limits import MOST_DEVICES, Budget, Limits
from memviz.trace.model import (
    NO_STACK,
    About,
    AnnotationRows,
    Annotations,
    BlockRows,
    Blocks,
    Category,
    Columns,
    DeviceTrace,
    Ints4,
    Ints8,
    Labels,
    Note,
    Segments,
    Stage,
    State,
    Trace,
)
from memviz.trace.unpickle.rows import translated
from memviz.units import kind_text


def integer_of(mapping: Any, key: str, default: int | None = None) -> int:
    value = mapping.get(key, default) if type(mapping) is dict else None
    if type(value) is not int:
        raise TraceError(f"{key!r} is missing or not a whole number.")
    return value


def list_of(mapping: Any, key: str) -> list[Any]:
    value = mapping.get(key)
    if value is None:
        return []
    if type(value) is tuple:
        return list(value)
    if type(value) is not list:
        raise TraceError(f"{key!r} is {kind_text(value)}, not a list.")
    return value


_EVENT, _ROW = 100, 300
"""Bytes that an event takes while it becomes columns, and a segment, block or annotation."""
_MOST_REPEATS = 100_000


def charge_events(traces: list[list[Any]], budget: Budget) -> None:
    """`traces`: the lists of all devices."""
    most = budget.limits.events
    counts: dict[int, int] = {}
    named = 0
    for trace in traces:
        if id(trace) not in counts:
            counts[id(trace)] = row_count(trace)
        named += counts[id(trace)]
        if named > most:
            raise budget.too_large("events")
    budget.charge(_EVENT * named)
    _refuse_repeats(traces, named, sum(counts.values()), "event")


def charge_rows(lists: Iterable[list[Any]], what: str, budget: Budget) -> None:
    """`what`: one of the dicts in these lists."""
    lists = list(lists)
    count = sum(map(row_count, lists))
    if count > budget.limits.items:
        raise budget.too_large("items")
    budget.charge(_ROW * count)
    _refuse_repeats(lists, count, sum(map(row_count, {id(items): items for items in lists}.values())), what)


def _refuse_repeats(lists: list[list[Any]], named: int, in_lists: int, what: str) -> None:
    """`named` in all these lists, and in each of them once."""
    if named <= _MOST_REPEATS:
        return
    own = {id(items): items for items in lists}
    distinct = len(set(map(id, chain.from_iterable(own.values()))))
    repeats = named - in_lists + sum(map(len, own.values())) - distinct
    if repeats > _MOST_REPEATS:
        reason = f"It repeats the same {what}, {repeats:,} times in all, and torch writes each once."
        raise TraceError(reason, remedy="It is not a recording by PyTorch; dump it again.")


def row_count(items: list[Any]) -> int:
    """Some may be decoded already, many in one."""
    return sum(len(item) if isinstance(item, Columns) else 1 for item in items)


def annotations_of(rows: Iterable[Any], interner: Interner) -> Annotations:
    """`rows`: of one device, in the order of the file."""
    parts: list[tuple[Ints4, Ints8, Ints8]] = []
    for kind, group in groupby(rows, key=type):
        if kind is not AnnotationRows:
            parts.append(_from_dicts(list(group), interner))
            continue
        for same in group:
            stage = translated(same.stage.astype(np.int64), lambda text: _stage(interner.text(text)))
            parts.append((same.name, stage, same.time_us))
    empty = (np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))
    name, stage, time_us = (np.concatenate(parts_of_column) for parts_of_column in zip(empty, *parts, strict=True))
    order = np.argsort(time_us, kind="stable")
    return Annotations(name=name[order], stage=stage[order].astype(np.uint8), time_us=time_us[order])


def split_by_device(rows: AnnotationRows) -> list[tuple[int, AnnotationRows]]:
    if len(rows) and (rows.device == rows.device[0]).all():
        return [(int(rows.device[0]), rows)]
    return [(number, rows.select(rows.device == number)) for number in np.unique(rows.device).tolist()]


def _from_dicts(rows: list[Any], interner: Interner) -> tuple[Ints4, Ints8, Ints8]:
    """Sort by time before numbering the names, so that a name keeps its number when written and read again."""
    unordered = integers([integer_of(row, "time_us", 0) for row in rows], "time_us")
    order = np.argsort(unordered, kind="stable")
    by_time = [rows[index] for index in order.tolist()]
    return (
        np.array([interner.string(entry.get("name", "")) for entry in by_time], dtype=np.int32),
        np.array([_stage(entry.get("stage")) for entry in by_time], dtype=np.int64),
        unordered[order],
    )


def _stage(name: Any) -> Stage:
    return Stage.END if name == "END" else Stage.START


_STATES = {state.name.lower(): state for state in State}
_NO_SIZE = "A block's size is not a number of bytes."


class BlockCollector:
    """Takes one segment after the other, by address."""

    def __init__(self, interner: Interner) -> None:
        self.interner = interner
        self.unknown_states: set[str] = set()
        self.untiled_bytes = 0
        self._parts: list[list[Ints8]] = []
        self._rows: list[tuple[int, ...]] = []
        """Segment, address, size, requested, state, stack: as in `Blocks`."""
        self._categories: list[Category] = []

    def add(self, number: int, segment: dict[str, Any]) -> None:
        start = end = integer_of(segment, "address")
        blocks = list_of(segment, "blocks")
        for kind, group in groupby(blocks, key=type):
            for block in group:
                end = self._add_rows(block, number) if kind is BlockRows else self._add_dict(block, number, end)
        if blocks:
            self.untiled_bytes += abs(start + integer_of(segment, "total_size") - end)

    def finish(self) -> tuple[Blocks, list[Category]]:
        """All blocks, and their categories if the file names any."""
        self._flush()
        empty = [np.zeros(0, dtype=np.int64)] * 6
        columns = [np.concatenate(columns) for columns in zip(empty, *self._parts, strict=True)]
        if any(float(column.sum(dtype=np.float64)) >= LARGEST_SUM for column in columns[2:4]):
            raise TraceError("The sizes of its blocks are beyond any real memory.")
        return Blocks.typed(*columns), self._categories if any(self._categories) else []

    def _flush(self) -> None:
        if self._rows:
            columns = [list(column) for column in zip(*self._rows, strict=True)]
            self._parts.append([integers(column, "address" if i == 1 else "size") for i, column in enumerate(columns)])
            self._rows = []

    def _add_rows(self, rows: BlockRows, segment: int) -> int:
        self._flush()
        state = translated(rows.state.astype(np.int64), lambda text: self._state(self.interner.text(text)))
        if (rows.size < 0).any() or (rows.requested[state > 0] < 0).any():
            raise TraceError(_NO_SIZE)
        used = state > 0
        segments = np.full(len(rows), segment)
        requested, stack = np.where(used, rows.requested, 0), np.where(used, rows.stack, NO_STACK)
        self._parts.append([segments, rows.address, rows.size, requested, state, stack])
        self._categories += [Category.UNKNOWN] * len(rows)
        return int(rows.address[-1]) + int(rows.size[-1])

    def _add_dict(self, block: Any, segment: int, expected_address: int) -> int:
        if type(block) is not dict:
            raise TraceError(f"A block is {kind_text(block)}, not a dict.")
        size = integer_of(block, "size")
        state = self._state(block.get("state"))
        history = block.get("history") or [{}]
        newest = history[0] if type(history) is list and type(history[0]) is dict else {}
        # The values of an inactive block are stale, and may be anything.
        requested = block.get("requested_size", newest.get("real_size", size)) if state else 0
        if type(requested) is not int or size < 0 or requested < 0:
            raise TraceError(_NO_SIZE)
        frames = block.get("frames", newest.get("frames"))
        stack = self.interner.stack(frames) if state else NO_STACK
        address = integer_of(block, "address", expected_address)
        self._rows.append((segment, address, size, requested, state, stack))
        self._categories.append(category_of(block.get("category")))
        return address + size

    def _state(self, name: Any) -> State:
        known = _STATES.get(name) if type(name) is str else None
        if known is None:
            self.unknown_states.add(name_of(name))
            return State.INACTIVE
        return known


_TOP_KEYS = {
    "segments",
    "device_traces",
    "allocator_settings",
    "external_annotations",
    "host_segments",
    "host_traces",
    memviz_labels.KEY,
}
_RECORD = (
    "Record with torch.cuda.memory._record_memory_history(max_entries=1_000_000) before the work "
    "and torch.cuda.memory._dump_snapshot('trace.pickle') after it."
)
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
        raise TraceError("The snapshot is empty: no segments and no events.", remedy=_RECORD)

    trace = Trace(
        devices=tuple(devices),
        stacks=interner.frozen_stacks(),
        strings=(),
        streams=tuple(interner.streams),
        pools=tuple(interner.pools),
        other_actions=tuple(interner.other_actions),
        settings=_settings(snapshot.get("allocator_settings")),
        about=about,
        notes=reader.notes({name_of(key) for key in snapshot.keys() - _TOP_KEYS}),
    )
    trace = memviz_labels.apply(trace, snapshot.get(memviz_labels.KEY), interner)
    # The texts are frozen last: labels may have added module paths.
    return replace(trace, strings=tuple(interner.strings))


class _DeviceReader:
    """Reads one device after the other and remembers what it did not know."""

    def __init__(self, interner: Interner) -> None:
        self.interner = interner
        self.unknown_event_keys: set[str] = set()
        self.unknown_states: set[str] = set()
        self.untiled_bytes = 0

    def device(
        self, number: int, kind: Any, segments: list[Any], events: list[Any], annotations: list[Any]
    ) -> DeviceTrace:
        segments = sorted(segments, key=lambda entry: integer_of(entry, "address") & _UNSIGNED)
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
            address=integers([integer_of(segment, "address") for segment in segments], "address"),
            size=integers([integer_of(segment, "total_size") for segment in segments], "total_size"),
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

    def notes(self, unknown_keys: set[str]) -> tuple[Note, ...]:
        said: list[tuple[str, Iterable[str], str]] = [
            ("unknown_keys", unknown_keys, "Unknown parts of the file were ignored"),
            ("unknown_event_keys", self.unknown_event_keys, "Unknown keys of events were ignored"),
            ("unknown_frame_keys", self.interner.dropped_frame_keys, "Unknown keys of frames were ignored"),
            ("unknown_actions", self.interner.other_actions, "Events of an unknown kind are kept without effect"),
            ("unknown_states", self.unknown_states, "Blocks in an unknown state are treated as free"),
        ]
        notes = [Note(code, f"{text}: {_listed(names)}.") for code, names, text in said if names]
        if self.interner.has_cut_texts:
            notes.append(Note("cut_texts", f"Texts longer than {MOST_TEXT:,} characters are cut in their middle."))
        if self.interner.has_cut_stacks:
            text = f"Stacks deeper than {MOST_FRAMES:,} frames are cut in their middle; a frame there says how many."
            notes.append(Note("cut_stacks", text))
        if self.untiled_bytes:
            text = f"The blocks of its segments leave {self.untiled_bytes} bytes of the segments uncovered."
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
    if len(rows) > MOST_DEVICES and any(type(row) in (list, tuple) for row in rows):
        raise TraceError(f"{key!r} names more than {MOST_DEVICES} devices.")
    if rows and not any(type(row) in (list, tuple) for row in rows):
        return [rows]
    return [list_of({key: row}, key) for row in rows]


def _by_device(rows: list[Any]) -> dict[int, list[Any]]:
    devices: dict[int, list[Any]] = {}
    for row in rows:
        if type(row) is AnnotationRows:
            for number, own in split_by_device(row):
                devices.setdefault(number, []).append(own)
            continue
        if type(row) is not dict:
            raise TraceError(f"A segment or annotation is {kind_text(row)}, not a dict.")
        devices.setdefault(integer_of(row, "device", 0), []).append(row)
    if len(devices) > MOST_DEVICES:
        raise TraceError(f"It names more than {MOST_DEVICES} devices.")
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
            kept[name_of(key)] = bounded(valid_unicode(setting))
        elif type(setting) is bool or _is_number(setting):
            kept[name_of(key)] = setting
    return kept


def _is_number(value: Any) -> bool:
    return abs(value) < 2**64 if type(value) is int else type(value) is float and isfinite(value)


def _labels(categories: Any) -> Labels | None:
    if categories is None or not len(categories):
        return None
    unknown = np.zeros(len(categories))
    return Labels.typed(categories, unknown, unknown)


_MOST_LISTED = 8


def _listed(names: Iterable[str]) -> str:
    ordered = sorted(names)
    first, others = ordered[:_MOST_LISTED], len(ordered) - _MOST_LISTED
    text = ", ".join(repr(name[:40]) for name in first)
    return f"{text} and {others} more" if others > 0 else text
