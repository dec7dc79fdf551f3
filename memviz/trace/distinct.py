"""The different numbers in a column, and which of a column are among others."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

_FEW = 1 << 12
"""Codes up to here are counted, which reads a column once and moves nothing."""
_TABLE = 1 << 20
"""Bytes of a table that says of every code whether it is wanted."""
_EACH = 8
"""So few are looked for one after the other."""


def distinct(numbers: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the sorted unique values, as `np.unique` does, of integers or booleans.

    `np.unique` imports all of numpy.ma on its first call: a seventh of the import time of numpy itself.
    """
    if not numbers.size:
        return numbers.ravel()
    if numbers.dtype.kind != "b" and numbers.min() >= 0 and numbers.max() < _FEW:
        return np.flatnonzero(np.bincount(numbers.ravel())).astype(numbers.dtype)
    ordered: npt.NDArray[Any] = np.sort(numbers, axis=None)
    different: npt.NDArray[Any] = ordered[np.append(True, ordered[1:] != ordered[:-1])]
    return different


def first_of_each(hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    """For each the first row that has the same.

    By a table of their highest bits; those that share a place there with others are sorted.
    """
    rows, bits = np.arange(len(hashes)), (4 * len(hashes)).bit_length()
    place = (hashes >> np.uint64(64 - bits)).astype(np.int64) if bits else rows
    table = np.empty(1 << bits, dtype=np.int64)
    # The last to be written stays, so the first comes last.
    table[place[::-1]] = rows[::-1]
    first: npt.NDArray[np.int64] = table[place]
    others = np.flatnonzero(hashes[first] != hashes)
    if len(others):
        _, firsts, group = np.unique(hashes[others], return_index=True, return_inverse=True)
        first[others] = others[firsts[group]]
    return first


def is_among(numbers: npt.NDArray[Any], wanted: npt.ArrayLike) -> npt.NDArray[np.bool_]:
    """Like `np.isin` for integers, without `np.unique`, which `np.isin` calls for few values or wide ranges."""
    known = distinct(np.asarray(wanted))
    if len(known) <= _EACH:
        found = np.zeros(numbers.shape, dtype=np.bool_)
        for number in known.tolist():
            found |= numbers == number
        return found
    if known[0] >= 0 and known[-1] < _TABLE and (not numbers.size or numbers.min() >= 0):
        table = np.zeros(int(known[-1]) + 2, dtype=np.bool_)
        table[known] = True
        return np.asarray(table[np.minimum(numbers, np.int64(len(table) - 1))])
    place = np.minimum(np.searchsorted(known, numbers), len(known) - 1)
    return np.asarray(known[place] == numbers)
