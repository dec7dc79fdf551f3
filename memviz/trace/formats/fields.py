"""Values of a snapshot's dicts, checked for what they are."""

from __future__ import annotations

from typing import Any

from memviz.errors import TraceError
from memviz.units import kind_text


def whole_of(mapping: Any, key: str, default: int | None = None) -> int:
    value = mapping.get(key, default) if type(mapping) is dict else None
    if type(value) is not int:
        raise TraceError(f"{key!r} is missing or not a whole number.")
    return value


def list_of(mapping: Any, key: str) -> list[Any]:
    value = mapping.get(key)
    if value is None:
        return []
    if type(value) is tuple:
        return list(value)
    if type(value) is not list:
        raise TraceError(f"{key!r} is {kind_text(value)}, not a list.")
    return value
