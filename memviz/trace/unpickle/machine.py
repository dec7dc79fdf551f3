"""The pickle machine: its bytes, stack and memo, the operations of plain data, and the refusal of all others."""

from __future__ import annotations

import struct
from collections.abc import Callable
from itertools import repeat
from typing import Any

from memviz.errors import TraceError
from memviz.trace.limits import Budget
from memviz.trace.unpickle.columns import Runs
from memviz.trace.unpickle.rows import REFERENCE_ROW, places_in
from memviz.trace.unpickle.stream import AGAIN, TRUNCATED, PickleStream, Piece, Progress, Readable

NOT_OURS = "This does not look like what torch.cuda.memory._dump_snapshot writes."
_CHECKPOINT_MODULES = ("torch", "collections", "numpy", "transformers", "_codecs")
_REFUSED = {
    ord("c"): "a class",
    0x93: "a class",
    ord("i"): "a class",
    0x81: "a new object of a class",
    0x92: "a new object of a class",
    ord("o"): "a new object of a class",
    ord("R"): "a call of a function",
    ord("b"): "setting an object's state",
    ord("P"): "a persistent id",
    ord("Q"): "a persistent id",
    0x82: "an extension",
    0x83: "an extension",
    0x84: "an extension",
    0x8F: "a set",
    0x90: "a set",
    0x91: "a set",
    0x97: "an out-of-band buffer",
    0x98: "an out-of-band buffer",
    ord("2"): "copying the top of the stack",
    ord("0"): "dropping the top of the stack",
    ord("1"): "dropping the top of the stack",
}


def damaged() -> TraceError:
    return TraceError("Its pickle is damaged: an operation has nothing to work on.", remedy=AGAIN)


def refused_operation(code: int, at: int) -> TraceError:
    name = _REFUSED.get(code)
    if name is None:
        reason = f"It is not a pickle, or a damaged one (byte {at:,} is no known operation)."
        return TraceError(reason, remedy=NOT_OURS)
    return TraceError(f"Its pickle asks for {name}, and a snapshot holds only plain data.", remedy=NOT_OURS)


def names_a_class(module: str, name: str) -> TraceError:
    """Checkpoints are the files that people mix up with snapshots; they start by naming torch's classes."""
    if module.split(".")[0] in _CHECKPOINT_MODULES:
        reason = f"It is a model checkpoint or another program's object (a {module}.{name}), not a memory snapshot."
        return TraceError(reason, remedy="Record one with torch.cuda.memory._dump_snapshot('trace.pickle').")
    reason = f"Its pickle asks for the class {module}.{name}; classes are never loaded from a file."
    return TraceError(reason, remedy=NOT_OURS)


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
            self._widen(count)
        start = self.at
        self.at += count
        return self.buffer[start : self.at]

    def _widen(self, count: int) -> None:
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

    def line(self) -> bytes:
        """Text opcodes of protocol 0 end with a newline."""
        end = self.buffer.find(b"\n", self.at, len(self.buffer) - MARGIN)
        if end < 0:
            raise TraceError(TRUNCATED if self.ended else "Its pickle holds an endless line.", remedy=AGAIN)
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

    def deepen(self, parent: Any, children: list[Any] | tuple[Any, ...]) -> None:
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
        self.deepen(target, items)
        target.extend(items)

    def set_items(self, items: list[Any]) -> None:
        target = self.stack[-1] if self.stack else None
        if type(target) is not dict or len(items) % 2:
            raise damaged()
        keys, values = items[::2], items[1::2]
        if keys and set(map(type, keys)) != _TEXT_ALONE:
            raise TraceError("A key in its pickle is not a text.", remedy=NOT_OURS)
        self.cost += _ENTRY * len(keys)
        self.items += len(keys)
        self.deepen(target, values)
        target.update(zip(keys, values, strict=True))
        if self.runs is not None:
            end = self.at
            self._take_number_behind()
            self.runs.after_row(target, end)

    def _take_number_behind(self) -> None:
        """PyTorch's own pickler numbers a container once it is whole."""
        if self.buffer[self.at] == ord("r") and self.at + 5 <= len(self.buffer) - MARGIN:
            self.at += 5
            self.put(int.from_bytes(self.buffer[self.at - 4 : self.at], "little"))


_INTEGER_BYTES = 64
_DICT, _LIST, _TEXT = 64, 56, 50
"""Bytes that an empty one of each costs in CPython."""

_MOST_FRAMES, _BETWEEN_FRAMES = 64, 1 << 15
"""Only objects above 64 KiB stand between frames, and going back to the stream takes time."""

Operation = Callable[[Machine], None]
OPERATIONS: list[Operation | None] = [None] * 256
STOP = ord(".")


