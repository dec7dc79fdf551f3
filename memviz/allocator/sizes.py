"""How one request becomes the size of a block and of a segment.

`memviz.trace.rounding` does the same for whole columns. The model meets requests one at a time, where a call
into numpy would cost more than the arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from memviz.trace.rounding import (
    LARGE_SEGMENT,
    MIN_BLOCK,
    MIN_LARGE_ALLOC,
    ROUND_LARGE,
    SLOTS,
    SMALL_SEGMENT,
    SMALL_SIZE,
)

Rounding = Callable[[int], int]


def rounding(divisions: Sequence[int]) -> Rounding:
    """`round_size` under these divisions of each power of two."""
    if not any(division > 1 for division in divisions):
        return round_to_block
    table = tuple(divisions)

    def round_size(requested: int) -> int:
        divided = table[slot(requested)]
        if divided > 1 and requested > MIN_BLOCK * divided:
            return round_to_division(requested, divided)
        return round_to_block(requested)

    return round_size


def round_to_block(requested: int) -> int:
    return (requested + MIN_BLOCK - 1) & -MIN_BLOCK if requested > MIN_BLOCK else MIN_BLOCK


def slot(requested: int) -> int:
    return min(max(requested.bit_length() - 21, 0), SLOTS - 1)


def round_to_division(requested: int, divisions: int) -> int:
    """Up to the next of the equal steps between two powers of two."""
    power = 1 << (requested.bit_length() - 1)
    if power == requested:
        return requested
    step = power >> (divisions.bit_length() - 1)
    return (requested + step - 1) & -step if step else power << 1


def segment_size(rounded: int, large_segment: int = LARGE_SEGMENT) -> int:
    """What is asked of the device when no cached block serves a request of this rounded size."""
    if rounded <= SMALL_SIZE:
        return SMALL_SEGMENT
    if rounded < MIN_LARGE_ALLOC:
        return large_segment
    return (rounded + ROUND_LARGE - 1) & -ROUND_LARGE
