"""How much memory a trace really holds: its columns and texts, and every result that is kept on it."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from types import FunctionType, ModuleType
from typing import Any

import numpy as np

_ALIKE = 512
"""Of a longer row, so many items stand for all: its items are of one kind."""
_NOTHING = (type, FunctionType, ModuleType, type(None), bool)
"""Not the trace's own."""


def held_bytes(owner: Any) -> int:
    """Of a trace it grows as views are looked at, since what they compute is kept. Takes some milliseconds."""
    seen: set[int] = set()
    return int(_size(owner, seen))


def _size(value: Any, seen: set[int]) -> float:
    if isinstance(value, _NOTHING) or id(value) in seen:
        return 0
    seen.add(id(value))
    if isinstance(value, np.ndarray):
        return _array(value, seen)
    own = sys.getsizeof(value)
    if isinstance(value, Mapping):
        return own + _row(value.keys(), len(value), seen) + _row(value.values(), len(value), seen)
    if isinstance(value, list | tuple | set | frozenset):
        return own + _row(value, len(value), seen)
    fields = getattr(value, "__dict__", None)
    slots = [getattr(value, name, None) for name in getattr(type(value), "__slots__", ())]
    inside = sum(_size(slot, seen) for slot in slots) if slots else 0
    # The fields' names are the class's.
    return own + inside + (sum(_size(known, seen) for known in fields.values()) if type(fields) is dict else 0)


def _array(array: np.ndarray[Any, Any], seen: set[int]) -> float:
    """A view counts as what it looks into, once."""
    base = array
    while isinstance(base.base, np.ndarray):
        base = base.base
    if base is not array:
        if id(base) in seen:
            return sys.getsizeof(array)
        seen.add(id(base))
    return base.nbytes


def _row(items: Iterable[Any], count: int, seen: set[int]) -> float:
    if count <= 2 * _ALIKE:
        return sum(_size(item, seen) for item in items)
    row = list(items)
    if all(type(cell) is str for cell in row):
        return sum(map(sys.getsizeof, row))
    step = count // _ALIKE
    chosen = row[::step]
    return sum(_size(item, seen) for item in chosen) * count / len(chosen)