def _operation(*codes: int | str) -> Callable[[Operation], Operation]:
    def enter(function: Operation) -> Operation:
        for code in codes:
            OPERATIONS[ord(code) if isinstance(code, str) else code] = function
        return function

    return enter


def _constant(code: int | str, value: object) -> None:
    _operation(code)(lambda machine: machine.stack.append(value))


_constant("N", None)
_constant(0x88, True)
_constant(0x89, False)


@_operation(0x80)
def _protocol(machine: Machine) -> None:
    version = machine.take(1)[0]
    if version > 5:
        raise TraceError(f"It is a pickle of protocol {version}; memviz reads 0 to 5.", remedy="Update memviz.")


@_operation(0x95)
def _frame(machine: Machine) -> None:
    """Everything from the header on goes back to the stream, which takes headers out."""
    machine.reframed += 1
    if machine.reframed > _MOST_FRAMES + machine.before // _BETWEEN_FRAMES:
        raise damaged()
    end = len(machine.buffer) - MARGIN
    machine.stream.reframe(machine.buffer[machine.at - 1 : end])
    machine.before += machine.at - 1
    machine.buffer, machine.at, machine.low_water, machine.ended = b"", 0, 0, False


@_operation("(")
def _mark(machine: Machine) -> None:
    if machine.take_references():
        return
    if len(machine.marks) > 2 * machine.limits.depth:
        raise machine.budget.too_large("depth")
    machine.marks.append(machine.stack)
    machine.stack = []


@_operation("}")
def _empty_dict(machine: Machine) -> None:
    machine.cost += _DICT
    machine.newest_dict = {}
    machine.newest_dict_at = machine.at - 1
    machine.stack.append(machine.newest_dict)


@_operation("]")
def _empty_list(machine: Machine) -> None:
    machine.cost += _LIST
    machine.stack.append([])


@_operation(")")
def _empty_tuple(machine: Machine) -> None:
    machine.stack.append(())


@_operation("d")
def _dict(machine: Machine) -> None:
    items = machine.pop_mark()
    machine.stack.append({})
    machine.cost += _DICT
    machine.set_items(items)


@_operation("l")
def _list(machine: Machine) -> None:
    items = machine.pop_mark()
    machine.stack.append([])
    machine.cost += _LIST
    machine.append_to_list(items)


def _push_tuple(machine: Machine, items: list[Any]) -> None:
    made = tuple(items)
    machine.cost += _LIST + 8 * len(items)
    machine.items += len(items)
    machine.deepen(made, made)
    machine.stack.append(made)


@_operation("t")
def _tuple(machine: Machine) -> None:
    _push_tuple(machine, machine.pop_mark())


@_operation(0x85)
def _tuple1(machine: Machine) -> None:
    _push_tuple(machine, [machine.pop()])


@_operation(0x86)
def _tuple2(machine: Machine) -> None:
    second, first = machine.pop(), machine.pop()
    _push_tuple(machine, [first, second])


@_operation(0x87)
def _tuple3(machine: Machine) -> None:
    third, second, first = machine.pop(), machine.pop(), machine.pop()
    _push_tuple(machine, [first, second, third])


@_operation("a")
def _append(machine: Machine) -> None:
    item = machine.pop()
    machine.append_to_list([item])


@_operation("e")
def _appends(machine: Machine) -> None:
    items = machine.pop_mark()
    machine.append_to_list(items)


@_operation("s")
def _set_item(machine: Machine) -> None:
    value, key = machine.pop(), machine.pop()
    machine.set_items([key, value])


@_operation("u")
def _set_items(machine: Machine) -> None:
    items = machine.pop_mark()
    machine.set_items(items)


@_operation(0x94)
def _memoize(machine: Machine) -> None:
    machine.put(machine.memo_length())


@_operation("q")
def _binput(machine: Machine) -> None:
    machine.put(machine.take(1)[0])


@_operation("r")
def _long_binput(machine: Machine) -> None:
    machine.put(int.from_bytes(machine.take(4), "little"))


@_operation("p")
def _put(machine: Machine) -> None:
    machine.put(_decimal(machine.line()))


@_operation("h")
def _binget(machine: Machine) -> None:
    number = machine.buffer[machine.at]
    machine.at += 1
    if number in machine.memo:
        # Nearly all: the keys of dicts.
        machine.stack.append(machine.memo[number])
    else:
        machine.get(number)


@_operation("j")
def _long_binget(machine: Machine) -> None:
    machine.get(_number(machine, 4))


@_operation("g")
def _get(machine: Machine) -> None:
    machine.get(_decimal(machine.line()))


@_operation("K")
def _binint1(machine: Machine) -> None:
    machine.stack.append(machine.buffer[machine.at])
    machine.at += 1


