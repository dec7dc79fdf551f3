"""Memory as torch's profiler exports it -> Trace: a trace (Kineto, Chrome's JSON) or a memory timeline.

A trace with `profile_memory=True` has an event for each allocation and free, with the allocated and reserved bytes by
then, and no stacks, segments or earlier allocations. A note names what is filled in: a stack is the calls that ran on
the same thread at that moment, and growth of the reserved bytes is a segment without an address.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any

from memviz.errors import TraceError
from memviz.trace.intern import MOST_FRAMES, Interner, StackNumber
from memviz.trace.limits import MOST_DEVICES, Budget
from memviz.trace.model import NO_STACK, About, Note, Trace
from memviz.trace.snapshot import read_snapshot

_CALLS = {"cpu_op", "python_function", "Operator", "Python"}
"""Kinds of both ages."""
_OF_PYTHON = ("python_function", "Python")
_FUNCTION = re.compile(r"(?P<file>.{1,4096})\((?P<line>\d{1,9})\): (?P<name>.{1,4096})", re.DOTALL)
_CALLS_CHECKED_EVERY = 1024
_CALL_BYTES = 200


@dataclass(slots=True)
class _Call:
    begin: float
    end: float
    frame: int
    around: _Call | None = None
    depth: int = 1
    stack: int = NO_STACK


class RunningCalls:
    """Takes moments of a thread in the order of time."""

    def __init__(self, rows: list[dict[str, Any]], interner: Interner, threads: set[tuple[Any, Any]]) -> None:
        self._interner = interner
        self._calls: dict[tuple[Any, Any], list[_Call]] = {}
        self._next: dict[tuple[Any, Any], int] = {}
        self._inner: dict[tuple[Any, Any], _Call | None] = {}
        self._frames: dict[str, int] = {}
        self.has_python = False
        for number, row in enumerate(rows):
            if number % _CALLS_CHECKED_EVERY == 0:
                interner.budget.check()
            self._add(row, threads)
        for calls in self._calls.values():
            # Of two that begin together the longer is around the other.
            calls.sort(key=lambda call: (call.begin, -call.end))
        self.has_any = bool(self._calls)

    def _add(self, row: dict[str, Any], threads: set[tuple[Any, Any]]) -> None:
        kind, name, begin, lasts = row.get("cat"), row.get("name"), row.get("ts", ""), row.get("dur", 0)
        if row.get("ph") != "X" or kind not in _CALLS or type(name) is not str:
            return
        thread = (row.get("pid"), row.get("tid"))
        if not all(type(part) in (int, str, type(None)) for part in thread) or thread not in threads:
            return
        if not (_is_time(begin) and _is_time(lasts)):
            return
        self._interner.budget.charge(_CALL_BYTES)
        self.has_python |= kind in _OF_PYTHON
        number = self._frames.get(name)
        if number is None:
            found = _FUNCTION.fullmatch(name)
            frame = {"name": found["name"], "filename": found["file"], "line": int(found["line"])} if found else name
            number = self._frames[name] = self._interner.frame(frame)
        self._calls.setdefault(thread, []).append(_Call(begin, begin + lasts, number))

    def stack_at(self, thread: tuple[Any, Any], at: float) -> int:
        calls, number = self._calls.get(thread, ()), self._next.get(thread, 0)
        inner = self._inner.get(thread)
        while number < len(calls) and calls[number].begin <= at:
            call = calls[number]
            inner = _innermost_call(inner, call.begin)
            # Deeper than any stack: what is beyond is of no use to a reader.
            if inner is None or inner.depth < MOST_FRAMES:
                call.around, call.depth = inner, 1 + (inner.depth if inner else 0)
                inner = call
            number += 1
        inner = _innermost_call(inner, at)
        self._next[thread], self._inner[thread] = number, inner
        return NO_STACK if inner is None else self._stack(inner)

    def _stack(self, call: _Call) -> int:
        if call.stack == NO_STACK:
            frames = []
            around: _Call | None = call
            while around is not None:
                frames.append(around.frame)
                around = around.around
            self._interner.budget.check()
            call.stack = self._interner.stack_of(frames)
        return call.stack


def _is_time(value: Any) -> bool:
    return type(value) in (int, float) and isfinite(value)


def _innermost_call(call: _Call | None, at: float) -> _Call | None:
    while call is not None and call.end < at:
        call = call.around
    return call


FORMAT = "profiler trace"
_FACTS = {"recorded by": "torch's profiler"}
"""They stay with the trace where it is written as a snapshot."""
BEFORE = "before_the_profile"
"""In the place of a function, of bytes that nothing else is known of."""
_EVENTS = "traceEvents"
_MEMORY, _OUT_OF_MEMORY = "[memory]", "[OutOfMemory]"
_PROCESSOR = 0
_CHECKED_EVERY = 1024
_MOMENT_BYTES, _ANNOTATION_BYTES = 500, 600
_NOWHERE = 1 << 62
"""Addresses from here on are of no machine."""
_LARGEST = 1 << 62
_RECORD = "Profile with torch.profiler.profile(profile_memory=True), and export_chrome_trace('trace.json')."


def is_profile(root: Any) -> bool:
    if type(root) is list:
        return bool(root) and type(root[0]) is dict and "ph" in root[0]
    return type(root) is dict and type(root.get(_EVENTS)) is list


def is_profiled(trace: Trace) -> bool:
    """Its segments are placeholders without addresses."""
    return _FACTS.items() <= trace.about.facts.items()


def read_profile(root: Any, about: About, interner: Interner) -> Trace:
    rows = root if type(root) is list else root[_EVENTS]
    rows = [row for row in rows if type(row) is dict]
    begin = root.get("baseTimeNanoseconds", 0) if type(root) is dict else 0
    begin_us = begin // 1000 if type(begin) is int and 0 <= begin < _LARGEST else 0
    kind, moments, left_aside = _moments(rows, interner.budget)
    calls = RunningCalls(rows, interner, {moment.thread for moment in moments})
    histories: dict[int, _History] = {}
    for number, moment in enumerate(moments):
        if number % _CHECKED_EVERY == 0:
            interner.budget.check()
        stack = calls.stack_at(moment.thread, moment.at)
        history = histories.setdefault(moment.device, _History())
        history.add(moment, begin_us + int(moment.at), StackNumber(stack) if stack >= 0 else None)
    before = StackNumber(interner.stack_of([interner.frame(BEFORE)]))
    snapshot = {
        "segments": [row for number, history in histories.items() for row in history.segments(number, before)],
        "device_traces": [
            histories[number].events if number in histories else [] for number in range(max(histories) + 1)
        ],
        "external_annotations": list(_annotations(rows, begin_us, sorted(histories), interner.budget)),
    }
    trace = read_snapshot(snapshot, replace(about, format=f"{FORMAT}, {about.format}", facts=_FACTS), interner)
    return replace(trace, notes=(*_notes(kind, left_aside, histories, calls), *trace.notes))


@dataclass(frozen=True)
class _Moment:
    at: float
    """µs since what the file counts from."""
    order: int
    device: int
    thread: tuple[Any, Any]
    address: int
    bytes: int
    """Less than nothing for a free."""
    allocated: int | None
    reserved: int | None
    ran_out: bool


def _moments(rows: list[dict[str, Any]], budget: Budget) -> tuple[int, list[_Moment], int]:
    """The kind of device, its events in their order, and how many others are left aside."""
    memory = [row for row in rows if row.get("name") in (_MEMORY, _OUT_OF_MEMORY) and type(row.get("args")) is dict]
    kinds = Counter(_kind(row) for row in memory)
    if not kinds:
        raise TraceError("It is a torch profiler trace without memory events.", remedy=_RECORD)
    kind = max(kinds, key=lambda kind: (kind != _PROCESSOR, kinds[kind]))
    budget.charge(_MOMENT_BYTES * len(memory))
    moments = [_moment(row) for row in memory if _kind(row) == kind]
    if len({moment.device for moment in moments}) > MOST_DEVICES:
        raise TraceError(f"It names more than {MOST_DEVICES} devices.")
    moments.sort(key=lambda moment: (moment.at, moment.order))
    return kind, moments, len(memory) - len(moments)


def _kind(row: dict[str, Any]) -> int:
    # A trace of old has no types, and its processor has no number.
    value = row["args"].get("Device Type", _PROCESSOR if row["args"].get("Device Id", -1) == -1 else 1)
    if type(value) is not int:
        raise TraceError("A device's type is not a number.")
    return value


def _moment(row: dict[str, Any]) -> _Moment:
    told = row["args"]
    device, order = told.get("Device Id", -1), told.get("Ev Idx", 0)
    if type(device) is not int or not -1 <= device < MOST_DEVICES:
        raise TraceError("A device's number is beyond any machine.")

    def total(what: str) -> int | None:
        value = told.get(what)
        return None if value is None else max(_whole_number(value, what), 0)

    pid, tid = row.get("pid"), row.get("tid")
    return _Moment(
        at=_checked_time(row.get("ts")),
        order=order if type(order) is int else 0,
        device=max(device, 0),
        thread=(pid if type(pid) in (int, str) else None, tid if type(tid) in (int, str) else None),
        address=_whole_number(told.get("Addr", 0), "Addr"),
        bytes=_whole_number(told.get("Bytes"), "Bytes"),
        allocated=total("Total Allocated"),
        reserved=total("Total Reserved"),
        ran_out=row["name"] == _OUT_OF_MEMORY,
    )


def _checked_time(value: Any) -> float:
    if type(value) not in (int, float) or not isfinite(value) or not -_LARGEST < value < _LARGEST:
        raise TraceError("A time ('ts') is not a number.")
    return float(value)


def _whole_number(value: Any, what: str) -> int:
    if type(value) is float and value.is_integer():
        value = int(value)
    if type(value) is not int or not -_LARGEST < value < 2**64:
        raise TraceError(f"A value of {what!r} is not a whole number of 64 bits.")
    return value


class _History:
    """Events of one device, as a snapshot has them."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.is_off = False
        """True if the file's own totals disagree with the sums of its events."""
        self._live: dict[int, tuple[int, StackNumber | None]] = {}
        self._changed = 0
        self._began: tuple[int, int] | None = None
        """Bytes allocated and reserved before the first event."""
        self._freed_of_before = 0
        self._reserved = 0

    @property
    def before(self) -> int:
        """Bytes that were there before, and of which nothing more is said."""
        return max((self._began[0] if self._began else 0) - self._freed_of_before, 0)

    def add(self, moment: _Moment, time_us: int, stack: StackNumber | None) -> None:
        common = {"stream": 0, "time_us": time_us, "frames": stack}
        if moment.ran_out:
            self.events.append({**common, "action": "oom", "size": abs(moment.bytes), "addr": 0})
            return
        if not moment.bytes:
            return
        if self._began is None and moment.allocated is not None:
            self._reserved = moment.reserved or 0
            self._began = (max(moment.allocated - moment.bytes, 0), self._reserved)
        # The allocator takes and gives back whole segments; which, the file does not say.
        change = 0 if moment.reserved is None else moment.reserved - self._reserved
        self._reserved += change
        if change:
            action = "segment_alloc" if change > 0 else "segment_free"
            self.events.append({**common, "action": action, "size": abs(change), "addr": _NOWHERE})
        size = abs(moment.bytes)
        if moment.bytes > 0:
            self._live[moment.address] = (size, stack)
        elif self._live.pop(moment.address, None) is None:
            self._freed_of_before += size
        action = "alloc" if moment.bytes > 0 else "free_completed"
        self.events.append({**common, "action": action, "size": size, "addr": moment.address})
        self._changed += moment.bytes
        if moment.allocated is not None and self._began is not None:
            self.is_off |= self._began[0] + self._changed != moment.allocated

    def segments(self, device: int, before: StackNumber) -> list[dict[str, Any]]:
        """The state at the end, with sums that are true: everything has a segment of its own, what is reserved and not
        allocated too."""
        if not (self.before or self._reserved):
            return []
        live = self._live.items()
        rows = [_segment(device, address, size, "active_allocated", stack) for address, (size, stack) in live]
        unused = self._reserved - sum(size for size, _ in self._live.values()) - self.before
        if self.before:
            rows.append(_segment(device, _NOWHERE, self.before, "active_allocated", before))
        if unused > 0:
            rows.append(_segment(device, _NOWHERE + self.before, unused, "inactive", None))
        return rows


