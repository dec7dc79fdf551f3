"""Scratch of CUB's radix sort of keys with values, 8 bytes each, as torch's sorted kernels use it on indices.

The rules are those of CUB's `dispatch_radix_sort.cuh` (read; proved by recordings of an RTX 40 card): a few are
sorted by one block of threads without any, more in passes of 8 bits, of which each has counters, and every tile of
the keys its own. Keys and values are written elsewhere and back, so both are there a third time.
"""

from __future__ import annotations

from memviz.runner.predict.cards import KnownCard

_ALIGNED = 256
_DIGITS = 256
_BITS = 8
_WIDE, _NARROW = 8, 4
"""Bytes of a key, a value or a place of 64 bits, and of a counter."""
_ONE_BLOCK = 256 * 9
_TILES = ((90, 384 * 12), (80, 384 * 10), (0, 256 * 11))
"""Threads of a block times keys a thread, from which architecture on."""


def scratch_of_pairs(count: int, highest: int, card: KnownCard) -> int:
    """Bytes for sorting so many indices, of which none is higher."""
    if count <= _ONE_BLOCK:
        return 1
    passes = -(-max(highest.bit_length(), 1) // _BITS)
    tile = next(size for architecture, size in _TILES if card.architecture >= architecture)
    copies = _WIDE * count if passes > 1 else 0
    parts = (
        passes * _DIGITS * _WIDE,
        -(-count // tile) * _DIGITS * _NARROW,
        copies,
        copies,
        passes * _NARROW,
    )
    return sum(-(-part // _ALIGNED) * _ALIGNED for part in parts) + _ALIGNED - 1
