"""The largest value of a knob that still fits, exactly, and the largest batch for each of some sequence lengths.

A peak is piecewise linear in the batch or the sequence, so that a secant through predictions finds the border in few.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

AskFit = Callable[[int], "tuple[bool, int] | str"]
"""Returns (fits, peak without a limit), or why the value itself is refused."""

Answer = tuple[bool, int | None]

_MOST = 1 << 40
_MOST_PREDICTIONS = 100
_FARTHEST = 16
"""Times as far as what is known to fit: a line through two small values may be far off."""
_FIRST_STEP = 12
"""Times as far without a line: blocks are rounded and segments reserved, which hides the slope of a short one."""
_APART = 4
"""Divisor of a value: two points on its side must be at least value / 4 apart to give a line."""
_PATIENCE = 2
"""Guesses by the line that may leave over half of the interval; later guesses deviate from the line."""
_WIDER = 3
"""Times as far from the line with each further guess: a peak that goes up and down by segments is near a line, and
no line."""


@dataclass(frozen=True)
class Largest:
    value: int
    next_fails: bool
    """False only if no tried value failed to fit."""
    predictions: int
    refused: str = ""
    """Why the next is refused, where that is no matter of memory."""
    is_stopped: bool = False
    """The search ended before it came to one that does not fit."""


class SearchStopped(Exception):
    """Raised by a prediction where the search is to end."""


def largest_that_fits(ask: AskFit, usable_bytes: int, first: int = 1) -> Largest | None:
    """Search from `first` on. None if not even 1 fits; the largest so far if `ask` raises SearchStopped."""
    points: dict[int, Answer] = {}
    try:
        return _search(ask, usable_bytes, max(first, 1), points)
    except SearchStopped:
        is_any = any(good for good, _ in points.values())
        return Largest(_border(points)[0], False, len(points), is_stopped=True) if is_any else None


def _search(ask: AskFit, usable_bytes: int, first: int, points: dict[int, Answer]) -> Largest | None:
    refused: dict[int, str] = {}

    def fits(value: int) -> bool:
        answer = ask(value)
        if isinstance(answer, str):
            refused[value] = answer
        points[value] = (False, None) if isinstance(answer, str) else answer
        return points[value][0]

    if not fits(first) and not _search_below(first, fits, refused):
        return None
    slow = 0
    while len(points) < _MOST_PREDICTIONS:
        low, high = _border(points)
        if high == low + 1:
            return Largest(low, True, len(points), refused.get(high, ""))
        if low >= _MOST:
            break
        line = _secant_value(points, usable_bytes, low, high)
        if (points[low][1] or 0) > usable_bytes:
            # It fits only because the allocator frees its cache under pressure: the peak without a limit is no guide.
            fits(2 * low if high is None else (low + high) // 2)
            continue
        if high is None:
            fits(_FIRST_STEP * low if line is None else min(max(line, low + 1), _FARTHEST * low))
        else:
            fits(_next_guess(low, high, line, slow))
        new_low, new_high = _border(points)
        is_slow = high is not None and new_high is not None and new_high - new_low > (high - low) // 2
        slow = slow + 1 if is_slow else max(slow - 1, 0)
    return Largest(_border(points)[0], False, len(points))


def _search_below(first: int, fits: Callable[[int], bool], refused: Mapping[int, str]) -> bool:
    """Try 1, or where that is refused for another reason than memory, a half, a quarter and so on of `first`."""
    if first in refused or first == 1:
        return first > 1 and fits(1)
    if fits(1):
        return True
    halves = (first >> times for times in range(1, first.bit_length() - 1))
    return 1 in refused and any(fits(value) for value in halves)


def _border(points: dict[int, Answer]) -> tuple[int, int | None]:
    """The largest value that fits, and the smallest above it that does not."""
    low = max(value for value, (good, _) in points.items() if good)
    return low, min((value for value, (good, _) in points.items() if not good and value > low), default=None)


def _next_guess(low: int, high: int, line: int | None, slow: int) -> int:
    middle = (low + high) // 2
    if line is None:
        return middle
    if slow < _PATIENCE:
        return min(max(line, low + 1), high - 1)
    step: int = _WIDER ** (slow - _PATIENCE)
    if line - low < high - line:
        return min(max(line, low) + step, middle)
    return max(min(line, high) - step, middle)


def _secant_value(points: dict[int, Answer], usable: int, low: int, high: int | None) -> int | None:
    """Return the last value under the limit by a line through the nearest points, of both sides where known.

    Two points of one side must be far enough apart: neighbours show segments rather than a slope.
    """
    peaks = {value: peak for value, (_, peak) in points.items() if peak is not None}
    if high is not None and high in peaks:
        return _value_at_limit(usable, (low, peaks[low]), (high, peaks[high]))
    distant = (value for value in sorted(peaks, reverse=True) if low - value >= max(1, low // _APART))
    lines = (_value_at_limit(usable, (value, peaks[value]), (low, peaks[low])) for value in distant)
    value = next((line for line in lines if line is not None), None)
    # The line does not apply to a value that is refused for another reason than memory.
    return None if value is None or (high is not None and value >= high) else value


def _value_at_limit(usable: int, one: tuple[int, int], other: tuple[int, int]) -> int | None:
    """Return where a line reaches the limit; None where it does not rise."""
    (x, y), (z, w) = one, other
    return x + (usable - y) * (z - x) // (w - y) if w > y else None


Predicted = Callable[[Mapping[str, int]], "tuple[bool, int] | str"]
"""Returns (fits, peak without a limit), or why these values are refused."""

_LENGTHS = (1, 2, 4, 8, 16)
"""Quarters of the requested length."""
_MOST_BATCHES = 10


@dataclass(frozen=True)
class Row:
    sequence: int
    largest: int
    """The largest batch that fits; 0 where not even 1 does."""
    is_exact: bool
    """True if the next batch was predicted and does not fit."""
    peaks: Mapping[int, int]
    """Predicted peaks by batch."""


@dataclass(frozen=True)
class Grid:
    usable_bytes: int
    batches: tuple[int, ...]
    """The columns: 1 and its doubles, to the first beyond every border."""
    rows: tuple[Row, ...]


def grid_of(
    predicted: Predicted, sequence: int, usable: int, tell: Callable[[int], None] = lambda sequence: None
) -> Grid:
    """Search a batch per length. Each row begins at the tokens that fit in the one before."""
    rows: list[Row] = []
    tokens = 0
    for length in sorted({max(1, sequence * quarters // 4) for quarters in _LENGTHS}):
        tell(length)
        row = _grid_row(predicted, length, usable, tokens // length)
        if row is not None:
            rows.append(row)
            tokens = row.largest * length
    largest = max((row.largest for row in rows), default=0)
    batches = tuple(1 << doubled for doubled in range(_MOST_BATCHES) if 1 << doubled <= max(2 * largest, 1))
    return Grid(usable, batches, tuple(_filled_row(predicted, row, batches) for row in rows))


def _grid_row(predicted: Predicted, length: int, usable: int, first: int) -> Row | None:
    """Search one row; None where the model takes no such sequence."""
    peaks: dict[int, int] = {}
    is_accepted = False

    def fits(batch: int) -> tuple[bool, int] | str:
        nonlocal is_accepted
        answer = predicted({"batch": batch, "sequence": length})
        if not isinstance(answer, str):
            is_accepted, peaks[batch] = True, answer[1]
        return answer

    border = largest_that_fits(fits, usable, max(first, 1))
    if not is_accepted:
        return None
    return Row(length, border.value if border else 0, border.next_fails if border else True, peaks)


def _filled_row(predicted: Predicted, row: Row, batches: tuple[int, ...]) -> Row:
    """Return the row with the peaks of all columns that fit, and of the first that does not."""
    beyond = next((batch for batch in batches if batch > row.largest), None)
    peaks = dict(row.peaks)
    for batch in (batch for batch in batches if batch <= row.largest or batch == beyond):
        if batch in peaks:
            continue
        with suppress(SearchStopped):
            answer = predicted({"batch": batch, "sequence": row.sequence})
            if not isinstance(answer, str):
                peaks[batch] = answer[1]
    return Row(row.sequence, row.largest, row.is_exact, peaks)


def grid_json(grid: Grid) -> dict[str, Any]:
    return {
        "usable_bytes": grid.usable_bytes,
        "batches": list(grid.batches),
        "rows": [
            {
                "sequence": row.sequence,
                "largest_batch": row.largest,
                "next_fails": row.is_exact,
                "peak_reserved_without_limit_bytes": {str(batch): peak for batch, peak in sorted(row.peaks.items())},
            }
            for row in grid.rows
        ],
    }
