"""Long rows of events, decoded as columns straight from the bytes of a pickle.

A snapshot writes one event like the other: the same keys in the same order, each value in one of a few
encodings. Once an event has been read opcode by opcode, its keys are the template for those that follow.
All places in a window where such an event may start are then parsed side by side: one array of positions
moves through the window, a key and a value a step. A place where the bytes do not fit drops out; where one
event ends exactly at the start of the next, they form a run. Nothing is guessed: a run is what reading
opcode by opcode would have given, and whatever is not in a run is read that way.

Parsing (`window`) looks at bytes only. What references mean is resolved when a run is taken over, because a
run may refer to what was read one event before it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from memviz.errors import TraceError
from memviz.trace.collect import no_events
from memviz.trace.intern import MOST_FRAMES, Interner, StackNumber
from memviz.trace.model import ACTION_NAMES, EMPTY_TEXT, NO_STACK, Events, Ints4, Ints8
from memviz.trace.unpickle.run_memo import FRAME, NOTHING, POOL, ROW, STACK, TEXT, RunMemo
from memviz.trace.unpickle.template import Kind, Template, places_of, template_of
from memviz.trace.unpickle.window import Column, Contents, Window

_NEEDED = {"action", "addr", "size"}
_SHORTEST_RUN = 16
"""Below it, reading event by event is quicker than setting up the columns."""
_MOST_TEMPLATES = 8
_TRIES = 4
"""How often an event may be part of a run that ends before it. A file can be made so that every run does."""


class Reader(Protocol):
    """What is needed of the unpickler."""

    at: int
    cost: int
    stack: list[Any]
    marks: list[list[Any]]
    memo: dict[int, Any]
    newest_dict: dict[str, Any] | None
    newest_dict_at: int

    def memo_length(self) -> int: ...


Watch = Callable[[Events, int], None]
"""A row of events in the order of the file, and a number that all rows of one device share."""


class _AnEvent:
    """Stands for an event inside a run, which exists as columns only."""


class EventRuns:
    AN_EVENT = _AnEvent()

    def __init__(self, interner: Interner, reader: Reader, watch: Watch | None = None) -> None:
        self.interner = interner
        self.reader = reader
        self.watch = watch
        self.count = 0
        self.memo_used = 0
        """Places of the memo that objects inside runs have taken."""
        self.memo = RunMemo()
        self._buffer = b""
        self._window: Window | None = None
        self._template: Template | None = None
        self._templates = 0
        self._patience = 0
        self.lists = Contents()
        self.texts = Contents()

    @property
    def remembered(self) -> int:
        """What is remembered of lists and texts, in memory."""
        return sum(each.bytes + 150 * len(each.raw) for each in (self.lists, self.texts))

    def new_window(self, buffer: bytes) -> None:
        self._buffer = buffer
        self._window = None

    def recall(self, number: int) -> Any:
        """What a run has put at this place of the memo; None if nothing."""
        kind, code = self.memo.at(number)
        if kind == STACK:
            return StackNumber(code)
        if kind == TEXT:
            return self.interner.text(code)
        if kind == POOL:
            return self.interner.pool_pair(code)
        return self.AN_EVENT if kind == ROW else None

    def after_event(self, event: dict[str, Any]) -> None:
        """The reader has just finished an event by itself; whatever run follows is taken over."""
        self._learn(event)
        reader = self.reader
        if self._template is None or not reader.marks or not reader.marks[-1] or type(reader.marks[-1][-1]) is not list:
            return
        if self._window is None:
            self._window = Window(self._buffer, self._template, reader.at, (self.lists, self.texts))
            self._patience = _TRIES * len(self._window.start)
        first, last = self._window.run_from(reader.at)
        if last - first >= _SHORTEST_RUN and self._patience > 0:
            run = _Run(self, self._window, first, last)
            events = run.events()
            self._patience -= last - first - len(events)
            if len(events):
                reader.at = int(self._window.end[first + len(events) - 1])
                reader.stack.append(events)
                self.count += len(events)
                if self.watch is not None:
                    self.watch(events, id(reader.marks[-1][-1]))

    def _learn(self, event: dict[str, Any]) -> None:
        reader = self.reader
        if reader.newest_dict is not event or reader.newest_dict_at < 0 or not event.keys() >= _NEEDED:
            return
        known = self._template
        if known is not None and list(event) == [name for name, _, _ in known.slots]:
            return
        template = template_of(self._buffer, reader.newest_dict_at, reader.at, list(event))
        if template is not None and self._templates < _MOST_TEMPLATES:
            self._templates += 1
            self._template, self._window = template, None


class _Run:
    """Candidates first..last of a window, made into Events. Stops early at a reference nobody has put there."""

    def __init__(self, owner: EventRuns, window: Window, first: int, last: int) -> None:
        self.owner = owner
        self.window = window
        self.rows = slice(first, last)
        self.count = last - first
        self.memo_base = self._reserve_memo()

    def events(self) -> Events:
        resolved = {
            name: self._resolve(self.window.columns[name], kind) for name, kind, _ in self.window.template.slots
        }
        count = self.count
        intern = self.owner.interner

        def number(name: str) -> Ints8:
            return resolved[name][:count] if name in resolved else np.zeros(count, dtype=np.int64)

        def code(name: str, default: int) -> Ints4:
            if name not in resolved:
                return np.broadcast_to(np.int32(default), count)
            return resolved[name][:count].astype(np.int32)

        self._finish_memo()
        if not count:
            return no_events()
        return Events(
            action=_translated(resolved["action"][:count], self._action).astype(np.uint8),
            address=np.ascontiguousarray(number("addr")),
            size=np.ascontiguousarray(number("size")),
            stream=_translated(number("stream"), intern.stream).astype(np.int32),
            time_us=np.ascontiguousarray(number("time_us")),
            stack=code("frames", NO_STACK),
            forward_stack=np.broadcast_to(np.int32(NO_STACK), count),
            context=code("compile_context", EMPTY_TEXT),
            metadata=code("user_metadata", EMPTY_TEXT),
            pool=code("pool_id", 0),
        )

    def _action(self, text: int) -> int:
        name = self.owner.interner.text(text)
        known = ACTION_NAMES.get(name)
        return known if known is not None else self.owner.interner.other_action(name)

    # -- memo

    def _reserve_memo(self) -> Ints8 | None:
        """Memo place of each event, where places are counted; the run's own objects follow it."""
        owner, window = self.owner, self.window
        if window.event_memo is not None:
            places = window.event_memo[self.rows]
            self._check_places(int(places.max()))
            owner.memo.put(places, ROW, 0)
        if window.template.memo != b"\x94":
            return None
        length = owner.reader.memo_length()
        used = window.memo_count[self.rows]
        base = length + np.cumsum(used) - used
        owner.memo.reserve(length + int(used.sum()))
        owner.memo.put(base, ROW, 0)
        return base

    def _finish_memo(self) -> None:
        if self.memo_base is not None:
            self.owner.memo_used += int(self.window.memo_count[self.rows][: self.count].sum())

    def _places(self, column: Column) -> tuple[Ints8, Ints8]:
        """Rows whose object is written out here, and its place in the memo (if it has one)."""
        offset = column.memo_offset[self.rows] if column.memo_offset is not None else np.zeros(0, dtype=np.int64)
        rows = np.flatnonzero(offset >= 0)
        if self.memo_base is not None:
            return rows, self.memo_base[rows] + offset[rows]
        if column.second is not None:
            places = column.second[self.rows][rows]
            if len(places):
                self._check_places(int(places.max()))
            return rows, places
        return rows, rows[:0]

    def _check_places(self, largest: int) -> None:
        """Every object takes bytes of the file, so a memo far larger than what was read is a bomb."""
        memo, reader = self.owner.memo, self.owner.reader
        if largest > 4 * len(memo.kind) + len(self.window._buffer) + len(reader.memo):
            raise TraceError("Its pickle numbers its objects far beyond their count.")
        memo.reserve(largest + 1)

    # -- values

    def _resolve(self, column: Column, kind: Kind) -> Ints8:
        value = column.value[self.rows]
        if kind == "number":
            return value
        number = {"text": TEXT, "pool": POOL, "stack": STACK}[kind]
        result = np.zeros(len(value), dtype=np.int64)
        rows, places = self._places(column)
        if len(rows):
            result[rows] = _translated(-1 - value[rows], lambda content: self._content(content, kind))
            if len(places):
                self.owner.memo.put(places, number, result[rows].astype(np.int32))
        written = np.zeros(len(value), dtype=np.bool_)
        written[rows] = True
        references = np.flatnonzero(~written)
        if len(references):
            result[references] = self._recalled(value[references], number, references)
        return result

    def _recalled(self, places: Ints8, kind: int, rows: Ints8) -> Ints8:
        memo = self.owner.memo
        memo.reserve(self.owner.reader.memo_length() + 1)
        known = places < len(memo.kind)
        inside = np.where(known, places, 0)
        for place in np.unique(inside[memo.kind[inside] != kind]).tolist():
            self._look_up(place, kind)
        bad = ~known | (memo.kind[inside] != kind)
        if bad.any():
            self.count = min(self.count, int(rows[bad][0]))
        return memo.code[inside].astype(np.int64)

    def _look_up(self, place: int, kind: int) -> None:
        """A reference to something that was read opcode by opcode."""
        memo, intern = self.owner.memo, self.owner.interner
        found = self.owner.reader.memo.get(place)
        if found is None or memo.kind[place] != NOTHING:
            return
        if kind == TEXT and type(found) is str:
            memo.put(np.array([place]), kind, intern.string(found))
        elif kind == STACK and type(found) is list:
            memo.put(np.array([place]), kind, intern.stack(found))
        elif kind == POOL and type(found) in (tuple, list):
            memo.put(np.array([place]), kind, intern.pool(found))

    def _content(self, content: int, kind: Kind) -> int:
        intern = self.owner.interner
        if kind == "stack":
            return self._stack(content)
        raw = self.owner.texts.raw[content]
        return intern.pool((raw[1], raw[3])) if kind == "pool" else intern.string(raw.decode("utf-8", "replace"))

    def _stack(self, content: int) -> int:
        lists = self.owner.lists
        number = lists.stacks[content]
        if number is None:
            raw = lists.raw[content]
            number = lists.stacks[content] = self.owner.interner.stack_of(self._frames(raw))
            self.owner.reader.cost += 200 + 12 * len(raw)
        return number

    def _frames(self, raw: bytes) -> list[int]:
        places = places_of(raw)
        if len(places) > MOST_FRAMES:
            # Text stands for the frames that are left out.
            short = self.owner.interner.shortened(places.tolist())
            return [self.owner.interner.frame(each) if type(each) is str else self._frame(each) for each in short]
        memo = self.owner.memo
        inside = np.where(places < len(memo.kind), places, 0)
        known = (memo.kind[inside] == FRAME) & (inside == places)
        numbers: list[int] = memo.code[inside].tolist()
        for i in np.flatnonzero(~known).tolist():
            numbers[i] = self._frame(int(places[i]))
        return numbers

    def _frame(self, place: int) -> int:
        memo = self.owner.memo
        frame = self.owner.reader.memo.get(place)
        if frame is None:
            raise TraceError("Its pickle is damaged: a stack refers to a frame that is not there.")
        number = self.owner.interner.frame(frame)
        if place < len(memo.kind) and memo.kind[place] == NOTHING:
            memo.put(np.array([place]), FRAME, number)
        return number


def _translated(values: Ints8, translate: Any) -> Ints8:
    """Each distinct value translated once; there are few of them, mostly one."""
    if not len(values):
        return values
    if (values == values[0]).all():
        return np.broadcast_to(np.int64(translate(int(values[0]))), len(values))
    distinct, inverse = np.unique(values, return_inverse=True)
    return np.array([translate(int(each)) for each in distinct], dtype=np.int64)[inverse]
