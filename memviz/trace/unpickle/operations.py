"""The operations that a pickler writes for plain data, each a few lines. No other exists here."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from memviz.errors import TraceError
from memviz.trace.unpickle.machine import MARGIN, Machine
from memviz.trace.unpickle.refusals import NOT_OURS, damaged, names_a_class

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
    """Of an operation, which is in the window whole; if the file ends within, zeros follow and reading ends there."""
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
