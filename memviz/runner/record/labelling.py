"""A log laid over the history that was recorded meanwhile: each allocation's category, module and phase.

What was seen is said of the tensor that lay at that address at that moment. What nobody named is an activation
where it outlives the forward that made it and a backward follows, also where a checkpoint runs that forward again
within the backward, and a temporary where it does not outlive its phase; everything else is left to the inference
from stacks (`memviz.analysis.purpose.categories`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from memviz.runner.record.event_clock import Counts, comparable, places
from memviz.runner.record.log import Log, Mark, Sighting
from memviz.trace.model import Action, Annotations, Category, DeviceTrace, Events, Ints8, Labels, Phase, Trace

_LAST_WORD = (
    Category.OUTPUT,
    Category.INPUT,
    Category.OPTIMIZER_STATE,
    Category.GRADIENT,
    Category.PARAMETER,
)
"""Where a tensor was seen as several things, the later of these counts."""


def labelled(trace: Trace, number: int, log: Log, end: Counts | None) -> Trace:
    """The trace with the log's labels and annotations on one of its GPUs."""
    names = _Names(trace.strings)
    devices = tuple(
        _with_labels(each, log, end, names) if (each.kind, each.device) == ("gpu", number) else each
        for each in trace.devices
    )
    return replace(trace, devices=devices, strings=tuple(names.numbers))


class _Names:
    """The trace's texts, and those that labels add."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.numbers = {text: number for number, text in enumerate(texts)}

    def __call__(self, text: str) -> int:
        return self.numbers.setdefault(text, len(self.numbers))


def _with_labels(device: DeviceTrace, log: Log, end: Counts | None, names: _Names) -> DeviceTrace:
    events = device.events
    labels = _Columns(device, names)
    marks = log.marks[comparable([each.counts for each in log.marks], end)] if end else []
    spans = _Spans(marks, places(events, end, [each.counts for each in marks]), len(events)) if end and marks else None
    if spans is not None:
        labels.say_when(spans)
    sightings, at = _seen(log.sightings, events, end)
    labels.say_what(sightings, at)
    if spans is not None:
        labels.say_the_rest(spans)
    return replace(
        device,
        annotations=_annotations(device, log, end, names),
        event_labels=labels.of_events(),
        block_labels=labels.of_blocks(),
    )


def _seen(sightings: Sequence[Sighting], events: Events, end: Counts | None) -> tuple[list[Sighting], Ints8]:
    """The sightings by the weight of their word, and how many events came before each.

    Without counts only the last look round can be placed: at the end.
    """
    counted = [each.counts for each in sightings if each.counts is not None]
    if end is None or len(counted) < len(sightings):
        kept = [each for each in sightings if each.counts == sightings[-1].counts]
        at = np.full(len(kept), len(events), dtype=np.int64)
    else:
        part = comparable(counted, end)
        kept = list(sightings[part])
        at = places(events, end, counted[part])
    order = sorted(range(len(kept)), key=lambda row: _LAST_WORD.index(kept[row].category))
    return [kept[row] for row in order], at[np.array(order, dtype=np.int64)]


class _Spans:
    """Where phases and modules begin, by event."""

    def __init__(self, marks: Sequence[Mark], at: Ints8, count: int) -> None:
        self.at = at
        self.phase = np.array([Phase.UNKNOWN, *(each.phase for each in marks)], dtype=np.uint8)
        self.module = ["", *(each.module for each in marks)]
        self.span = np.array([0, *(each.span for each in marks)], dtype=np.int64)
        self.again = np.array([0, *(each.again for each in marks)], dtype=np.int64)
        self.span_end = _ends(self.span, at, count)
        self.again_end = _ends(self.again, at, count)
        self.has_backward = bool((self.phase == Phase.BACKWARD).any())

    def mark_of(self, events: Ints8) -> Ints8:
        """Row of the last mark before each event; 0 is before all of them."""
        return np.asarray(np.searchsorted(self.at, events, side="right"), dtype=np.int64)


def _ends(serial: Ints8, at: Ints8, count: int) -> Ints8:
    """For each row, where the stretch of rows with its serial number ends."""
    begins = np.flatnonzero(np.diff(serial, prepend=-1))
    ends = np.append(at[begins[1:] - 1], count)
    return np.asarray(np.repeat(ends, np.diff(np.append(begins, len(serial)))), dtype=np.int64)


class _Columns:
    """Labels in the making, one row per event."""

    def __init__(self, device: DeviceTrace, names: _Names) -> None:
        self.device = device
        self.names = names
        count = len(device.events)
        self.category = np.zeros(count, dtype=np.uint8)
        self.module = np.zeros(count, dtype=np.int32)
        self.phase = np.zeros(count, dtype=np.uint8)
        self.allocs = np.flatnonzero(device.events.action == Action.ALLOC)
        self.runs = _ByAddress(device.events)
        self.block_category = np.zeros(len(device.blocks), dtype=np.uint8)
        self.block_module = np.zeros(len(device.blocks), dtype=np.int32)
        self.row_of_block = {address: row for row, address in enumerate(device.blocks.address.tolist())}

    def say_when(self, spans: _Spans) -> None:
        mark = spans.mark_of(self.allocs)
        self.phase[self.allocs] = spans.phase[mark]
        self.module[self.allocs] = np.array([self.names(each) for each in spans.module], dtype=np.int32)[mark]

    def say_what(self, sightings: Sequence[Sighting], at: Ints8) -> None:
        addresses = np.array([each.address for each in sightings], dtype=np.int64)
        for sighting, event in zip(sightings, self.runs.last_alloc(addresses, at).tolist(), strict=True):
            module = self.names(sighting.module)
            if event >= 0:
                self.category[event] = sighting.category
                self.module[event] = module or self.module[event]
                continue
            row = self.row_of_block.get(sighting.address)
            if row is not None:
                self.block_category[row], self.block_module[row] = sighting.category, module

    def say_the_rest(self, spans: _Spans) -> None:
        rest = self.allocs[self.category[self.allocs] == Category.UNKNOWN]
        mark = spans.mark_of(rest)
        phase, again = spans.phase[mark], spans.again[mark] > 0
        ends = np.where(again, spans.again_end[mark], spans.span_end[mark])
        within = self.runs.next_free(rest) < ends
        kept = ~within & (again | (phase == Phase.FORWARD) & spans.has_backward)
        self.category[rest[within & (phase != Phase.UNKNOWN)]] = Category.TEMPORARY
        self.category[rest[kept]] = Category.ACTIVATION

    def of_events(self) -> Labels:
        return Labels(self.category, self.module, self.phase)

    def of_blocks(self) -> Labels:
        """A block's label is that of its allocation, where that is among the events."""
        blocks, phase = self.device.blocks, np.zeros(len(self.device.blocks), dtype=np.uint8)
        event = self.runs.last_alloc(blocks.address, np.full(len(blocks), len(self.device.events), dtype=np.int64))
        known = (event >= 0) & (blocks.state != 0)
        self.block_category[known] = self.category[event[known]]
        self.block_module[known] = self.module[event[known]]
        phase[known] = self.phase[event[known]]
        self.block_category[blocks.state == 0] = Category.UNKNOWN
        return Labels(self.block_category, self.block_module, phase)


