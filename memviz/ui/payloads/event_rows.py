"""The list of events: selects among millions, and formats one page of rows.

Selecting is a few array operations; only the rows of one page become text.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from memviz.analysis.annotations import NO_INTERVAL, annotated, annotation_of_events
from memviz.analysis.cache import cached, cached_on
from memviz.analysis.callstacks.sites import sites
from memviz.analysis.lifetimes import BEFORE, has_times, lifetimes
from memviz.text import exact, plain
from memviz.trace.model import (
    DEFAULT_POOL,
    FREE_UNKNOWN,
    NO_STACK,
    Action,
    Bools,
    DeviceTrace,
    Ints4,
    Ints8,
    Trace,
    address_text,
)
from memviz.units import bytes_text

MOST_CACHED = 4
_NOTHING = -1

_SIGNS: dict[int, str] = {
    Action.ALLOC: "+",
    Action.SEGMENT_ALLOC: "+",
    Action.SEGMENT_MAP: "+",
    Action.FREE_COMPLETED: "−",
    Action.SEGMENT_FREE: "−",
    Action.SEGMENT_UNMAP: "−",
}
_OF_THE_DEVICE = (Action.SEGMENT_ALLOC, Action.SEGMENT_FREE, Action.SEGMENT_MAP, Action.SEGMENT_UNMAP)
_FREES = (Action.FREE_REQUESTED, Action.FREE_COMPLETED)


@dataclass(frozen=True)
class EventFilter:
    actions: tuple[int, ...] = ()
    """All where empty."""
    text: str = ""
    """Part of a site's or an annotation's name, in any case."""

    def __bool__(self) -> bool:
        return bool(self.actions or self.text)


@dataclass(frozen=True)
class EventRow:
    event: int
    time: str
    """Milliseconds since the first event; empty in a file without times."""
    action: str
    bytes: str
    exact: str
    address: str
    stream: str
    pool: str
    site: str
    annotation: str
    look: str
    """'grew' or 'shrank' where live bytes change, the same after 'device-' where reserved ones do, 'oom' or 'plain'."""


@dataclass(frozen=True, eq=False)
class EventSelection:
    """The events that pass a filter; all of them where `numbers` is None."""

    count: int
    numbers: Ints8 | None = None

    def rows(self, first: int, last: int) -> Ints8:
        """Event numbers of rows first <= row < last, as far as there are any."""
        begin, end = min(max(first, 0), self.count), min(max(last, 0), self.count)
        return np.arange(begin, end) if self.numbers is None else self.numbers[begin:end]

    def place_of(self, event: int) -> dict[str, int | bool]:
        """Return the length of the list, and the event's row, or the row before which it would be inserted."""
        if self.numbers is None:
            return {"row": max(event, 0), "is_there": event >= 0, "count": self.count}
        row = int(np.searchsorted(self.numbers, event))
        is_there = row < self.count and int(self.numbers[row]) == event
        return {"row": row, "is_there": is_there, "count": self.count}


@dataclass
class _Recent:
    """The last few filters of one device, so that scrolling through a choice does not choose again."""

    found: OrderedDict[EventFilter, EventSelection] = field(default_factory=OrderedDict)
    lock: threading.Lock = field(default_factory=threading.Lock)


def chosen_events(trace: Trace, device: DeviceTrace, wanted: EventFilter) -> EventSelection:
    if not wanted:
        return EventSelection(len(device.events))
    recent = cached_on(trace, (chosen_events, device.name), _Recent)
    with recent.lock:
        if wanted not in recent.found:
            passing = np.ones(len(device.events), dtype=np.bool_)
            if wanted.actions:
                passing &= np.isin(device.events.action, [code for code in wanted.actions if 0 <= code < 256])
            if wanted.text:
                part = wanted.text.casefold()
                passing &= _at_sites(trace, device, part) | _within_annotations(trace, device, part)
            numbers = np.flatnonzero(passing)
            recent.found[wanted] = EventSelection(len(numbers), numbers)
        recent.found.move_to_end(wanted)
        while len(recent.found) > MOST_CACHED:
            recent.found.popitem(last=False)
        return recent.found[wanted]


def _at_sites(trace: Trace, device: DeviceTrace, part: str) -> Bools:
    table = sites(trace)
    hit = np.array([part in site.label.casefold() or part in site.key.casefold() for site in table.sites])
    return np.asarray(hit[table.of_stack][stack_of_events(device)], dtype=np.bool_)


def _within_annotations(trace: Trace, device: DeviceTrace, part: str) -> Bools:
    """Inside any annotation of such a name, however deep."""
    intervals, count = annotated(device), len(device.events)
    names = [code for code in np.unique(intervals.name).tolist() if part in trace.strings[code].casefold()]
    rows = np.flatnonzero(np.isin(intervals.name, names) & (intervals.end_event >= intervals.start_event))
    opened = np.bincount(intervals.start_event[rows], minlength=count + 1)
    closed = np.bincount(intervals.end_event[rows] + 1, minlength=count + 1)
    return np.asarray(np.cumsum(opened - closed)[:count] > 0, dtype=np.bool_)


