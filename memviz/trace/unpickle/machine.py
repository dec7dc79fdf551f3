"""The pickle machine: its bytes, stack and memo, the operations of plain data, and the refusal of all others."""

from __future__ import annotations

import struct
from collections.abc import Callable
from itertools import repeat
from typing import Any

from memviz.errors import TraceError
from memviz.trace.intern import NOT_A_SNAPSHOT
from memviz.trace.limits import Budget
from memviz.trace.unpickle.columns import Runs
from memviz.trace.unpickle.rows import REFERENCE_ROW, places_in
from memviz.trace.unpickle.stream import AGAIN, TRUNCATED, PickleStream, Piece, Progress, Readable

_CHECKPOINT_MODULES = ("torch", "collections", "numpy", "transformers", "_codecs")
_REFUSED = {
    code: name
    for codes, name in (
        (b"c\x93i", "a class"),
        (b"\x81\x92o", "a new object of a class"),
        (b"R", "a call of a function"),
        (b"b", "setting an object's state"),
        (b"PQ", "a persistent id"),
        (b"\x82\x83\x84", "an extension"),
        (b"\x8f\x90\x91", "a set"),
        (b"\x97\x98", "an out-of-band buffer"),
        (b"2", "copying the top of the stack"),
        (b"01", "dropping the top of the stack"),
    )
    for code in codes
}


def damaged() -> TraceError:
    return TraceError("Its pickle is damaged: an operation has no operand.", remedy=AGAIN)


def refused_operation(code: int, at: int) -> TraceError:
    name = _REFUSED.get(code)
    if name is None:
        reason = f"It is not a pickle, or it is damaged (byte {at:,} is no known operation)."
        return TraceError(reason, remedy=NOT_A_SNAPSHOT)
    return TraceError(f"Its pickle contains {name}; a snapshot has only plain data.", remedy=NOT_A_SNAPSHOT)


def names_a_class(module: str, name: str) -> TraceError:
    """Checkpoints are the files that people mix up with snapshots; they start by naming torch's classes."""
    if module.split(".")[0] in _CHECKPOINT_MODULES:
        reason = f"It is a model checkpoint or another program's object (a {module}.{name}), not a memory snapshot."
        return TraceError(reason, remedy="Record one with torch.cuda.memory._dump_snapshot('trace.pickle').")
    reason = f"Its pickle contains the class {module}.{name}; classes are never loaded from a file."
    return TraceError(reason, remedy=NOT_A_SNAPSHOT)


_LOW_WATER = 1 << 16
"""An operation with its numbers, and a line of protocol 0, always fit into what is left of a window."""
MARGIN = 16
"""Zero bytes behind every window, so that words may be read at its very end."""
_ENTRY, _ITEM, _MEMO = 100, 40, 100
"""Bytes that an entry of a dict, an item of a list and a place in the memo cost in CPython, rather too much."""
_CONTAINERS = frozenset((dict, list, tuple))
_TEXT_ALONE = {str}


class RefersToRow(Exception):
    """The file names a row a second time; such a file is read without runs."""


