"""The largest value of a knob that still fits, exactly: it runs, and the next does not.

A peak is piecewise linear in the batch or the sequence, so a secant through the last two points guesses well, but a
guess is only a guess: the answer is two predictions side by side, one that fits and one that does not. Cached segments
that are given back let values fit whose peak without a limit is above it; among those the border is found by halves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

Asked = Callable[[int], "tuple[bool, int] | str"]
"""Whether a value fits, and the peak without a limit; or why the value itself is refused."""

Point = tuple[bool, int | None]

_MOST = 1 << 40
_MOST_PREDICTIONS = 100
_FARTHEST = 16
"""Times as far as what is known to fit: a line through two small values may be far off."""
_FIRST_STEP = 12
"""Times as far without a line: blocks are rounded and segments reserved, which hides the slope of a short one."""
_APART = 4
"""Of a value, that another is away at least where a line goes through both and on."""
_PATIENCE = 2
"""Guesses by the line that may leave more than half of what is open; then what is beside the line is tried."""
_WIDER = 3
"""Times as far from the line with each further guess: a peak that goes up and down by segments is near a line, and
no line."""


@dataclass(frozen=True)
class Largest:
    value: int
    next_fails: bool
    """False only where nothing was found that does not fit."""
    predictions: int
    refused: str = ""
    """Why the next is refused, where that is no matter of memory."""
    is_stopped: bool = False
    """The search ended before it came to one that does not fit."""


class Stopped(Exception):
    """Raised by a prediction where the search is to end."""


def largest_that_fits(ask: Asked, usable_bytes: int, first: int = 1) -> Largest | None:
    """None where not even 1 fits. `first` is where to begin; where `ask` raises Stopped, the largest until then."""
    points: dict[int, Point] = {}
    try:
        return _searched(ask, usable_bytes, max(first, 1), points)
    except Stopped:
        is_any = any(good for good, _ in points.values())
        return Largest(_border(points)[0], False, len(points), is_stopped=True) if is_any else None


def _searched(ask: Asked, usable_bytes: int, first: int, points: dict[int, Point]) -> Largest | None:
    refused: dict[int, str] = {}

    def fits(value: int) -> bool:
        answer = ask(value)
        if isinstance(answer, str):
            refused[value] = answer
        points[value] = (False, None) if isinstance(answer, str) else answer
        return points[value][0]

    if not fits(first) and not _any_fits_below(first, fits, refused):
        return None
    slow = 0
    while len(points) < _MOST_PREDICTIONS:
        low, high = _border(points)
        if high == low + 1:
            return Largest(low, True, len(points), refused.get(high, ""))
        if low >= _MOST:
            break
        line = _line(points, usable_bytes, low, high)
        if (points[low][1] or 0) > usable_bytes:
            # What the allocator gives back before it fails made it fit: what is taken without a limit says no more.
            fits(2 * low if high is None else (low + high) // 2)
            continue
        fits(_above(low, line) if high is None else _between(low, high, line, slow))
        new_low, new_high = _border(points)
        is_slow = high is not None and new_high is not None and new_high - new_low > (high - low) // 2
        slow = slow + 1 if is_slow else max(slow - 1, 0)
    return Largest(_border(points)[0], False, len(points))


def _any_fits_below(first: int, fits: Callable[[int], bool], refused: Mapping[int, str]) -> bool:
    """1, or where that is refused for another reason than memory, a half, a quarter and so on of `first`."""
    if first in refused or first == 1:
        return first > 1 and fits(1)
    if fits(1):
        return True
    halves = (first >> times for times in range(1, first.bit_length() - 1))
    return 1 in refused and any(fits(value) for value in halves)


def _border(points: dict[int, Point]) -> tuple[int, int | None]:
    """The largest value that fits, and the smallest above it that does not."""
    low = max(value for value, (good, _) in points.items() if good)
    return low, min((value for value, (good, _) in points.items() if not good and value > low), default=None)


def _above(low: int, line: int | None) -> int:
    return _FIRST_STEP * low if line is None else min(max(line, low + 1), _FARTHEST * low)


def _between(low: int, high: int, line: int | None, slow: int) -> int:
    middle = (low + high) // 2
    if line is None:
        return middle
    if slow < _PATIENCE:
        return min(max(line, low + 1), high - 1)
    step: int = _WIDER ** (slow - _PATIENCE)
    if line - low < high - line:
        return min(max(line, low) + step, middle)
    return max(min(line, high) - step, middle)


def _line(points: dict[int, Point], usable: int, low: int, high: int | None) -> int | None:
    """The last value under the border by a line through the nearest points, of both sides where both are known.

    Of one side alone two that are far enough apart: next to each other they say more of segments than of a slope.
    """
    known = {value: peak for value, (_, peak) in points.items() if peak is not None}
    if high is not None and high in known:
        return _under(usable, (low, known[low]), (high, known[high]))
    apart = (value for value in sorted(known, reverse=True) if low - value >= max(1, low // _APART))
    lines = (_under(usable, (value, known[value]), (low, known[low])) for value in apart)
    value = next((line for line in lines if line is not None), None)
    # Where a value is refused for another reason than memory, the line knows nothing of it.
    return None if value is None or (high is not None and value >= high) else value


def _under(usable: int, one: tuple[int, int], other: tuple[int, int]) -> int | None:
    """None where the line does not rise."""
    (x, y), (z, w) = one, other
    return x + (usable - y) * (z - x) // (w - y) if w > y else None