def _segment(device: int, address: int, size: int, state: str, stack: StackNumber | None) -> dict[str, Any]:
    block = {"address": address, "size": size, "requested_size": size, "state": state, "frames": stack}
    segment = {"device": device, "address": address, "total_size": size, "stream": 0, "segment_type": "large"}
    return {**segment, "blocks": [block]}


def _annotations(
    rows: list[dict[str, Any]], begin_us: int, devices: list[int], budget: Budget
) -> Iterator[dict[str, Any]]:
    """`record_function` and the profiler's own steps."""
    for row in rows:
        if row.get("cat") != "user_annotation" or row.get("ph") != "X" or type(row.get("name")) is not str:
            continue
        # They are no device's own, so each has them all.
        budget.charge(_ANNOTATION_BYTES * len(devices))
        begin = _checked_time(row.get("ts"))
        end = begin + max(_checked_time(row.get("dur", 0)), 0)
        for device in devices:
            for stage, time in (("START", begin), ("END", end)):
                yield {"device": device, "name": row["name"], "stage": stage, "time_us": begin_us + int(time)}


def _notes(kind: int, left_aside: int, histories: dict[int, _History], calls: RunningCalls) -> Iterator[Note]:
    if calls.has_any:
        text = "Stacks are inferred from what ran on the same thread"
        if not calls.has_python:
            text += ", operators alone, since Python's functions are in the file only with with_stack=True"
        yield Note("inferred_stacks", f"{text}.")
    if kind == _PROCESSOR:
        text = "CPU memory: no GPU allocated memory during this profile."
        yield Note("processor", text, level="warning")
    elif left_aside:
        text = f"{left_aside:,} events of other memory, such as the processor's, are left aside."
        yield Note("other_memory", text)
    for number, history in sorted(histories.items()):
        if history.before:
            text = f"{history.before:,} bytes were allocated before the profile began; they are shown as one."
            yield Note("before_profile", text, device=str(number))
        if history.is_off:
            text = "The events do not add up to the allocated total in the file: some are missing."
            yield Note("missing_events", text, level="warning", device=str(number))


