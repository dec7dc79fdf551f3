"""The largest value of a knob that still fits, exactly: it runs, and the next does not.

A peak is piecewise linear in the batch or the sequence, so a secant through the last two points guesses well, but a
guess is only a guess: the answer is two predictions side by side, one that fits and one that does not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Asked = Callable[[int], "tuple[bool, int] | None"]
"""Whether a value fits, and the peak without a limit; None where the value itself is refused."""

Point = tuple[bool, int | None]

_MOST = 1 << 40
_MOST_PREDICTIONS = 100
_FARTHEST = 64
"""Times as far as what is known to fit: a line through two small values may be far off."""
_FIRST_STEP = 8
"""Times as far without a line: blocks are rounded and segments reserved, which hides the slope of a short one."""
_PATIENCE = 2
"""Guesses by the line that may leave more than half of what is open; then the middle is tried."""


@dataclass(frozen=True)
class Largest:
    value: int
    next_fails: bool
    """False only where nothing was found that does not fit."""
    predictions: int


def largest_that_fits(ask: Asked, usable_bytes: int, first: int = 1) -> Largest | None:
    """None where not even 1 fits. `first` is where to begin."""
    points: dict[int, Point] = {}

    def fits(value: int) -> bool:
        points[value] = ask(value) or (False, None)
        return points[value][0]

    if not fits(max(first, 1)) and (1 in points or not fits(1)):
        return None
    slow = 0
    while len(points) < _MOST_PREDICTIONS:
        low, high = _border(points)
        if high == low + 1:
            return Largest(low, True, len(points))
        if low >= _MOST:
            break
        line = None if slow >= _PATIENCE else _line(points, usable_bytes, low, high)
        fits(_above(points, low, line) if high is None else _between(low, high, line))
        new_low, new_high = _border(points)
        is_slow = high is not None and new_high is not None and new_high - new_low > (high - low) // 2
        slow = slow + 1 if is_slow and slow < _PATIENCE else 0
    return Largest(_border(points)[0], False, len(points))


def _border(points: dict[int, Point]) -> tuple[int, int | None]:
    """The largest value that fits, and the smallest above it that does not."""
    low = max(value for value, (good, _) in points.items() if good)
    return low, min((value for value, (good, _) in points.items() if not good and value > low), default=None)


def _above(points: dict[int, Point], low: int, line: int | None) -> int:
    return _FIRST_STEP * low if line is None else min(max(line, low + 1), _FARTHEST * low)


def _between(low: int, high: int, line: int | None) -> int:
    return (low + high) // 2 if line is None else min(max(line, low + 1), high - 1)


def _line(points: dict[int, Point], usable: int, low: int, high: int | None) -> int | None:
    """The last value under the border by a line through the nearest points, of both sides where both are known."""
    known = sorted((value, peak) for value, (_, peak) in points.items() if peak is not None)
    if high is not None and points[high][1] is not None:
        (x, y), (z, w) = (point for point in known if point[0] in (low, high))
    else:
        below = [point for point in known if point[0] <= low]
        if len(below) < 2:
            return None
        (x, y), (z, w) = below[-2:]
    if w <= y:
        return None
    value = x + (usable - y) * (z - x) // (w - y)
    # Where a value is refused for another reason than memory, the line knows nothing of it.
    return None if high is not None and points[high][1] is None and value >= high else value