class Machine:
    def __init__(self, file: Readable, budget: Budget, progress: Progress | None) -> None:
        self.budget = budget
        self.limits = budget.limits
        self.progress = progress
        self.stream = PickleStream(file)
        self.buffer = b""
        self.at = 0
        self.low_water = 0
        self.before = 0
        self.ended = False
        self.stack: list[Any] = []
        self.marks: list[list[Any]] = []
        self.memo: dict[int, Any] = {}
        self.cost = 0
        self.items = 0
        self.depths: dict[int, int] = {}
        self.newest_dict: dict[str, Any] | None = None
        self.newest_dict_at = -1
        self.reframed = 0
        self.runs: Runs | None = None
        """None where every row is read by itself."""

    # -- bytes ---------------------------------------------------------------------------------------

    def refill(self) -> None:
        if self.ended:
            raise TraceError(TRUNCATED, remedy=AGAIN)
        self.check_limits()
        rest = self.buffer[self.at : len(self.buffer) - MARGIN] if self.buffer else b""
        more = self.stream.read()
        self.ended = not more
        self._set_window([rest, *more])

    def _set_window(self, pieces: list[Piece]) -> None:
        self.before += self.at
        self.newest_dict_at = -1
        self.buffer, self.at = b"".join((*pieces, bytes(MARGIN))), 0
        self.low_water = len(self.buffer) - MARGIN - (0 if self.ended else _LOW_WATER)
        if self.runs is not None:
            self.runs.new_window(self.buffer)

    def take(self, count: int) -> bytes:
        """The next bytes, however many windows they span."""
        if count > len(self.buffer) - MARGIN - self.at:
            if count > self.limits.memory_bytes:
                raise self.budget.too_large("memory_bytes")
            pieces: list[Piece] = [self.buffer[self.at : len(self.buffer) - MARGIN]]
            have = len(pieces[0])
            while have < count:
                more = self.stream.read()
                if not more:
                    raise TraceError(TRUNCATED, remedy=AGAIN)
                pieces += more
                have += sum(map(len, more))
            self._set_window(pieces)
        start = self.at
        self.at += count
        return self.buffer[start : self.at]

    def line(self) -> bytes:
        """Text opcodes of protocol 0 end with a newline."""
        end = self.buffer.find(b"\n", self.at, len(self.buffer) - MARGIN)
        if end < 0:
            raise TraceError(TRUNCATED if self.ended else "Its pickle has an endless line.", remedy=AGAIN)
        start, self.at = self.at, end + 1
        return self.buffer[start:end]

    # -- bounds --------------------------------------------------------------------------------------

    def check_limits(self) -> None:
        if self.progress is not None:
            self.progress(self.stream.consumed, 0)
        spent = self.cost + _ITEM * len(self.stack) + _MEMO * (len(self.memo) + len(self.depths))
        spent += self.runs.remembered if self.runs is not None else 0
        if spent + self.budget.spent > self.limits.memory_bytes:
            raise self.budget.too_large("memory_bytes")
        if self.items > self.limits.items:
            raise self.budget.too_large("items")
        if self.runs is not None and self.runs.count > self.limits.events:
            raise self.budget.too_large("events")
        self.budget.check()

    def check_depth(self, parent: Any, children: list[Any] | tuple[Any, ...]) -> None:
        if _CONTAINERS.isdisjoint(map(type, children)):
            return
        depths = self.depths
        depth = 1 + max(map(depths.get, map(id, children), repeat(1)))
        if depth > self.limits.depth:
            raise self.budget.too_large("depth")
        depths[id(parent)] = max(depth, depths.get(id(parent), 0))

    # -- stack and memo ------------------------------------------------------------------------------

    def pop(self) -> Any:
        if not self.stack:
            raise damaged()
        return self.stack.pop()

    def pop_mark(self) -> list[Any]:
        if not self.marks:
            raise damaged()
        items, self.stack = self.stack, self.marks.pop()
        return items

    def put(self, number: int) -> None:
        if not self.stack:
            raise damaged()
        self.memo[number] = self.stack[-1]

    def memo_length(self) -> int:
        return len(self.memo) + (self.runs.memo_used if self.runs is not None else 0)

    def get(self, number: int) -> None:
        try:
            self.stack.append(self.memo[number])
        except KeyError:
            self.stack.append(self._from_runs(number))

    def take_references(self) -> bool:
        """A list of what is in the memo already, as stacks are, in one step, where that is what follows a mark."""
        if not self.stack or type(self.stack[-1]) is not list:
            return False
        row = REFERENCE_ROW.match(self.buffer, self.at, len(self.buffer) - MARGIN)
        if row is None:
            return False
        memo, places = self.memo, places_in(row[0]).tolist()
        try:
            items = list(map(memo.__getitem__, places))
        except KeyError:
            items = [memo[place] if place in memo else self._from_runs(place) for place in places]
        self.at = row.end()
        self.append_to_list(items)
        return True

    def _from_runs(self, number: int) -> Any:
        recalled = self.runs.recall(number) if self.runs is not None else None
        if recalled is None:
            raise damaged()
        if recalled is Runs.A_ROW:
            raise RefersToRow
        return recalled

    def append_to_list(self, items: list[Any]) -> None:
        target = self.stack[-1] if self.stack else None
        if type(target) is not list:
            raise damaged()
        self.cost += _ITEM * len(items)
        self.items += len(items)
        self.check_depth(target, items)
        target.extend(items)

    def set_items(self, items: list[Any]) -> None:
        target = self.stack[-1] if self.stack else None
        if type(target) is not dict or len(items) % 2:
            raise damaged()
        keys, values = items[::2], items[1::2]
        if keys and set(map(type, keys)) != _TEXT_ALONE:
            raise TraceError("A key in its pickle is not a text.", remedy=NOT_A_SNAPSHOT)
        self.cost += _ENTRY * len(keys)
        self.items += len(keys)
        self.check_depth(target, values)
        target.update(zip(keys, values, strict=True))
        if self.runs is not None:
            end = self.at
            # PyTorch's own pickler numbers a container once it is whole.
            if self.buffer[self.at] == ord("r") and self.at + 5 <= len(self.buffer) - MARGIN:
                self.at += 5
                self.put(int.from_bytes(self.buffer[self.at - 4 : self.at], "little"))
            self.runs.after_row(target, end)


