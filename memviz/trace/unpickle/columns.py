"""Long rows of events, blocks and annotations, decoded as columns straight from the bytes of a pickle.

A snapshot writes every event alike: the same keys in the same order, each value in one of a few encodings. Once an
event has been read opcode by opcode, its keys are the template for those that follow. All places in a window where such
an event may start are parsed side by side: one array of positions moves through the window, a key and a value a step.
A place where the bytes do not fit drops out; where one event ends exactly at the start of the next, they form a run.
Blocks and annotations are read the same way. A run is what reading opcode by opcode would have given, and everything
outside a run is read that way.

Parsing (`Window`) looks at bytes only. References are resolved when a run is taken over, because a run may refer to
what was read one event before it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from memviz.errors import TraceError
from memviz.trace.intern import MOST_FRAMES, Interner, StackNumber, distinct, first_of_each
from memviz.trace.model import NO_STACK, Bools, Columns, Events, Ints4, Ints8
from memviz.trace.unpickle.rows import (
    BEGUN_LIST,
    EVENT,
    LIST,
    ROW_KINDS,
    Kind,
    RowKind,
    Template,
    kind_of,
    places_in,
    template_of,
    translated,
)

Word = npt.NDArray[np.uint64]
_WIDTHS = (16, 32, 64, 128, 192, 256, 512, 1024, 2048)
_LONG = _WIDTHS[-1]
"""Bytes of a list beyond which it is looked at by itself; 400 frames fit."""
_FACTORS: Word = np.cumprod(np.full(_LONG // 8, 0x9E3779B97F4A7C15, dtype=np.uint64), dtype=np.uint64)
_LOOKS = 8
"""How often each byte may be looked at as part of a list: places where events seem to start can overlap."""
_MOST_TEXT = 1024
"""Bytes of a text beyond which its event is read by itself."""
_BATCH_END = b"e("
"""Picklers close and reopen a list after every 1,000 items."""


class Contents:
    """Distinct bytes of lists and texts, each once: 600,000 lists in a file are often 200 different ones."""

    def __init__(self, most: int | None = None) -> None:
        self._most = most
        self.numbers: dict[bytes, int] = {}
        self.raw: list[bytes] = []
        self.bytes = 0
        self.stacks: list[int | None] = []
        """For each list, the number of the stack it was recognized as."""

    def number(self, raw: bytes) -> int:
        text_number = self.numbers.get(raw)
        if text_number is None:
            if self._most is not None and len(self.raw) >= self._most:
                raise TraceError(f"Its events hold more than {self._most:,} different stacks.")
            self.bytes += len(raw)
            text_number = self.numbers[raw] = len(self.raw)
            self.raw.append(raw)
            self.stacks.append(None)
        return text_number


@dataclass
class Column:
    """One slot of all candidates. Which arrays are used depends on the slot's kind."""

    value: Ints8
    """A number; the memo's place of a reference; or a content's number, negative and one less."""
    second: Ints8 | None = None
    """The other number of a pool, or the place in the memo that the object takes (explicit memo only)."""
    memo_offset: Ints8 | None = None
    """How many objects the row has put into the memo before this one; -1 where this is a reference."""
    key_offset: Ints8 | None = None
    """The same of its key, where that is written out in each row and put into the memo."""
    present: Bools | None = None
    """Which rows have it at all; None where all do."""