@cached
def row_of_events(device: DeviceTrace) -> Ints4:
    """The row of `lifetimes` that each alloc begins and each free ends; -1 for other events."""
    lives, count = lifetimes(device), len(device.events)
    row_of = np.full(count, _NOTHING, dtype=np.int32)
    rows = np.arange(len(lives), dtype=np.int32)
    # An alloc may itself end what lay at its address; it is written last, because it is first of all an alloc.
    for event in (lives.free_requested, lives.end, lives.start):
        inside = (event >= 0) & (event < count)
        row_of[event[inside]] = rows[inside]
    return row_of


@cached
def stack_of_events(device: DeviceTrace) -> Ints4:
    """Return the allocation stacks of the events' allocations; events without one have their own stack."""
    row, lives = row_of_events(device), lifetimes(device)
    is_free = np.isin(device.events.action, _FREES)
    stack = np.where(is_free, np.int32(NO_STACK), device.events.stack)
    known = row >= 0
    stack[known] = lives.stack[row[known]]
    return stack


@cached
def _counts(device: DeviceTrace) -> Ints8:
    return np.bincount(device.events.action, minlength=1)


def action_text(trace: Trace, action: int) -> str:
    """PyTorch's own names, with spaces; the one that people search for is spelled out."""
    return "out of memory" if action == Action.OOM else plain(trace.action_name(action).replace("_", " "))


def event_rows(trace: Trace, device: DeviceTrace, events: Ints8) -> tuple[EventRow, ...]:
    """A page of them: this is a loop over its rows."""
    table = device.events
    columns = (table.action, table.size, table.address, table.stream, table.pool)
    found = (column[events].tolist() for column in (*columns, row_of_events(device), stack_of_events(device)))
    texts = _times(device, events), _annotation_names(trace, device, events)
    rows = []
    for event, action, size, address, stream, pool, row, stack, time, name in zip(
        events.tolist(), *found, *texts, strict=True
    ):
        place = address_text(address)
        if action == Action.OOM:
            place = "" if address == FREE_UNKNOWN else f"{bytes_text(address)} free"
        first, second = trace.pools[pool]
        sign = _SIGNS.get(action, "")
        rows.append(
            EventRow(
                event=event,
                time=time,
                action=action_text(trace, action),
                bytes=f"{sign}{bytes_text(size)}" if size or sign else "",
                exact=exact(size),
                address=place,
                stream=str(trace.streams[stream]),
                pool="default" if (first, second) == DEFAULT_POOL else f"{first}, {second}",
                site=_site_text(trace, device, action, row, stack),
                annotation=name,
                look=_look(action),
            )
        )
    return tuple(rows)


def _times(device: DeviceTrace, events: Ints8) -> Sequence[str]:
    if not has_times(device):
        return [""] * len(events)
    since = device.events.time_us[events] - device.events.time_us[0]
    return [f"{microseconds / 1000:,.3f}".replace("-", "−") for microseconds in since.tolist()]


def _annotation_names(trace: Trace, device: DeviceTrace, events: Ints8) -> list[str]:
    intervals = annotated(device)
    if not len(intervals):
        return [""] * len(events)
    names = intervals.name
    numbers = annotation_of_events(device, events).tolist()
    return ["" if number == NO_INTERVAL else plain(trace.strings[names[number]]) for number in numbers]


def _look(action: int) -> str:
    if action == Action.OOM:
        return "oom"
    change = {"+": "grew", "−": "shrank"}.get(_SIGNS.get(action, ""), "plain")
    return f"device-{change}" if action in _OF_THE_DEVICE else change


def _site_text(trace: Trace, device: DeviceTrace, action: int, row: int, stack: int) -> str:
    if stack == NO_STACK and action in _FREES:
        if row < 0:
            return "its allocation is not in this file"
        if lifetimes(device).start[row] == BEFORE:
            return "allocated before the first event"
    return plain(sites(trace).of(stack).label)


def list_value(trace: Trace, device: DeviceTrace, key: str, at: int) -> dict[str, object]:
    """Return the list's value apart from its pages: length, kinds of event, and the columns that have content."""
    counts = _counts(device)
    return {
        "key": key,
        "at": at,
        "count": len(device.events),
        # The kinds of event that occur, by their number in the file's format.
        "actions": [[code, action_text(trace, code), int(counts[code])] for code in counts.nonzero()[0].tolist()],
        "has_times": has_times(device),
        "has_annotations": bool(len(annotated(device))),
        "many_streams": len(trace.streams) > 1,
        "many_pools": len(trace.pools) > 1,
    }