_INTEGER_BYTES = 64
_DICT, _LIST, _TEXT = 64, 56, 50
"""Bytes that an empty one of each costs in CPython."""

_MOST_FRAMES, _BETWEEN_FRAMES = 64, 1 << 15
"""Only objects above 64 KiB stand between frames, and going back to the stream takes time."""

Operation = Callable[[Machine], None]
STOP = ord(".")


def _take_protocol(machine: Machine, version: int) -> None:
    if version > 5:
        raise TraceError(f"It is a pickle of protocol {version}; memviz reads 0 to 5.", remedy="Update memviz.")


def _take_frame(machine: Machine) -> None:
    """Give everything from the header on back to the stream, which takes headers out."""
    machine.reframed += 1
    if machine.reframed > _MOST_FRAMES + machine.before // _BETWEEN_FRAMES:
        raise damaged()
    end = len(machine.buffer) - MARGIN
    machine.stream.reframe(machine.buffer[machine.at - 1 : end])
    machine.before += machine.at - 1
    machine.buffer, machine.at, machine.low_water, machine.ended = b"", 0, 0, False


def _push_mark(machine: Machine) -> None:
    if machine.take_references():
        return
    if len(machine.marks) > 2 * machine.limits.depth:
        raise machine.budget.too_large("depth")
    machine.marks.append(machine.stack)
    machine.stack = []


def _push_empty_dict(machine: Machine) -> None:
    machine.cost += _DICT
    machine.newest_dict = {}
    machine.newest_dict_at = machine.at - 1
    machine.stack.append(machine.newest_dict)


def _push_empty_list(machine: Machine) -> None:
    machine.cost += _LIST
    machine.stack.append([])


def _push_dict(machine: Machine) -> None:
    items = machine.pop_mark()
    machine.stack.append({})
    machine.cost += _DICT
    machine.set_items(items)


def _push_list(machine: Machine) -> None:
    items = machine.pop_mark()
    _push_empty_list(machine)
    machine.append_to_list(items)


def _push_tuple(machine: Machine, items: list[Any]) -> None:
    made = tuple(items)
    machine.cost += _LIST + 8 * len(items)
    machine.items += len(items)
    machine.check_depth(made, made)
    machine.stack.append(made)


def _pop_items(machine: Machine, count: int) -> list[Any]:
    return [machine.pop() for _ in range(count)][::-1]


def _get_short(machine: Machine) -> None:
    number = machine.buffer[machine.at]
    machine.at += 1
    if number in machine.memo:
        # Nearly all: the keys of dicts.
        machine.stack.append(machine.memo[number])
    else:
        machine.get(number)


def _push_byte(machine: Machine) -> None:
    machine.stack.append(machine.buffer[machine.at])
    machine.at += 1


def _read_operand(machine: Machine, count: int, *, signed: bool = False) -> int:
    """Read an operand, which is wholly in the window; past the end of the file it is zeros, and reading ends there."""
    start = machine.at
    machine.at = start + count
    return int.from_bytes(machine.buffer[start : start + count], "little", signed=signed)


def _push_int(count: int, *, signed: bool) -> Operation:
    return lambda machine: machine.stack.append(_read_operand(machine, count, signed=signed))


def _push_long(machine: Machine, count: int) -> None:
    if not 0 <= count <= _INTEGER_BYTES:
        raise TraceError(f"Its pickle holds a number of {count} bytes.", remedy=NOT_A_SNAPSHOT)
    machine.stack.append(int.from_bytes(machine.take(count), "little", signed=True))


def _push_decimal_or_bool(machine: Machine) -> None:
    text = machine.line()
    machine.stack.append(text == b"01" if text in (b"00", b"01") else _decimal(text))


def _decimal(text: bytes) -> int:
    try:
        if len(text) > 3 * _INTEGER_BYTES:
            raise ValueError
        return int(text)
    except ValueError:
        raise TraceError("Its pickle has something else in place of a number.", remedy=NOT_A_SNAPSHOT) from None


def _push_float(machine: Machine) -> None:
    try:
        machine.stack.append(float(machine.line()))
    except ValueError:
        raise TraceError("Its pickle has something else in place of a number.", remedy=NOT_A_SNAPSHOT) from None


