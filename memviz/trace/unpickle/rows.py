"""Rows of long lists in a snapshot: their kinds, their columns, and the template by which one file writes them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from memviz.trace.intern import Interner
from memviz.trace.model import (
    EMPTY_TEXT,
    FREE_UNKNOWN,
    NO_STACK,
    Action,
    AnnotationRows,
    BlockRows,
    Columns,
    Events,
    Ints4,
    Ints8,
)

Kind = Literal["text", "number", "pool", "stack"]
Decoded = Mapping[str, Ints8]
"""Values by key: numbers as they are; texts, pools and stacks as the interner's numbers."""


@dataclass(frozen=True)
class RowKind:
    told_by: str
    """A key that no other dict of a snapshot has."""
    needed: frozenset[str]
    kinds: Mapping[str, Kind]
    """Kinds of values by the keys that a row may have."""
    made: Callable[[Decoded, int, Interner], Columns]
    apart: frozenset[str] | None = None
    """Keys of rows that are read by themselves. Any further one is left aside; None: there must be none."""

    def __hash__(self) -> int:
        return hash(self.told_by)

    def kind_of_value(self, key: str, value: Any) -> Kind | None:
        """None if such a row is in no run. Later releases of torch may write unknown keys."""
        if key in self.kinds or self.apart is None or key in self.apart:
            return self.kinds.get(key)
        kinds: dict[type, Kind] = {int: "number", str: "text"}
        return kinds.get(type(value))


def _number(columns: Decoded, name: str, count: int) -> Ints8:
    return np.ascontiguousarray(columns[name]) if name in columns else np.zeros(count, dtype=np.int64)


def _code_column(columns: Decoded, name: str, count: int, default: int = 0) -> Ints4:
    return columns[name].astype(np.int32) if name in columns else np.broadcast_to(np.int32(default), count)


def _events(columns: Decoded, count: int, intern: Interner) -> Events:
    actions = translated(columns["action"], lambda text: intern.action(intern.text(text))).astype(np.uint8)
    # The driver's free memory has another key: an event with it is in no run.
    address = np.where(actions == Action.OOM, FREE_UNKNOWN, _number(columns, "addr", count))
    return Events(
        action=actions,
        address=address,
        size=_number(columns, "size", count),
        stream=translated(_number(columns, "stream", count), intern.stream).astype(np.int32),
        time_us=_number(columns, "time_us", count),
        stack=_code_column(columns, "frames", count, NO_STACK),
        forward_stack=_code_column(columns, "forward_frames", count, NO_STACK),
        context=_code_column(columns, "compile_context", count, EMPTY_TEXT),
        metadata=_code_column(columns, "user_metadata", count, EMPTY_TEXT),
        pool=_code_column(columns, "pool_id", count),
    )


def _blocks(columns: Decoded, count: int, _: Interner) -> BlockRows:
    return BlockRows(
        address=_number(columns, "address", count),
        size=_number(columns, "size", count),
        requested=_number(columns, "requested_size" if "requested_size" in columns else "size", count),
        state=_code_column(columns, "state", count),
        stack=_code_column(columns, "frames", count, NO_STACK),
    )


def _annotations(columns: Decoded, count: int, _: Interner) -> AnnotationRows:
    return AnnotationRows(
        name=_code_column(columns, "name", count),
        stage=_code_column(columns, "stage", count),
        device=_number(columns, "device", count),
        time_us=_number(columns, "time_us", count),
    )


EVENT = RowKind(
    "action",
    frozenset({"action", "addr", "size"}),
    {
        "action": "text",
        "addr": "number",
        "size": "number",
        "stream": "number",
        "time_us": "number",
        "compile_context": "text",
        "user_metadata": "text",
        "pool_id": "pool",
        "frames": "stack",
        "forward_frames": "stack",
    },
    _events,
    frozenset({"device_free", "category"}),
)
BLOCK = RowKind(
    "state",
    frozenset({"address", "size", "state"}),
    {"address": "number", "size": "number", "requested_size": "number", "state": "text", "frames": "stack"},
    _blocks,
)
ANNOTATION = RowKind(
    "stage",
    frozenset({"name", "stage"}),
    {"name": "text", "stage": "text", "device": "number", "time_us": "number"},
    _annotations,
)
ROW_KINDS = (EVENT, BLOCK, ANNOTATION)


