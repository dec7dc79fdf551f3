"""Sums per group that stay exact, and maxima of many ranges, without a loop over rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from memviz.trace.model import Ints8

_LOW_BITS = 26
_BLOCK = 1024


def sum_by(codes: npt.NDArray[Any], values: Ints8, count: int) -> Ints8:
    """The sum of `values` for each code in 0..count-1.

    `np.bincount` adds in floating point, which is exact only below 2**53. Halves of the numbers stay below
    that for any total that fits an int64.
    """
    low = np.bincount(codes, weights=values & ((1 << _LOW_BITS) - 1), minlength=count)
    high = np.bincount(codes, weights=values >> _LOW_BITS, minlength=count)
    return (high.astype(np.int64) << _LOW_BITS) + low.astype(np.int64)


def max_of_ranges(values: Ints8, start: Ints8, stop: Ints8) -> Ints8:
    """The largest of `values[start:stop]` for each pair; no range may be empty.

    Long ranges read whole blocks, so that many ranges over a long trace stay affordable.
    """
    if not len(start):
        return np.zeros(0, dtype=np.int64)
    blocks = np.maximum.reduceat(values, np.arange(0, len(values), _BLOCK))
    first_block, last_block = -(-start // _BLOCK), stop // _BLOCK
    has_blocks = first_block < last_block
    head_stop = np.where(has_blocks, first_block * _BLOCK, stop)
    tail_start = np.where(has_blocks, last_block * _BLOCK, start)
    highest = np.full(len(start), np.iinfo(np.int64).min)
    parts = (
        (values, start, head_stop),
        (values, tail_start, stop),
        (blocks, np.where(has_blocks, first_block, 0), np.where(has_blocks, last_block, 0)),
    )
    for source, begin, end in parts:
        filled = np.flatnonzero(begin < end)
        if len(filled):
            # In order of their begin: `reduceat` also reads what lies between one range and the next.
            filled = filled[np.argsort(begin[filled], kind="stable")]
            pairs = np.column_stack([begin[filled], end[filled]]).ravel()
            most = np.maximum.reduceat(np.append(source, np.iinfo(np.int64).min), pairs)[::2]
            highest[filled] = np.maximum(highest[filled], most)
    return highest