class _ByAddress:
    """Allocs and frees in order of address, then time: an address is used again and again."""

    def __init__(self, events: Events) -> None:
        self.count = len(events)
        self.known = np.unique(events.address)
        self.allocs = self._keys(events, Action.ALLOC)
        self.frees = self._keys(events, Action.FREE_REQUESTED)
        self.address = events.address

    def _keys(self, events: Events, action: Action) -> Ints8:
        rows = np.flatnonzero(events.action == action)
        return np.sort(self._key(events.address[rows], rows))

    def _key(self, address: Ints8, event: npt.NDArray[Any]) -> Ints8:
        return np.asarray(np.searchsorted(self.known, address) * (self.count + 1) + event, dtype=np.int64)

    def last_alloc(self, address: Ints8, before: Ints8) -> Ints8:
        """The last alloc at each address among the first `before` events, or -1."""
        if not len(self.allocs):
            return np.full(len(address), -1, dtype=np.int64)
        found = np.searchsorted(self.allocs, self._key(address, before), side="left") - 1
        event = self.allocs[np.maximum(found, 0)] % (self.count + 1)
        fits = (found >= 0) & (self.address[event] == address)
        return np.where(fits, event, -1)

    def next_free(self, allocs: Ints8) -> Ints8:
        """The event that asks for each alloc's free, or the number of events."""
        found = np.searchsorted(self.frees, self._key(self.address[allocs], allocs), side="right")
        if not len(self.frees):
            return np.full(len(allocs), self.count, dtype=np.int64)
        event = self.frees[np.minimum(found, len(self.frees) - 1)] % (self.count + 1)
        fits = (found < len(self.frees)) & (self.address[event] == self.address[allocs])
        return np.where(fits, event, self.count)


def _annotations(device: DeviceTrace, log: Log, end: Counts | None, names: _Names) -> Annotations:
    """Torch's own and the log's, in order of time, the log's moved to where its counts say it was."""
    kept = log.said[comparable([each.counts for each in log.said], end)] if end else []
    if end is None or not kept:
        return device.annotations
    at = places(device.events, end, [each.counts for each in kept])
    said = np.array([each.time_us for each in kept], dtype=np.int64)
    times = device.events.time_us
    if len(times) and times.any():
        before = np.where(at > 0, times[np.maximum(at - 1, 0)], said)
        after = np.where(at < len(times), times[np.minimum(at, len(times) - 1)], said)
        said = np.clip(said, before, np.maximum(before, after))
    ours = Annotations(
        name=np.array([names(each.name) for each in kept], dtype=np.int32),
        stage=np.array([each.stage for each in kept], dtype=np.uint8),
        time_us=np.maximum.accumulate(said),
    )
    both = {name: np.concatenate([getattr(device.annotations, name), column]) for name, column in ours.columns()}
    order = np.argsort(both["time_us"], kind="stable")
    return Annotations(**{name: column[order] for name, column in both.items()})