class Window:
    """Every place in the window where a row may start, parsed side by side."""

    def __init__(self, buffer: bytes, template: Template, at: int, seen: tuple[Contents, Contents]) -> None:
        self.template = template
        self._buffer = buffer
        self._bytes = np.frombuffer(buffer, dtype=np.uint8)
        # A word at every byte, aligned or not: eight bytes from any position in one step.
        self._words: Word = np.ndarray((len(buffer) - 7,), dtype="<u8", buffer=buffer, strides=(1,))
        self._lists_seen, self._texts_seen = seen
        self._limit = len(buffer) - 16
        self._patience = _LOOKS * len(buffer)
        self.start = self._candidates(at)
        self._at = self.start + 1
        self._ok: Bools = np.ones(len(self.start), dtype=np.bool_)
        self._all_ok = True
        self.event_memo = self._memo_place()
        self._skip(b"(")
        self._memoized: Ints8 = np.full(len(self.start), 1 if template.memo == b"\x94" else 0)
        self.columns = {name: self._column(i) for i, (name, _, _) in enumerate(template.slots)}
        self._skip(b"u")
        if template.memo == b"":
            self._at, self.event_memo = self._number_behind(self._at)
        self.end = self._at
        self.memo_count = self._memoized
        self.ok: Bools = self._ok & (self.end <= self._limit)
        # True for each event but the last if the next one starts where it ends.
        gap = self.start[1:] - self.end[:-1]
        end = np.minimum(self.end[:-1], self._limit)
        batch = (gap == 2) & (self._bytes[end] == ord("e")) & (self._bytes[end + 1] == ord("("))
        linked = np.zeros(len(self.start), dtype=np.bool_)
        linked[:-1] = self.ok[:-1] & self.ok[1:] & ((gap == 0) | batch)
        self._breaks = np.flatnonzero(~linked)

    def run_from(self, at: int) -> tuple[int, int]:
        """First and one past the last candidate of the run that starts here; equal where there is none."""
        if self._buffer[at : at + 2] == _BATCH_END:
            at += 2
        first = int(np.searchsorted(self.start, at))
        if first == len(self.start) or self.start[first] != at or not self.ok[first]:
            return 0, 0
        last = self._breaks[np.searchsorted(self._breaks, first)]
        return first, int(last) + 1

    def _candidates(self, at: int) -> Ints8:
        literal = b"(" + self.template.slots[0][2]
        head = {b"\x94": 2, b"r": 6, b"": 1}[self.template.memo]
        starts = self._find(literal, at) - head
        starts = starts[starts >= at]
        return np.asarray(starts[self._bytes[starts] == ord("}")], dtype=np.int64)

    def _find(self, literal: bytes, at: int) -> Ints8:
        raw, count = self._bytes, self._limit - len(literal) + 1
        hits = np.flatnonzero(raw[at:count] == literal[0]) + at
        for i in range(1, len(literal)):
            hits = hits[raw[hits + i] == literal[i]]
        return hits

    def _clamp(self, ok: Bools) -> None:
        """Rows that do not fit stay where reading is harmless. Nearly always all fit, and nothing is to be done."""
        ok = ok & (self._at < self._limit)
        if self._all_ok and ok.all():
            return
        self._all_ok = False
        self._ok &= ok
        self._at = np.where(self._ok, self._at, 0)

    def _skip(self, literal: bytes) -> None:
        for i in range(0, len(literal), 8):
            piece = literal[i : i + 8]
            word = self._words[self._at]
            here = word if len(piece) == 8 else word & _byte_mask(len(piece))
            self._at = self._at + len(piece)
            self._clamp(here == int.from_bytes(piece, "little"))

    def _memo_place(self) -> Ints8 | None:
        """Steps over what puts an object into the memo; its place where the file names it."""
        if self.template.memo == b"":
            return None
        if self.template.memo == b"\x94":
            self._skip(b"\x94")
            return None
        word = self._words[self._at]
        self._clamp((word & _byte_mask(1)) == ord("r"))
        self._at = self._at + 5
        return _signed((word >> np.uint64(8)) & _byte_mask(4))

    def _column(self, number: int) -> Column:
        if self.template.slots[number][0] not in self.template.optional:
            return self._slot(number)
        present = self._equal(self._at, self.template.slots[number][2])
        if present.all():
            return self._slot(number)
        # Rows without it stand aside meanwhile, as those do that fit no more.
        at, ok = self._at, self._ok
        self._ok, self._all_ok = ok & present, False
        self._at = np.where(self._ok, at, 0)
        column = self._slot(number)
        column.present = present
        self._at, self._ok = np.where(present, self._at, at), np.where(present, self._ok, ok)
        return column

    def _slot(self, number: int) -> Column:
        _, kind, literal = self.template.slots[number]
        self._skip(literal)
        key_offset = None
        if self.template.memo == b"\x94" and self.template.is_written_out(number):
            key_offset = self._memoized.copy()
            self._memoized += 1
        if kind == "number":
            return Column(self._number(), key_offset=key_offset)
        return self._object(kind, self.template.behind(number), key_offset)

    def _number(self) -> Ints8:
        word = self._words[self._at]
        code, rest = word & _byte_mask(1), word >> np.uint64(8)
        value = _signed(rest & _byte_mask(1))
        length = np.full(len(word), 2)
        for opcode, size, signed in ((ord("M"), 2, False), (ord("J"), 4, True)):
            here = code == opcode
            if here.any():
                value = np.where(here, _from_bytes(rest, size, signed), value)
                length = np.where(here, 1 + size, length)
        here = code == 0x8A
        if here.any():
            size_of = _signed(rest & _byte_mask(1))
            body = self._words[np.where(here, np.minimum(self._at + 2, self._limit), 0)]
            value = np.where(here, _read_long(body, size_of), value)
            length = np.where(here, 2 + size_of, length)
            here &= size_of <= 8
        self._at = self._at + length
        self._clamp(here | (code == ord("K")) | (code == ord("M")) | (code == ord("J")))
        return value

    def _object(self, kind: Kind, following: list[bytes], key_offset: Ints8 | None) -> Column:
        """A reference, or a text, pool or list written out here."""
        word = self._words[self._at]
        code = word & _byte_mask(1)
        short, long = code == ord("h"), code == ord("j")
        reference = short | long
        value = np.where(
            short, _from_bytes(word >> np.uint64(8), 1, False), _from_bytes(word >> np.uint64(8), 4, False)
        )
        column = Column(value, memo_offset=np.full(len(value), -1), key_offset=key_offset)
        inline = np.flatnonzero(self._ok & ~reference)
        after = self._at + np.where(short, 2, 5)
        if len(inline):
            self._inline(kind, following, inline, column, after)
        self._at = after
        self._clamp(self._ok)
        return column

    def _inline(self, kind: Kind, following: list[bytes], rows: Ints8, column: Column, after: Ints8) -> None:
        places: Ints8 | None = None
        if kind == "stack":
            start, places = self._memo_after(self._at[rows] + 1, opcode=self._at[rows])
            end, value = self._lists(start, following)
        else:
            end, value = self._texts(rows) if kind == "text" else self._pools(rows)
            end, places = self._memo_after(end)
        if self.template.memo == b"":
            end, places = self._number_behind(end)
        after[rows] = end
        column.value[rows] = value
        if column.memo_offset is not None:
            column.memo_offset[rows] = self._memoized[rows]
        if self.template.memo != b"\x94":
            column.second = np.full(len(column.value), -1)
            column.second[rows] = places
        if self.template.memo == b"\x94":
            self._memoized[rows] += 1

    def _memo_after(self, at: Ints8, opcode: Ints8 | None = None) -> tuple[Ints8, Ints8]:
        """Position behind what memoizes the object, and its place (explicit memo only)."""
        at = np.minimum(at, self._limit)
        word = self._words[at]
        if opcode is not None:
            at = np.where(self._bytes[opcode] == ord("]"), at, self._limit)
        if self.template.memo == b"":
            return at, at
        right = (word & _byte_mask(1)) == self.template.memo[0]
        step = 1 if self.template.memo == b"\x94" else 5
        return np.where(right, at + step, self._limit + 1), _signed((word >> np.uint64(8)) & _byte_mask(4))

    def _number_behind(self, at: Ints8) -> tuple[Ints8, Ints8]:
        """The same of what is numbered once it is whole; -1 where it is not."""
        word = self._words[np.minimum(at, self._limit)]
        numbered = (word & _byte_mask(1)) == ord("r")
        return np.where(numbered, at + 5, at), np.where(numbered, _from_bytes(word >> np.uint64(8), 4, False), -1)

    def _texts(self, rows: Ints8) -> tuple[Ints8, Ints8]:
        at = self._at[rows]
        word = self._words[at]
        short = (word & _byte_mask(1)) == 0x8C
        right = short | ((word & _byte_mask(1)) == ord("X"))
        size = _signed((word >> np.uint64(8)) & np.where(short, _byte_mask(1), _byte_mask(4)))
        start = at + np.where(short, 2, 5)
        end = np.where(right & (size <= _MOST_TEXT), start + size, self._limit + 1)
        return np.minimum(end, self._limit + 1), self._interned(start, end)

    def _pools(self, rows: Ints8) -> tuple[Ints8, Ints8]:
        """Almost always (0, 0) or two small numbers; their bytes are the content."""
        at = self._at[rows]
        word = self._words[at]
        small = (word & np.uint64(0xFF00FF)) == np.uint64(ord("K") | ord("K") << 16)
        closed = (word >> np.uint64(32)) & _byte_mask(1) == 0x86
        end = np.where(small & closed, at + 5, self._limit + 1)
        return end, self._interned(at, end)

    def _interned(self, start: Ints8, end: Ints8) -> Ints8:
        """Contents as negative numbers: -1 is content 0."""
        good = end <= self._limit
        if not good.any():
            return np.zeros(len(start), dtype=np.int64)
        size = np.where(good, end - start, 0)
        # Nearly always all the same, so compare with the first before taking each apart.
        first = int(np.flatnonzero(good)[0])
        raw = self._buffer[start[first] : end[first]]
        same = good & (size == len(raw))
        rows = np.flatnonzero(same)
        same[rows] = self._equal(start[rows], raw)
        value = np.where(same, -1 - self._texts_seen.number(raw), 0)
        others = np.flatnonzero(good & ~same)
        leader = self._leaders(start[others], size[others])
        for i in np.flatnonzero(leader == np.arange(len(others))).tolist():
            row = others[i]
            value[row] = -1 - self._texts_seen.number(self._buffer[start[row] : end[row]])
        value[others] = value[others[leader]]
        return value

    def _equal(self, start: Ints8, raw: bytes) -> Bools:
        equal = np.ones(len(start), dtype=np.bool_)
        for i in range(0, len(raw), 8):
            piece = raw[i : i + 8]
            at = np.minimum(start + i, self._limit)
            equal &= (self._words[at] & _byte_mask(len(piece))) == int.from_bytes(piece, "little")
        return equal

    def _lists(self, start: Ints8, following: list[bytes]) -> tuple[Ints8, Ints8]:
        """A list of references ends where 'e' and the next key follow; the first such place is nearly always right.

        A list that is known by its bytes up to there is complete; any other is matched as a whole.
        """
        limit = self._limit
        # Where a list may end: 'e', then the list's memo number if that comes behind, then a following key.
        first = int(start.min(initial=limit))
        found = [self._find(b"e" + key, first) for key in following]
        if self.template.memo == b"":
            numbered = self._find(b"er", first)
            found += [numbered[self._equal(numbered + 6, key)] for key in following]
        closes = np.append(found[0] if len(found) == 1 else np.sort(np.concatenate(found)), limit)
        end = closes[np.searchsorted(closes, np.minimum(start, limit))] + 1
        size = np.where(start <= limit, end - start, 0)
        leader = self._leaders(start, size)
        value = np.zeros(len(start), dtype=np.int64)
        own = leader == np.arange(len(start))
        for row in np.flatnonzero(own & (size > 0)).tolist():
            value[row], end[row] = self._list_at(int(start[row]), int(end[row]))
        value = value[leader]
        # Where a list went on behind what looked like its end, others may go on differently.
        for row in np.flatnonzero(~own & ((end - start)[leader] != size)).tolist():
            value[row], end[row] = self._list_at(int(start[row]), int(end[row]))
        return end, value

    def _leaders(self, start: Ints8, size: Ints8) -> Ints8:
        """For each of these texts a row with the same bytes, or itself. Long texts are their own."""
        leaders = np.arange(len(start))
        shorter = 0
        for width in _WIDTHS:
            rows = np.flatnonzero((size > shorter) & (size <= width) & (start + width <= len(self._buffer)))
            if len(rows):
                leaders[rows] = rows[self._alike(start[rows], size[rows], width)]
            shorter = width
        return leaders

    def _alike(self, start: Ints8, size: Ints8, width: int) -> Ints8:
        """Sums of words, each with its own factor, tell texts apart quickly; only the same bytes make two the same."""
        every_place: npt.NDArray[Any] = np.ndarray(
            (len(self._buffer) - width + 1,), dtype=f"V{width}", buffer=self._buffer, strides=(1,)
        )
        words: Word = every_place[start].view(np.uint64).reshape(-1, width // 8) & _byte_masks(width)[size]
        sums = words @ _FACTORS[: width // 8] + size.astype(np.uint64)
        leaders = first_of_each(sums)
        same = (size == size[leaders]) & (words == words[leaders]).all(axis=1)
        return np.where(same, leaders, np.arange(len(start)))

    def _list_at(self, start: int, end: int) -> tuple[int, int]:
        """Its content's number, negative and one less, and where it ends."""
        contents = self._lists_seen
        known = contents.numbers.get(self._buffer[start:end]) if end - start <= _LONG else None
        if known is None:
            match = LIST.match(self._buffer, start) if self._patience > 0 else None
            looked = match if match and match.end() > start else BEGUN_LIST.match(self._buffer, start)
            self._patience -= looked.end() - start if looked else 0
            end = match.end() if match else self._limit + 1
            known = contents.number(self._buffer[start:end]) if end <= self._limit else 0
        return -1 - known, end


@cache
def _byte_masks(width: int) -> Word:
    """Return byte masks for texts of sizes 0 to `width`: 0xFF where the text has bytes."""
    bits = np.where(np.arange(width) < np.arange(width + 1)[:, None], 0xFF, 0).astype(np.uint8)
    return bits.view("<u8")


def _byte_mask(size: int) -> np.uint64:
    return np.uint64((1 << (8 * size)) - 1)


def _signed(word: Word) -> Ints8:
    return word.view(np.int64) if word.flags.c_contiguous else word.astype(np.int64)


def _from_bytes(word: Word, size: int, signed: bool) -> Ints8:
    shift = 64 - 8 * size
    value = _signed(word << np.uint64(shift))
    return value >> shift if signed else _signed(value.view(np.uint64) >> np.uint64(shift))


def _read_long(body: Word, size: Ints8) -> Ints8:
    """The lower `size` bytes, signed; 0 bytes are 0."""
    shift = (64 - 8 * np.clip(size, 0, 8)).astype(np.int64)
    whole = np.minimum(shift, 63)
    value = _signed(body << whole.astype(np.uint64)) >> whole
    return np.where(size == 0, 0, value)


NOTHING, ROW, STACK, TEXT, POOL, FRAME = range(6)


class RunMemo:
    """Kind and code of every place. Also remembers what references outside of runs were found to mean."""

    def __init__(self) -> None:
        self.kind = np.zeros(1024, dtype=np.uint8)
        self.code = np.zeros(1024, dtype=np.int32)

    def at(self, number: int) -> tuple[int, int]:
        if number >= len(self.kind):
            return NOTHING, 0
        return int(self.kind[number]), int(self.code[number])

    def reserve(self, length: int) -> None:
        if length > len(self.kind):
            grown, used = max(length, 2 * len(self.kind)), len(self.kind)
            kind, code = np.zeros(grown, dtype=np.uint8), np.zeros(grown, dtype=np.int32)
            kind[:used], code[:used] = self.kind, self.code
            self.kind, self.code = kind, code

    def put(self, places: Ints8 | int, kind: int, codes: Ints4 | int) -> None:
        self.kind[places] = kind
        self.code[places] = codes


_SHORTEST_RUN = 16
"""Below it, reading row by row is quicker than setting up the columns."""
_MOST_TEMPLATES = 8
_MOST_STACKS = 2_000_000
_TRIES = 4
"""How often a row may be part of a run that ends before it. A file can be made so that every run does."""


class Reader(Protocol):
    """The part of the unpickler that `Runs` uses."""

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
    A_ROW = object()
    """Placeholder of a row inside a run, which exists as columns only."""

    def __init__(self, interner: Interner, reader: Reader, watch: Watch | None = None) -> None:
        self.interner = interner
        self.reader = reader
        self.watch = watch
        self.count = 0
        """Number of events."""
        self.memo_used = 0
        """Places of the memo that objects inside runs have taken."""
        self.memo = RunMemo()
        self._buffer = b""
        self._forms = {kind: _Form() for kind in ROW_KINDS}
        self.lists = Contents(_MOST_STACKS)
        self.texts = Contents()

    @property
    def remembered(self) -> int:
        """Return the bytes of memory that remembered lists and texts take."""
        return sum(table.bytes + 150 * len(table.raw) for table in (self.lists, self.texts))

    def new_window(self, buffer: bytes) -> None:
        self._buffer = buffer
        for form in self._forms.values():
            form.window = None

    def recall(self, number: int) -> Any:
        """Return the object that a run has put at this index of the memo, or None."""
        kind, code = self.memo.at(number)
        if kind == STACK:
            return StackNumber(code)
        if kind == TEXT:
            return self.interner.text(code)
        if kind == POOL:
            return self.interner.pool_pair(code)
        return self.A_ROW if kind == ROW else None

    def after_row(self, row: dict[str, Any], end: int) -> None:
        """Called when the reader has finished a possible row; a run that follows it is read as columns."""
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
    """Candidates first..last of a window, made into columns. Stops early at a reference to nothing."""

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
            lists = self.owner.lists
            number = lists.stacks[content]
            if number is None:
                raw = lists.raw[content]
                number = lists.stacks[content] = self.owner.interner.stack_of(self._frames(raw))
                self.owner.reader.cost += 200
            return number
        raw = self.owner.texts.raw[content]
        return intern.pool((raw[1], raw[3])) if kind == "pool" else intern.string(raw.decode("utf-8", "replace"))

    def _frames(self, raw: bytes) -> Ints4:
        places = places_in(raw)
        if len(places) <= MOST_FRAMES:
            return self._frames_at(places)
        # A text replaces the frames that are left out.
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