def _push_text(machine: Machine, raw: bytes) -> None:
    # A snapshot's texts are shown and written again: what is not UTF-8 becomes a replacement character.
    machine.cost += _TEXT + 4 * len(raw)
    machine.stack.append(raw.decode("utf-8", "replace"))


def _take_text(machine: Machine, count: int) -> None:
    if count < 0:
        raise damaged()
    _push_text(machine, machine.take(count))


def _take_bytes(machine: Machine, count: int) -> None:
    machine.cost += _TEXT + count
    machine.stack.append(machine.take(count))


def _push_escaped_text(machine: Machine) -> None:
    _push_text(machine, machine.line().decode("raw-unicode-escape", "replace").encode("utf-8", "replace"))


def _push_quoted_text(machine: Machine) -> None:
    """Python 2's text, quoted. Escapes are left as they stand."""
    text = machine.line()
    if len(text) < 2 or text[:1] not in b"'\"" or text[-1:] != text[:1]:
        raise damaged()
    _push_text(machine, text[1:-1])


def _refuse_global(machine: Machine) -> None:
    module, name = (machine.line().decode("ascii", "replace")[:100] for _ in range(2))
    raise names_a_class(module, name)


def _refuse_stack_global(machine: Machine) -> None:
    name, module = machine.pop(), machine.pop()
    raise names_a_class(str(module)[:100], str(name)[:100])


def _with_operand(take: Callable[[Machine, int], None], size: int, *, signed: bool = False) -> Operation:
    """Read an operand of `size` bytes, mostly the length of what follows, and hand it on."""
    return lambda machine: take(machine, int.from_bytes(machine.take(size), "little", signed=signed))


def _constant(value: object) -> Operation:
    return lambda machine: machine.stack.append(value)


_OPERATION_OF: dict[int | str, Operation] = {
    0x80: _with_operand(_take_protocol, 1),
    0x95: _take_frame,
    "(": _push_mark,
    "N": _constant(None),
    0x88: _constant(True),
    0x89: _constant(False),
    ")": _constant(()),
    "}": _push_empty_dict,
    "d": _push_dict,
    "s": lambda machine: machine.set_items(_pop_items(machine, 2)),
    "u": lambda machine: machine.set_items(machine.pop_mark()),
    "]": _push_empty_list,
    "l": _push_list,
    "e": lambda machine: machine.append_to_list(machine.pop_mark()),
    "a": lambda machine: machine.append_to_list([machine.pop()]),
    "t": lambda machine: _push_tuple(machine, machine.pop_mark()),
    0x85: lambda machine: _push_tuple(machine, _pop_items(machine, 1)),
    0x86: lambda machine: _push_tuple(machine, _pop_items(machine, 2)),
    0x87: lambda machine: _push_tuple(machine, _pop_items(machine, 3)),
    0x94: lambda machine: machine.put(machine.memo_length()),
    "q": _with_operand(Machine.put, 1),
    "r": _with_operand(Machine.put, 4),
    "p": lambda machine: machine.put(_decimal(machine.line())),
    "h": _get_short,
    "j": lambda machine: machine.get(_read_operand(machine, 4)),
    "g": lambda machine: machine.get(_decimal(machine.line())),
    "K": _push_byte,
    "M": _push_int(2, signed=False),
    "J": _push_int(4, signed=True),
    0x8A: _with_operand(_push_long, 1),
    0x8B: _with_operand(_push_long, 4, signed=True),
    "I": _push_decimal_or_bool,
    "F": _push_float,
    "L": lambda machine: machine.stack.append(_decimal(machine.line().removesuffix(b"L"))),
    "G": lambda machine: machine.stack.append(struct.unpack(">d", machine.take(8))[0]),
    0x8C: _with_operand(_take_text, 1),
    "X": _with_operand(_take_text, 4),
    0x8D: _with_operand(_take_text, 8),
    "U": _with_operand(_take_text, 1),
    "T": _with_operand(_take_text, 4, signed=True),
    "V": _push_escaped_text,
    "S": _push_quoted_text,
    "C": _with_operand(_take_bytes, 1),
    "B": _with_operand(_take_bytes, 4),
    0x8E: _with_operand(_take_bytes, 8),
    "c": _refuse_global,
    0x93: _refuse_stack_global,
}
_BY_CODE = {ord(code) if isinstance(code, str) else code: operation for code, operation in _OPERATION_OF.items()}
OPERATIONS: list[Operation | None] = [_BY_CODE.get(code) for code in range(256)]
"""One for each byte; None is refused."""