TIMELINE = "profiler memory timeline"
_CATEGORIES = (
    "parameter", "optimizer_state", "input", "temporary", "activation", "gradient", "autograd_detail", "unknown",
)  # fmt: skip
"""In the order of the numbers and columns that `export_memory_timeline` writes."""
_PREEXISTING, _CREATE, _NEW_VERSION, _DESTROY = 1, 2, 3, 4
_BROKEN_TIMELINE = "It looks like a memory timeline of torch's profiler, and row {:,} is none of its rows."


def is_timeline(root: Any) -> bool:
    """True for the JSON of `export_memory_timeline`: a row for each event, or times and sizes by category."""
    if type(root) is not list or not root or type(root[0]) is not list:
        return False
    return _is_plain_timeline(root) or (len(root[0]) == 4 and all(type(value) is int for value in root[0]))


def _is_plain_timeline(root: list[Any]) -> bool:
    return len(root) == 2 and type(root[1]) is list and all(type(row) is list for row in root[1])


def read_timeline(root: list[Any], about: About, interner: Interner) -> Trace:
    history = _Timeline(interner.budget)
    if _is_plain_timeline(root):
        history.add_sums(root[0], root[1])
        how = "what a category changes between two times is shown as one allocation, or as frees of the newest"
    else:
        history.add_events(root)
        how = "which allocation a free ends is inferred from its size and category"
    text = f"Sizes and categories are exact at each time. There are no stacks, addresses or reserved bytes, and {how}."
    about = replace(about, format=f"{TIMELINE}, {about.format}", facts=_FACTS)
    trace = read_snapshot({"segments": [], "device_traces": [history.events]}, about, interner)
    return replace(trace, notes=(Note("timeline", text), *trace.notes))


