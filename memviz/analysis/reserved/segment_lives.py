"""From when to when each segment stood, how much of it was used meanwhile, and which allocation held it longest.

A segment here is a stretch of addresses that was taken from the device and given back in one piece; of an expandable
one, each stretch that was mapped. At every moment they add up to what `segments` shows, to the byte.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from memviz.analysis.cache import remembered
from memviz.analysis.lifetimes import BEFORE, lifetimes
from memviz.analysis.reserved.reserved_ranges import RangeHistory, in_order, range_history, upto
from memviz.errors import UsageError
from memviz.trace.model import Bools, Columns, DeviceTrace, Ints8

NOBODY = -1
_MOST_PIECES = 8_000_000
"""Of addresses that bounds of others cut. Real files have about one for each event; a hostile one may not."""


@dataclass(frozen=True, eq=False)
class SegmentLives(Columns):
    """One row per segment, by start, then address. It stands after event e: start <= e < end."""

    start: Ints8
    """Event that took it, or BEFORE."""
    end: Ints8
    """Event that gave it back; the number of events where it stands at the end."""
    size: Ints8
    address: Ints8
    used: npt.NDArray[np.float64]
    """Share of it that allocations took, on average over its events."""
    longest: Ints8
    """The row of `lifetimes` that was in it for most events, or NOBODY."""


@remembered
def segment_lives(device: DeviceTrace) -> SegmentLives:
    history = range_history(device)
    pieces = _pieces(history, len(device.events))
    share, longest, lived = _use(history, pieces, device)
    first = np.flatnonzero(_begins(history, pieces, len(device.events)))
    if not len(first):
        nothing = np.zeros(0, dtype=np.int64)
        return SegmentLives(nothing, nothing, nothing, nothing, nothing.astype(np.float64), nothing)
    segment = np.repeat(np.arange(len(first)), np.diff(np.append(first, len(pieces))))
    width = (history.high - history.low)[pieces.range]
    size = np.add.reduceat(width, first)
    # Of the pieces of one segment, what was in any of them for most events.
    order = np.lexsort((-lived, segment))
    made = SegmentLives(
        start=pieces.start[first],
        end=pieces.end[first],
        size=size,
        address=in_order(history.low[pieces.range[first]]),
        used=np.add.reduceat(share * width, first) / size,
        longest=longest[order][first],
    )
    by_start = np.lexsort((in_order(made.address), made.start))
    return SegmentLives(**{name: column[by_start] for name, column in made.columns()})


@dataclass(frozen=True, eq=False)
class _Pieces(Columns):
    """One row per elementary range and time in which it was held, by start, end and range."""

    range: Ints8
    start: Ints8
    end: Ints8


def _pieces(history: RangeHistory, count: int) -> _Pieces:
    """By the rule of `reserved_ranges`: held until an event that gives it back, since whatever touched it before."""
    event = _repeated(history.last - history.first)
    ranges = history.first[event] + _place(event)
    order = np.lexsort((event, ranges))
    ranges, event = ranges[order], event[order]
    is_first = np.diff(ranges, prepend=-1) != 0
    before = np.where(is_first, BEFORE, np.roll(history.index[event], 1))
    given_back = history.gives_back[event]
    # Until the end is held what the final segments have.
    newest = np.full(len(history.low), BEFORE)
    newest[ranges] = history.index[event]
    final = np.flatnonzero(history.final_row >= 0)
    made = _Pieces(
        range=np.concatenate([ranges[given_back], final]),
        start=np.concatenate([before[given_back], newest[final]]),
        end=np.concatenate([history.index[event][given_back], np.full(len(final), count)]),
    )
    in_turn = np.lexsort((made.range, made.end, made.start))
    return _Pieces(**{name: column[in_turn] for name, column in made.columns()})


def _begins(history: RangeHistory, pieces: _Pieces, count: int) -> Bools:
    """False where a piece goes on the one before it: neighbours that were taken and given back together."""
    begins = np.ones(len(pieces), dtype=np.bool_)
    one, next_one = pieces.range[:-1], pieces.range[1:]
    together = (pieces.start[1:] == pieces.start[:-1]) & (pieces.end[1:] == pieces.end[:-1])
    together &= history.high[one] == history.low[next_one]
    together &= (pieces.end[1:] < count) | (history.final_row[one] == history.final_row[next_one])
    begins[1:] = ~together
    return begins


def _use(history: RangeHistory, pieces: _Pieces, device: DeviceTrace) -> tuple[npt.NDArray[np.float64], Ints8, Ints8]:
    """Of each piece: its share in use, the allocation that was in it longest, and for how many events."""
    rows, count = lifetimes(device), len(device.events)
    share: npt.NDArray[np.float64] = np.zeros(len(pieces))
    longest: Ints8 = np.full(len(pieces), NOBODY)
    lived = np.zeros(len(pieces), dtype=np.int64)
    if not len(pieces) or not len(rows):
        return share, longest, lived
    low = in_order(rows.address)
    high = upto(low, np.maximum(rows.size, 1))
    first = np.searchsorted(history.high, low, side="right")
    last = np.searchsorted(history.low, high, side="left")
    row = _repeated(np.maximum(last - first, 0))
    ranges = first[row] + _place(row)

    by_range = np.lexsort((pieces.start, pieces.range))
    key = pieces.range[by_range] * (count + 2) + pieces.start[by_range] + 1
    place_of = np.searchsorted(key, ranges * (count + 2) + rows.start[row] + 1, side="right") - 1
    piece = by_range[np.maximum(place_of, 0)]
    fits = (place_of >= 0) & (pieces.range[piece] == ranges) & (pieces.end[piece] > rows.start[row])
    row, ranges, piece = row[fits], ranges[fits], piece[fits]

    events = np.minimum(rows.end[row], pieces.end[piece]) - np.maximum(rows.start[row], pieces.start[piece])
    inside = np.minimum(high[row], history.high[ranges]) - np.maximum(low[row], history.low[ranges])
    whole = (history.high - history.low)[ranges] * (pieces.end - pieces.start)[piece].astype(np.float64)
    share[:] = np.bincount(piece, weights=inside * events / whole, minlength=len(pieces))
    order = np.lexsort((events, piece))
    longest[piece[order]], lived[piece[order]] = row[order], events[order]
    return share, longest, lived


def _repeated(times: Ints8) -> Ints8:
    if int(times.sum()) > _MOST_PIECES:
        raise UsageError("Its segments overlap so much that they cannot be drawn over time.")
    return np.repeat(np.arange(len(times)), times)


def _place(repeated: Ints8) -> Ints8:
    """0, 1, 2 ... within each run of equal numbers."""
    begins = np.flatnonzero(np.diff(repeated, prepend=-1))
    return np.arange(len(repeated)) - np.repeat(begins, np.diff(np.append(begins, len(repeated))))
