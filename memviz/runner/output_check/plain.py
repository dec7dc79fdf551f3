"""Frozen results as plain values and back, with every digit.

JSON has no infinity; SQNR of equal tensors is infinite. Such floats travel as the texts that float() reads.
"""

from __future__ import annotations

import math
import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")


def to_plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: to_plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, (tuple, list)):
        return [to_plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def from_plain(kind: type[T], value: Mapping[str, Any]) -> T:
    hints = get_type_hints(kind)
    given = [each.name for each in fields(kind) if each.init]  # type: ignore[arg-type]
    known = {name: _read(hints[name], value[name]) for name in given}
    return kind(**known)


def _read(kind: Any, value: Any) -> Any:
    if value is None:
        return None
    if get_origin(kind) in (Union, types.UnionType):
        kind = next(each for each in get_args(kind) if each is not type(None))
    if get_origin(kind) is tuple:
        inner = get_args(kind)
        repeated = len(inner) == 2 and inner[1] is Ellipsis
        each_kind = [inner[0]] * len(value) if repeated else list(inner)
        return tuple(_read(one, each) for one, each in zip(each_kind, value, strict=True))
    if is_dataclass(kind) and isinstance(kind, type):
        return from_plain(kind, value)
    return float(value) if kind is float else value