def kind_of(row: Mapping[str, Any]) -> RowKind | None:
    for kind in ROW_KINDS:
        if kind.told_by in row:
            return kind
    return None


_FAR = 16
"""Places of a table for each value: beyond that sorting is cheaper."""


def translated(values: Ints8, translate: Callable[[int], int]) -> Ints8:
    """Each distinct value translated once; there are few of them, mostly one."""
    if not len(values):
        return values
    if (values == values[0]).all():
        return np.broadcast_to(np.int64(translate(int(values[0]))), len(values))
    lowest = int(values.min())
    span = int(values.max()) - lowest + 1
    if span > _FAR * len(values):
        different, inverse = np.unique(values, return_inverse=True)
        return np.array([translate(value) for value in different.tolist()], dtype=np.int64)[inverse]
    above = values - lowest
    table = np.zeros(span, dtype=np.int64)
    table[above] = 1
    found = np.flatnonzero(table)
    table[found] = [translate(value) for value in (found + lowest).tolist()]
    return table[above]


@dataclass(frozen=True)
class Template:
    """How this file writes an event, a block or an annotation."""

    memo: bytes
    """The opcode behind each new object: MEMOIZE, or 'r' (LONG_BINPUT with a number behind it).

    Empty where objects are numbered only once they are whole, or never: PyTorch's own C++ pickler does so.
    """
    slots: tuple[tuple[str, Kind, bytes], ...]
    """Name, kind, and the bytes of the key: they fetch its text from the memo, or write it out."""
    optional: frozenset[str] = frozenset()
    """Names of slots that a row may go without: torch leaves out the frames of what was recorded without a stack."""

    def covers(self, names: list[str]) -> bool:
        """Return True if a row with these keys has this form."""
        wanted = [name for name, _, _ in self.slots if name not in self.optional or name in names]
        return names == wanted

    def also(self, other: Template) -> Template | None:
        """The form of rows of both, where one only has more keys than the other."""
        longer, shorter = (self, other) if len(self.slots) >= len(other.slots) else (other, self)
        missing = [slot for slot in longer.slots if slot not in shorter.slots]
        kept = tuple(slot for slot in longer.slots if slot in shorter.slots)
        optional = self.optional | other.optional | {name for name, _, _ in missing}
        apart = self.memo != other.memo or kept != shorter.slots or longer.slots[0] in missing
        if apart or any(not self._may_miss(slot) for slot in longer.slots if slot[0] in optional):
            return None
        return Template(self.memo, longer.slots, optional)

    @staticmethod
    def _may_miss(slot: tuple[str, Kind, bytes]) -> bool:
        """A number that is not there may stand for another one, and keys written out tell nothing apart."""
        _, kind, key = slot
        return kind != "number" and key[:1] in (b"h", b"j")

    def behind(self, slot: int) -> list[bytes]:
        """Return the keys or the opcode that can follow the value of a slot."""
        found = []
        for name, _, key in self.slots[slot + 1 :]:
            found.append(key)
            if name not in self.optional:
                return found
        return [*found, b"u"]

    def is_written_out(self, slot: int) -> bool:
        """torch makes some keys anew for each annotation."""
        return self.slots[slot][2][:1] not in (b"h", b"j")

    @property
    def writes_keys_out(self) -> bool:
        return any(map(self.is_written_out, range(len(self.slots))))


def template_of(buffer: bytes, start: int, end: int, row: Mapping[str, Any], kind: RowKind) -> Template | None:
    """None where a key is unknown, or a value of another form."""
    kinds: dict[str, Kind] = {}
    for key, value in row.items():
        kind_of_value = kind.kind_of_value(key, value)
        if kind_of_value is None:
            return None
        kinds[key] = kind_of_value
    for memo in (b"\x94", b"r", b""):
        slots = _Steps(buffer, start, end, memo).slots(kinds)
        if slots is not None:
            return Template(memo, slots)
    return None