class _Timeline:
    """Events with addresses made up, so that each free ends an allocation of its size and category."""

    def __init__(self, budget: Budget) -> None:
        self.events: list[dict[str, Any]] = []
        self._budget = budget
        self._live: dict[tuple[int, int], list[int]] = {}
        """Addresses by category and size, the newest last."""
        self._next = _NOWHERE

    def add_events(self, rows: list[Any]) -> None:
        begin = next((row[0] for row in rows if type(row) is list and row and type(row[0]) is int and row[0] > 0), 0)
        replaced: tuple[int, int] | None = None
        for number, row in enumerate(rows):
            if type(row) is not list or len(row) != 4 or not all(map(_is_number, row)):
                raise TraceError(_BROKEN_TIMELINE.format(number))
            time, action, size, category = row
            if action not in (_PREEXISTING, _CREATE, _NEW_VERSION, _DESTROY) or category not in range(8):
                raise TraceError(_BROKEN_TIMELINE.format(number))
            # Rounded as torch rounds them in the other files of the same profile.
            time_us = int((time if time > 0 else begin) / 1000)
            if action != _NEW_VERSION:
                self._change(category, size, time_us)
            elif size < 0:
                replaced = category, -size
            elif replaced is not None and replaced[0] != category:
                self._change(replaced[0], -replaced[1], time_us)
                self._change(category, size, time_us)

    def add_sums(self, times: list[Any], rows: list[list[Any]]) -> None:
        before, newest = [0] * 8, [list[int]() for _ in range(8)]
        if len(times) != len(rows):
            raise TraceError(f"It has {len(times):,} times and {len(rows):,} rows of sizes, and needs as many.")
        for number, (time, row) in enumerate(zip(times, rows, strict=True)):
            if len(row) != 9 or row[0] != 0 or not _is_number(time) or not all(map(_is_number, row)) or min(row) < 0:
                raise TraceError(_BROKEN_TIMELINE.format(number))
            changes = [size - old for size, old in zip(row[1:], before, strict=True)]
            for category, change in enumerate(changes):
                if change < 0:
                    self._shrink(category, newest[category], -change, time)
            for category, change in enumerate(changes):
                if change > 0:
                    newest[category].append(change)
                    self._change(category, change, time)
            before = row[1:]

    def _shrink(self, category: int, newest: list[int], size: int, time_us: int) -> None:
        """Free the newest until at least `size` is gone, and allocate again what was too much."""
        while size > 0:
            freed = newest.pop()
            self._change(category, -freed, time_us)
            size -= freed
        if size < 0:
            newest.append(-size)
            self._change(category, -size, time_us)

    def _change(self, category: int, size: int, time_us: int) -> None:
        if not size:
            return
        self._budget.charge(_MOMENT_BYTES)
        if len(self.events) % _CHECKED_EVERY == 0:
            self._budget.check()
        live = self._live.setdefault((category, abs(size)), [])
        if size > 0 or not live:
            address, self._next = self._next, self._next + abs(size)
            if self._next >= 2 * _NOWHERE:
                raise TraceError("The sizes in it are beyond any real memory.")
        if size > 0:
            live.append(address)
        elif live:
            address = live.pop()
        self.events.append(
            {
                "action": "alloc" if size > 0 else "free_completed",
                "addr": address,
                "size": abs(size),
                "stream": 0,
                "time_us": time_us,
                "category": _CATEGORIES[category],
            }
        )


def _is_number(value: Any) -> bool:
    return type(value) is int and -_LARGEST < value < _LARGEST
