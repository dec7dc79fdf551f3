"""Cache results that several views need on the trace or device they are computed from.

Traces and devices are frozen, so a result stays valid; and no cache outlives a trace or mixes visitors.
`size_in_bytes` measures the size of a cached result.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Iterable, Mapping
from functools import wraps
from types import FunctionType, ModuleType
from typing import Any, ParamSpec, TypeVar

import numpy as np

from memviz.memory import trim_heap_if_large
from memviz.trace.model import DeviceTrace, Trace

_ALIKE = 512
"""Sample size of a longer row, whose items are of one kind."""
_NOTHING = (type, FunctionType, ModuleType, type(None), bool)
"""Not the trace's own."""


def size_in_bytes(owner: Any) -> int:
    """Return the bytes that an object holds. A trace grows as its views are cached. Takes some milliseconds."""
    seen: set[int] = set()
    return int(_size_of(owner, seen))


def _size_of(value: Any, seen: set[int]) -> float:
    if isinstance(value, _NOTHING) or id(value) in seen:
        return 0
    seen.add(id(value))
    if isinstance(value, np.ndarray):
        # A view counts as what it looks into, once.
        base = value
        while isinstance(base.base, np.ndarray):
            base = base.base
        if base is not value:
            if id(base) in seen:
                return sys.getsizeof(value)
            seen.add(id(base))
        return base.nbytes
    own = sys.getsizeof(value)
    if isinstance(value, Mapping):
        return own + _size_of_items(value.keys(), len(value), seen) + _size_of_items(value.values(), len(value), seen)
    if isinstance(value, list | tuple | set | frozenset):
        return own + _size_of_items(value, len(value), seen)
    fields = getattr(value, "__dict__", None)
    slots = [getattr(value, name, None) for name in getattr(type(value), "__slots__", ())]
    inside = sum(_size_of(slot, seen) for slot in slots) if slots else 0
    # The fields' names are the class's.
    return own + inside + (sum(_size_of(known, seen) for known in fields.values()) if type(fields) is dict else 0)


def _size_of_items(items: Iterable[Any], count: int, seen: set[int]) -> float:
    if count <= 2 * _ALIKE:
        return sum(_size_of(item, seen) for item in items)
    row = list(items)
    if all(type(cell) is str for cell in row):
        return sum(map(sys.getsizeof, row))
    step = count // _ALIKE
    chosen = row[::step]
    return sum(_size_of(item, seen) for item in chosen) * count / len(chosen)


_LARGE = 1 << 14
"""Bytes. Smaller results are not dropped: some took long to compute."""

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def cached_on(owner: Trace | DeviceTrace, key: Hashable, make: Callable[[], Result]) -> Result:
    """`key` identifies the result and all else that it depends on."""
    results = owner.__dict__.setdefault("_kept", {})
    if key not in results:
        results[key] = make()
        trim_heap_if_large(owner.event_count if isinstance(owner, Trace) else len(owner.events))
    result: Result = results[key]
    return result


def cached(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Cache the results of a function on its first argument, a trace or a device; the others belong to the key."""
    name = f"{function.__module__}.{function.__qualname__}"

    @wraps(function)
    def cached_function(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        owner: Any = args[0]
        return cached_on(owner, (name, *args[1:]), lambda: function(*args, **kwargs))

    return cached_function


def drop_large(trace: Trace) -> None:
    """Drop large cached results; a view that needs one computes it again."""
    for owner in (trace, *trace.devices):
        results = owner.__dict__.get("_kept", {})
        for key in [key for key, result in list(results.items()) if size_in_bytes(result) > _LARGE]:
            results.pop(key, None)