class _Steps:
    """One row's bytes, walked over once. -1 is a place where they are of another form."""

    def __init__(self, buffer: bytes, start: int, end: int, memo: bytes) -> None:
        self.buffer = buffer
        self.start = start
        self.end = end
        self.memo = memo

    def slots(self, kinds: Mapping[str, Kind]) -> tuple[tuple[str, Kind, bytes], ...] | None:
        at = self.memoized(self.literal(self.start, b"}"))
        at = self.literal(at, b"(")
        slots = []
        for key, kind in kinds.items():
            behind = self.key(at)
            slots.append((key, kind, self.buffer[at:behind]))
            at = self.value(behind, kind)
            if at < 0:
                return None
        return tuple(slots) if self.literal(at, b"u") == self.end else None

    def key(self, at: int) -> int:
        behind = self.reference(at)
        # Written out and numbered, each row's would be other bytes.
        return behind if behind > 0 or at < 0 or self.memo == b"r" else self.memoized(self.text(at))

    def value(self, at: int, kind: Kind) -> int:
        if kind == "number":
            return self.number(at)
        if self.reference(at) > 0:
            return self.reference(at)
        if kind == "text":
            return self.whole(self.memoized(self.text(at)))
        if kind == "pool":
            return self.whole(self.memoized(self.literal(self.number(self.number(at)), b"\x86")))
        return self.whole(self.list(self.memoized(self.literal(at, b"]"))))

    def literal(self, at: int, expected: bytes) -> int:
        return at + 1 if 0 <= at < self.end and self.buffer[at : at + 1] == expected else -1

    def memoized(self, at: int) -> int:
        return at if at < 0 or not self.memo else self.numbered(at)

    def whole(self, at: int) -> int:
        """Behind an object that is numbered only now, if at all."""
        return self.step(at, 5) if not self.memo and self.buffer[at : at + 1] == b"r" else at

    def numbered(self, at: int) -> int:
        return self.step(self.literal(at, self.memo), 4 if self.memo == b"r" else 0)

    def step(self, at: int, size: int) -> int:
        return at + size if 0 <= at <= self.end - size else -1

    def reference(self, at: int) -> int:
        return self.step(at, {b"h": 2, b"j": 5}.get(self.buffer[at : at + 1], self.end + 1)) if at >= 0 else -1

    def number(self, at: int) -> int:
        if at < 0:
            return -1
        code = self.buffer[at : at + 1]
        if code == b"\x8a":
            size = self.buffer[at + 1]
            return self.step(at, 2 + size) if size <= 8 else -1
        return self.step(at, {b"K": 2, b"M": 3, b"J": 5}.get(code, self.end + 1))

    def text(self, at: int) -> int:
        code = self.buffer[at : at + 1]
        if code == b"\x8c":
            return self.step(at, 2 + self.buffer[at + 1])
        return self.step(at, 5 + int.from_bytes(self.buffer[at + 1 : at + 5], "little")) if code == b"X" else -1

    def list(self, at: int) -> int:
        if at < 0:
            return -1
        match = LIST.match(self.buffer, at, self.end)
        return match.end() if match else -1


_REFERENCE = rb"(?:h.|j....)"
LIST = re.compile(rb"(?:\((?>" + _REFERENCE + rb"*)e|" + _REFERENCE + rb"a|)", re.DOTALL)
"""Its first bytes say what a reference is, so it is read once, from left to right: nothing is tried twice."""
BEGUN_LIST = re.compile(rb"\((?>" + _REFERENCE + rb"*)", re.DOTALL)
"""The prefix that was scanned where LIST does not match."""
_REFERENCES = re.compile(rb"((?:j....)*+)((?:h.)*+)", re.DOTALL)
REFERENCE_ROW = re.compile(rb"(?>" + _REFERENCE + rb"{2,})e", re.DOTALL)
"""A list of references only, after its mark."""


_LONG_REFERENCE = np.dtype([("code", "u1"), ("place", "<u4")])
_LONG_FORMS = [b"j" + number.to_bytes(4, "little") for number in range(256)]


def places_in(row: bytes) -> Ints8:
    """The places in the memo that a list of references names, with its '(' or without.

    Short references are written as long ones, so that the places are adjacent for any count.
    """
    same = _REFERENCES.findall(row, 1 if row[:1] == b"(" else 0)
    parts = [long + b"".join(map(_LONG_FORMS.__getitem__, short[1::2])) if short else long for long, short in same]
    return np.frombuffer(b"".join(parts), _LONG_REFERENCE)["place"].astype(np.int64)
