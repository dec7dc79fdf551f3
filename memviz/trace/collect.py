"""Events as a file gives them, turned into columns a batch at a time."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable
from dataclasses import fields
from itertools import groupby, islice
from typing import Any

import numpy as np
import numpy.typing as npt

from memviz.errors import TraceError
from memviz.trace.intern import NOT_A_SNAPSHOT, Interner, valid_unicode
from memviz.trace.model import FREE_UNKNOWN, Action, Category, Events, Ints4, Ints8
from memviz.units import kind_text

LARGEST_SUM = 2**62
"""Sums of sizes stay below it, so that no total can overflow an int64."""

_MOST_BYTES = 2**63 - 1
_BATCH = 16_384
_MOST_WRITTEN_OUT = 1 << 20
"""Characters; far fewer are kept."""
_SCALARS = (str, int, float, bool, type(None))
_PLACES = {"action", "addr", "size", "stream", "time_us", "pool_id", "device_free"}
_KNOWN_KEYS = _PLACES | {"frames", "forward_frames", "compile_context", "user_metadata", "category"}
_CATEGORY_NAMES = {category.name.lower(): category for category in Category} | {"autograd_detail": Category.ACTIVATION}
"""Written only by torch's own conversion of a profile into a snapshot."""


class EventCollector:
    """Takes dicts, or Events that a reader has already decoded, in order; gives one Events."""

    def __init__(self, interner: Interner) -> None:
        self.interner = interner
        self.unknown_keys: set[str] = set()
        self._parts: list[Events] = []
        self._categories: list[npt.NDArray[np.uint8]] = []

    def add(self, items: Iterable[Any]) -> None:
        for kind, group in groupby(items, key=type):
            if kind is Events:
                for part in group:
                    self._parts.append(part)
                    self._categories.append(np.zeros(len(part), dtype=np.uint8))
            elif kind is dict:
                while batch := list(islice(group, _BATCH)):
                    self.interner.budget.check()
                    self._parts.append(self._decode(batch))
                    named = [category_of(entry["category"]) if "category" in entry else 0 for entry in batch]
                    self._categories.append(np.array(named, dtype=np.uint8))
            else:
                raise TraceError(f"An event is {kind_text(kind)}, not a dict.")

    def finish(self) -> tuple[Events, npt.NDArray[np.uint8] | None]:
        """All events, and their categories if the file names any."""
        events = self._parts[0] if len(self._parts) == 1 else joined_events(self._parts or [Events.empty()])
        # What could not be had is no part of any sum.
        moved = events.size[events.action != Action.OOM]
        if (events.size < 0).any() or float(moved.sum(dtype=np.float64)) >= LARGEST_SUM:
            raise TraceError("The sizes of its events are negative or beyond any real memory.")
        categories = np.concatenate([*self._categories, np.zeros(0, dtype=np.uint8)])
        return events, categories if categories.any() else None

    def _decode(self, batch: list[dict[str, Any]]) -> Events:
        for keys in {tuple(entry) for entry in batch}:
            self.unknown_keys.update(name_of(key) for key in keys if key not in _KNOWN_KEYS)
        intern = self.interner
        action = np.array([self._action(entry.get("action")) for entry in batch], dtype=np.uint8)
        return Events(
            action=action,
            address=integers([_address(entry) for entry in batch], "addr"),
            size=integers([entry.get("size", 0) for entry in batch], "size"),
            stream=_codes(intern.stream(entry.get("stream", 0)) for entry in batch),
            time_us=integers([entry.get("time_us", 0) for entry in batch], "time_us"),
            stack=_codes(intern.stack(entry.get("frames")) for entry in batch),
            forward_stack=_codes(intern.stack(entry.get("forward_frames")) for entry in batch),
            context=_codes(self._text(entry.get("compile_context")) for entry in batch),
            metadata=_codes(self._text(entry.get("user_metadata")) for entry in batch),
            pool=_codes(intern.pool(entry.get("pool_id", (0, 0))) for entry in batch),
        )

    def _text(self, value: Any) -> int:
        if type(value) is dict:
            # Written out for every event that names it, which can be long.
            self.interner.budget.check()
        return self.interner.string(text_of(value))

    def _action(self, name: Any) -> int:
        if type(name) is not str:
            raise TraceError("The 'action' of an event is missing or not a text.", remedy=NOT_A_SNAPSHOT)
        return self.interner.action(name)


def integers(values: list[Any], what: str) -> Ints8:
    """int64, two's complement for addresses of 2**63 and above. Nothing but int is accepted."""
    try:
        return np.array(array("q", values), dtype=np.int64)
    except OverflowError:
        return _as_int64(values, what)
    except TypeError:
        raise _no_whole_number(what) from None


def _as_int64(values: list[Any], what: str) -> Ints8:
    if any(not isinstance(value, int) for value in values):
        raise _no_whole_number(what)
    wrapped = [(value & (2**64 - 1)) - ((value & 2**63) << 1) for value in values if -(2**63) <= value < 2**64]
    if what not in ("addr", "address") or len(wrapped) < len(values):
        raise TraceError(f"A value of {what!r} has more than 64 bits.")
    return np.array(array("q", wrapped), dtype=np.int64)


def _no_whole_number(what: str) -> TraceError:
    return TraceError(f"A value of {what!r} is not a whole number.")


def text_of(value: Any) -> str:
    """Metadata is text. Newer releases let users attach a dict, and store it as the same JSON that we make of one."""
    if type(value) is str:
        return value
    if value is None:
        return ""
    if type(value) is dict and all(type(key) is str and type(value) in _SCALARS for key, value in value.items()):
        # A few bytes can name one long text under many keys.
        size = sum(len(key) + (len(text) if type(text) is str else 0) for key, text in value.items())
        if size > _MOST_WRITTEN_OUT:
            raise TraceError(f"The metadata of an event has {size:,} characters.")
        return json.dumps(value, separators=(",", ":"))
    if type(value) in _SCALARS:
        return json.dumps(value)
    # Nested values are not written out: a few bytes of references can name a text larger than any memory.
    raise TraceError(f"A text was expected, found {type(value).__name__}.")


def name_of(key: Any) -> str:
    """For a note about something we do not know, which may be of any type and size."""
    return valid_unicode(key[:80]) if type(key) is str else f"<{type(key).__name__}>"


def joined_events(parts: list[Events]) -> Events:
    """Streams, pools and contexts are mostly one value throughout: such a column takes no memory."""
    columns: list[npt.NDArray[Any]] = []
    for pieces in ([getattr(part, column.name) for part in parts] for column in fields(Events)):
        first: Any = next((piece[0] for piece in pieces if len(piece)), None)
        is_one = first is not None and all((piece == first).all() for piece in pieces)
        columns.append(np.broadcast_to(first, sum(map(len, pieces))) if is_one else np.concatenate(pieces))
    return Events(*columns)


def _address(event: dict[str, Any]) -> Any:
    if event.get("action") != "oom":
        return event.get("addr", 0)
    free = event.get("device_free", FREE_UNKNOWN)
    # Bytes, and no address: no driver has less than nothing, and none has more than a column can hold.
    return FREE_UNKNOWN if type(free) is int and not 0 <= free <= _MOST_BYTES else free


def category_of(name: Any) -> Category:
    return _CATEGORY_NAMES.get(name, Category.UNKNOWN) if type(name) is str else Category.UNKNOWN


def _codes(values: Iterable[int]) -> Ints4:
    return np.fromiter(values, dtype=np.int32)