@_operation("M")
def _binint2(machine: Machine) -> None:
    machine.stack.append(_number(machine, 2))


@_operation("J")
def _binint(machine: Machine) -> None:
    machine.stack.append(_number(machine, 4, signed=True))


@_operation(0x8A)
def _long1(machine: Machine) -> None:
    _push_long(machine, _number(machine, 1))


@_operation(0x8B)
def _long4(machine: Machine) -> None:
    _push_long(machine, _number(machine, 4, signed=True))


def _number(machine: Machine, count: int, *, signed: bool = False) -> int:
    """Read an operand, which is wholly in the window; past the end of the file it is zeros, and reading ends there."""
    start = machine.at
    machine.at = start + count
    return int.from_bytes(machine.buffer[start : start + count], "little", signed=signed)


def _push_long(machine: Machine, count: int) -> None:
    if not 0 <= count <= _INTEGER_BYTES:
        raise TraceError(f"Its pickle holds a number of {count} bytes.", remedy=NOT_OURS)
    machine.stack.append(int.from_bytes(machine.take(count), "little", signed=True))


@_operation("I")
def _int(machine: Machine) -> None:
    text = machine.line()
    machine.stack.append(text == b"01" if text in (b"00", b"01") else _decimal(text))


@_operation("L")
def _long(machine: Machine) -> None:
    machine.stack.append(_decimal(machine.line().removesuffix(b"L")))


def _decimal(text: bytes) -> int:
    try:
        if len(text) > 3 * _INTEGER_BYTES:
            raise ValueError
        return int(text)
    except ValueError:
        raise TraceError("Its pickle holds something else where a number belongs.", remedy=NOT_OURS) from None


@_operation("F")
def _float(machine: Machine) -> None:
    try:
        machine.stack.append(float(machine.line()))
    except ValueError:
        raise TraceError("Its pickle holds something else where a number belongs.", remedy=NOT_OURS) from None


@_operation("G")
def _binfloat(machine: Machine) -> None:
    machine.stack.append(struct.unpack(">d", machine.take(8))[0])


def _push_text(machine: Machine, raw: bytes) -> None:
    # A snapshot's texts are shown and written again: what is not UTF-8 becomes a replacement character.
    machine.cost += _TEXT + 4 * len(raw)
    machine.stack.append(raw.decode("utf-8", "replace"))


def _push_bytes(machine: Machine, count: int) -> None:
    machine.cost += _TEXT + count
    machine.stack.append(machine.take(count))


@_operation(0x8C)
def _short_binunicode(machine: Machine) -> None:
    _push_text(machine, machine.take(machine.take(1)[0]))


@_operation("X")
def _binunicode(machine: Machine) -> None:
    _push_text(machine, machine.take(int.from_bytes(machine.take(4), "little")))


@_operation(0x8D)
def _binunicode8(machine: Machine) -> None:
    _push_text(machine, machine.take(int.from_bytes(machine.take(8), "little")))


@_operation("V")
def _unicode(machine: Machine) -> None:
    _push_text(machine, machine.line().decode("raw-unicode-escape", "replace").encode("utf-8", "replace"))


@_operation("S")
def _string(machine: Machine) -> None:
    """Python 2's text, quoted. Escapes are left as they stand."""
    text = machine.line()
    if len(text) < 2 or text[:1] not in b"'\"" or text[-1:] != text[:1]:
        raise damaged()
    _push_text(machine, text[1:-1])


@_operation("U")
def _short_binstring(machine: Machine) -> None:
    _push_text(machine, machine.take(machine.take(1)[0]))


@_operation("T")
def _binstring(machine: Machine) -> None:
    count = int.from_bytes(machine.take(4), "little", signed=True)
    if count < 0:
        raise damaged()
    _push_text(machine, machine.take(count))


@_operation("C")
def _short_binbytes(machine: Machine) -> None:
    _push_bytes(machine, machine.take(1)[0])


@_operation("B")
def _binbytes(machine: Machine) -> None:
    _push_bytes(machine, int.from_bytes(machine.take(4), "little"))


@_operation(0x8E)
def _binbytes8(machine: Machine) -> None:
    _push_bytes(machine, int.from_bytes(machine.take(8), "little"))


@_operation("c")
def _global(machine: Machine) -> None:
    raise names_a_class(_shown(machine.line()), _shown(machine.line()))


@_operation(0x93)
def _stack_global(machine: Machine) -> None:
    name, module = machine.pop(), machine.pop()
    raise names_a_class(str(module)[:100], str(name)[:100])


def _shown(raw: bytes) -> str:
    return raw.decode("ascii", "replace")[:100]
