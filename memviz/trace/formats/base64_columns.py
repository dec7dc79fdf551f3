"""Columns as texts in a file: of the bytes of one little-endian array each."""

from __future__ import annotations

import base64
import binascii
from typing import Any

import numpy as np
import numpy.typing as npt

from memviz.errors import TraceError


def text_of(column: npt.NDArray[Any]) -> str:
    return base64.b64encode(column.tobytes()).decode("ascii")


def column_of(value: Any, dtype: Any, count: int, values: int) -> Any:
    """Of `count` numbers, each at least 0 and less than `values`."""
    raw = _raw(value)
    if len(raw) != count * np.dtype(dtype).itemsize:
        raise TraceError("Its labels (under the key 'memviz') do not match its events.")
    column = np.frombuffer(raw, dtype=dtype).astype(np.dtype(dtype).newbyteorder("="))
    if count and (column.min() < 0 or column.max() >= values):
        raise TraceError("Its labels (under the key 'memviz') name values we do not know.")
    return column


def count_of(value: Any, dtype: Any) -> int:
    """How many numbers a text holds."""
    size: int = np.dtype(dtype).itemsize
    return len(_raw(value)) // size


def _raw(value: Any) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except (TypeError, ValueError, binascii.Error):
        raise TraceError("Its labels (under the key 'memviz') are not base64.") from None
