"""Long rows of events, blocks and annotations, decoded as columns straight from the bytes of a pickle.

A snapshot writes one event like the other: the same keys in the same order, each value in one of a few
encodings. Once an event has been read opcode by opcode, its keys are the template for those that follow.
All places in a window where such an event may start are then parsed side by side: one array of positions
moves through the window, a key and a value a step. A place where the bytes do not fit drops out; where one
event ends exactly at the start of the next, they form a run. So it is with blocks and annotations.
Nothing is guessed: a run is what reading opcode by opcode would have given, and whatever is not in a run
is read that way.

Parsing (`window`) looks at bytes only. What references mean is resolved when a run is taken over, because a
run may refer to what was read one event before it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from memviz.errors import TraceError
from memviz.trace.distinct import distinct
from memviz.trace.intern import MOST_FRAMES, Interner, StackNumber
from memviz.trace.model import NO_STACK, Columns, Events, Ints4, Ints8
from memviz.trace.unpickle.rows import EVENT, ROW_KINDS, Kind, RowKind, kind_of, translated
from memviz.trace.unpickle.run_memo import FRAME, NOTHING, POOL, ROW, STACK, TEXT, RunMemo
from memviz.trace.unpickle.template import Template, places_in, template_of
from memviz.trace.unpickle.window import Column, Contents, Window

_SHORTEST_RUN = 16
"""Below it, reading row by row is quicker than setting up the columns."""
_MOST_TEMPLATES = 8
_MOST_STACKS = 2_000_000
_TRIES = 4
"""How often a row may be part of a run that ends before it. A file can be made so that every run does."""


class Reader(Protocol):
    """What is needed of the unpickler."""

    at: int
    cost: int
    items: int
    stack: list[Any]
    marks: list[list[Any]]
    memo: dict[int, Any]
    newest_dict: dict[str, Any] | None
    newest_dict_at: int

    def memo_length(self) -> int: ...


Watch = Callable[[Events, int], None]
"""A row of events in the order of the file, and a number that all rows of one device share."""


class _ARow:
    """Stands for a row inside a run, which exists as columns only."""


class _Form:
    """How rows of one kind are written, as far as that is known."""

    def __init__(self) -> None:
        self.template: Template | None = None
        self.unsure: Template | None = None
        """Seen once, with keys written out: the first of all rows writes them so, and others mostly do not."""
        self.templates = 0
        self.window: Window | None = None
        self.patience = 0

    def learn(self, template: Template) -> None:
        if template.writes_keys_out and template != self.unsure:
            self.unsure = template
        elif template != self.template and self.templates < _MOST_TEMPLATES:
            self.templates += 1
            both = self.template.also(template) if self.template is not None else None
            self.template, self.window = both or template, None


class Runs:
    A_ROW = _ARow()

    def __init__(self, interner: Interner, reader: Reader, watch: Watch | None = None) -> None:
        self.interner = interner
        self.reader = reader
        self.watch = watch
        self.count = 0
        """Of events."""
        self.memo_used = 0
        """Places of the memo that objects inside runs have taken."""
        self.memo = RunMemo()
        self._buffer = b""
        self._forms = {kind: _Form() for kind in ROW_KINDS}
        self.lists = Contents(_MOST_STACKS)
        self.texts = Contents()

    @property
    def remembered(self) -> int:
        """What is remembered of lists and texts, in memory."""
        return sum(table.bytes + 150 * len(table.raw) for table in (self.lists, self.texts))

    def new_window(self, buffer: bytes) -> None:
        self._buffer = buffer
        for form in self._forms.values():
            form.window = None

    def recall(self, number: int) -> Any:
        """What a run has put at this place of the memo; None if nothing."""
        kind, code = self.memo.at(number)
        if kind == STACK:
            return StackNumber(code)
        if kind == TEXT:
            return self.interner.text(code)
        if kind == POOL:
            return self.interner.pool_pair(code)
        return self.A_ROW if kind == ROW else None

    def after_row(self, row: dict[str, Any], end: int) -> None:
        """The reader has just finished what may be a row, which ends there; whatever run follows is taken over."""
        kind = kind_of(row)
        if kind is None:
            return
        form, reader = self._forms[kind], self.reader
        self._learn(kind, form, row, end)
        if form.template is None or not reader.marks or not reader.marks[-1] or type(reader.marks[-1][-1]) is not list:
            return
        if form.window is None:
            form.window = Window(self._buffer, form.template, reader.at, (self.lists, self.texts))
            form.patience = _TRIES * len(form.window.start)
        first, last = form.window.run_from(reader.at)
        if last - first >= _SHORTEST_RUN and form.patience > 0:
            made = _Run(self, form.window, first, last).made(kind)
            form.patience -= last - first - len(made)
            if len(made):
                self._take(made, kind, form.window, first + len(made) - 1)

    def _take(self, made: Columns, kind: RowKind, window: Window, last: int) -> None:
        reader = self.reader
        reader.at = int(window.end[last])
        reader.stack.append(made)
        if kind is not EVENT:
            reader.items += len(made) * (1 + len(window.template.slots))
        elif isinstance(made, Events):
            self.count += len(made)
            if self.watch is not None:
                self.watch(made, id(reader.marks[-1][-1]))

    def _learn(self, kind: RowKind, form: _Form, row: dict[str, Any], end: int) -> None:
        reader = self.reader
        if reader.newest_dict is not row or reader.newest_dict_at < 0 or not row.keys() >= kind.needed:
            return
        known = form.template
        if known is not None and not known.writes_keys_out and known.covers(list(row)):
            return
        template = template_of(self._buffer, reader.newest_dict_at, end, row, kind)
        if template is not None:
            form.learn(template)


class _Run:
    """Candidates first..last of a window, made into columns. Stops early at a reference nobody has put there."""

    def __init__(self, owner: Runs, window: Window, first: int, last: int) -> None:
        self.owner = owner
        self.window = window
        self.rows = slice(first, last)
        self.count = last - first
        self.memo_base = self._reserve_memo()

    def made(self, kind: RowKind) -> Columns:
        window = self.window
        columns = {name: self._resolve(window.columns[name], slot) for name, slot, _ in window.template.slots}
        self._finish_memo()
        return kind.made(
            {name: column[: self.count] for name, column in columns.items()}, self.count, self.owner.interner
        )

    # -- memo

    def _reserve_memo(self) -> Ints8 | None:
        """Memo place of each row, where places are counted; the run's own objects follow it."""
        owner, window = self.owner, self.window
        if window.event_memo is not None:
            places = window.event_memo[self.rows]
            places = places[places >= 0]
            self._check_places(int(places.max(initial=0)))
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
        if self.memo_base is None:
            return
        owner, window = self.owner, self.window
        owner.memo_used += int(window.memo_count[self.rows][: self.count].sum())
        for name, column in window.columns.items():
            if column.key_offset is not None:
                places = self.memo_base + column.key_offset[self.rows]
                owner.memo.put(places, TEXT, owner.interner.string(name))

    def _places(self, column: Column) -> tuple[Ints8, Ints8]:
        """Rows whose object is written out here, and its place in the memo: -1 where it has none."""
        offset = column.memo_offset[self.rows] if column.memo_offset is not None else np.zeros(0, dtype=np.int64)
        rows = np.flatnonzero(offset >= 0)
        if self.memo_base is not None:
            return rows, self.memo_base[rows] + offset[rows]
        if column.second is None:
            return rows, np.full(len(rows), -1)
        places = column.second[self.rows][rows]
        self._check_places(int(places.max(initial=0)))
        return rows, places

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
            result[rows] = translated(-1 - value[rows], lambda content: self._content(content, kind))
            numbered = places >= 0
            self.owner.memo.put(places[numbered], number, result[rows[numbered]].astype(np.int32))
        refers = np.ones(len(value), dtype=np.bool_) if column.present is None else column.present[self.rows].copy()
        result[~refers] = NO_STACK if kind == "stack" else 0
        refers[rows] = False
        references = np.flatnonzero(refers)
        if len(references):
            result[references] = self._recalled(value[references], number, references)
        return result

    def _recalled(self, places: Ints8, kind: int, rows: Ints8) -> Ints8:
        memo = self.owner.memo
        memo.reserve(self.owner.reader.memo_length() + 1)
        known = places < len(memo.kind)
        inside = np.where(known, places, 0)
        for place in distinct(inside[memo.kind[inside] != kind]).tolist():
            self._look_up(place, kind)
        bad = ~known | (memo.kind[inside] != kind)
        if bad.any():
            self.count = min(self.count, int(rows[bad][0]))
        return memo.code[inside].astype(np.int64)

    def _look_up(self, place: int, kind: int) -> None:
        """A reference to something that was read opcode by opcode."""
        memo, intern = self.owner.memo, self.owner.interner
        value = self.owner.reader.memo.get(place)
        if value is None or memo.kind[place] != NOTHING:
            return
        if kind == TEXT and type(value) is str:
            memo.put(np.array([place]), kind, intern.string(value))
        elif kind == STACK and type(value) is list:
            memo.put(np.array([place]), kind, intern.stack(value))
        elif kind == POOL and type(value) in (tuple, list):
            memo.put(np.array([place]), kind, intern.pool(value))

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
            self.owner.reader.cost += 200
        return number

    def _frames(self, raw: bytes) -> Ints4:
        places = places_in(raw)
        if len(places) <= MOST_FRAMES:
            return self._frames_at(places)
        # Text stands for the frames that are left out.
        intern, half = self.owner.interner, MOST_FRAMES // 2
        first, text = self._frames_at(places[:half]), intern.shortened(range(len(places)))[half]
        return np.concatenate([first, np.array([intern.frame(text)]), self._frames_at(places[1 - half :])])

    def _frames_at(self, places: Ints8) -> Ints4:
        memo = self.owner.memo
        self._check_places(int(places.max(initial=0)))
        for place in dict.fromkeys(places[memo.kind[places] != FRAME].tolist()):
            frame = self.owner.reader.memo.get(place)
            if frame is None:
                raise TraceError("Its pickle is damaged: a stack refers to a frame that is not there.")
            memo.put(place, FRAME, self.owner.interner.frame(frame))
        return memo.code[places]
