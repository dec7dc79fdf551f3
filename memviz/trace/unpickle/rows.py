"""The dicts that stand in long lists of a snapshot, and what columns of them become."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from memviz.trace.intern import Interner
from memviz.trace.model import (
    ACTION_NAMES,
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
"""By key: numbers as they stand; texts, pools and stacks by the interner's numbers."""


@dataclass(frozen=True)
class RowKind:
    name: str
    told_by: str
    """A key that no other dict of a snapshot has."""
    needed: frozenset[str]
    kinds: Mapping[str, Kind]
    """Of the keys that may be there."""
    made: Callable[[Decoded, int, Interner], Columns]
    apart: frozenset[str] | None = None
    """Keys of rows that are read by themselves. Any further one is left aside; None: there must be none."""

    def __hash__(self) -> int:
        return hash(self.name)

    def kind_of_value(self, key: str, value: Any) -> Kind | None:
        """None where such a row is in no run. Tomorrow's torch may write a key that nobody knows yet."""
        if key in self.kinds or self.apart is None or key in self.apart:
            return self.kinds.get(key)
        kinds: dict[type, Kind] = {int: "number", str: "text"}
        return kinds.get(type(value))


def _number(columns: Decoded, name: str, count: int) -> Ints8:
    return np.ascontiguousarray(columns[name]) if name in columns else np.zeros(count, dtype=np.int64)


def _code(columns: Decoded, name: str, count: int, default: int = 0) -> Ints4:
    return columns[name].astype(np.int32) if name in columns else np.broadcast_to(np.int32(default), count)


def _events(columns: Decoded, count: int, intern: Interner) -> Events:
    def action(text: int) -> int:
        name = intern.text(text)
        known = ACTION_NAMES.get(name)
        return known if known is not None else intern.other_action(name)

    actions = translated(columns["action"], action).astype(np.uint8)
    # What the driver had free stands under another key: an event that has it is in no run.
    address = np.where(actions == Action.OOM, FREE_UNKNOWN, _number(columns, "addr", count))
    return Events(
        action=actions,
        address=address,
        size=_number(columns, "size", count),
        stream=translated(_number(columns, "stream", count), intern.stream).astype(np.int32),
        time_us=_number(columns, "time_us", count),
        stack=_code(columns, "frames", count, NO_STACK),
        forward_stack=np.broadcast_to(np.int32(NO_STACK), count),
        context=_code(columns, "compile_context", count, EMPTY_TEXT),
        metadata=_code(columns, "user_metadata", count, EMPTY_TEXT),
        pool=_code(columns, "pool_id", count),
    )


def _blocks(columns: Decoded, count: int, _: Interner) -> BlockRows:
    return BlockRows(
        address=_number(columns, "address", count),
        size=_number(columns, "size", count),
        requested=_number(columns, "requested_size" if "requested_size" in columns else "size", count),
        state=_code(columns, "state", count),
        stack=_code(columns, "frames", count, NO_STACK),
    )


def _annotations(columns: Decoded, count: int, _: Interner) -> AnnotationRows:
    return AnnotationRows(
        name=_code(columns, "name", count),
        stage=_code(columns, "stage", count),
        device=_number(columns, "device", count),
        time_us=_number(columns, "time_us", count),
    )


EVENT = RowKind(
    "event",
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
    },
    _events,
    frozenset({"device_free", "forward_frames", "category"}),
)
BLOCK = RowKind(
    "block",
    "state",
    frozenset({"address", "size", "state"}),
    {"address": "number", "size": "number", "requested_size": "number", "state": "text", "frames": "stack"},
    _blocks,
)
ANNOTATION = RowKind(
    "annotation",
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
