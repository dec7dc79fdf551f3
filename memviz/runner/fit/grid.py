"""Batch and sequence together: for some lengths of a sequence the largest batch, exactly, and peaks around it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from memviz.runner.fit.largest import Stopped, largest_that_fits

Predicted = Callable[[Mapping[str, int]], "tuple[bool, int] | str"]
"""Whether these values fit, and the peak without a limit; or why they are refused."""

_LENGTHS = (1, 2, 4, 8, 16)
"""Quarters of the length that was asked for."""
_MOST_BATCHES = 10


@dataclass(frozen=True)
class Row:
    sequence: int
    largest: int
    """The largest batch that fits; 0 where not even 1 does."""
    is_exact: bool
    """The next was predicted, and does not fit."""
    peaks: Mapping[int, int]
    """By batch, those that were predicted."""


@dataclass(frozen=True)
class Grid:
    usable_bytes: int
    batches: tuple[int, ...]
    """The columns: 1 and its doubles, to the first beyond every border."""
    rows: tuple[Row, ...]


def grid_of(
    predicted: Predicted, sequence: int, usable: int, tell: Callable[[int], None] = lambda sequence: None
) -> Grid:
    """Each row begins where the one before says its border is: so many tokens fit, in whichever shape."""
    rows: list[Row] = []
    tokens = 0
    for length in sorted({max(1, sequence * quarters // 4) for quarters in _LENGTHS}):
        tell(length)
        row = _row(predicted, length, usable, tokens // length)
        if row is not None:
            rows.append(row)
            tokens = row.largest * length
    batches = tuple(_doubles(max((row.largest for row in rows), default=0)))
    return Grid(usable, batches, tuple(_filled(predicted, row, batches) for row in rows))


def _row(predicted: Predicted, length: int, usable: int, first: int) -> Row | None:
    """None where the model takes no such sequence."""
    peaks: dict[int, int] = {}
    is_taken = False

    def fits(batch: int) -> tuple[bool, int] | str:
        nonlocal is_taken
        answer = predicted({"batch": batch, "sequence": length})
        if not isinstance(answer, str):
            is_taken, peaks[batch] = True, answer[1]
        return answer

    border = largest_that_fits(fits, usable, max(first, 1))
    if not is_taken:
        return None
    return Row(length, border.value if border else 0, border.next_fails if border else True, peaks)


def _doubles(largest: int) -> Iterator[int]:
    batch = 1
    for _ in range(_MOST_BATCHES):
        yield batch
        if batch > largest:
            return
        batch *= 2


def _filled(predicted: Predicted, row: Row, batches: tuple[int, ...]) -> Row:
    """With the peaks of all columns that fit, and of the first that does not."""
    beyond = next((batch for batch in batches if batch > row.largest), None)
    peaks = dict(row.peaks)
    for batch in (batch for batch in batches if batch <= row.largest or batch == beyond):
        if batch in peaks:
            continue
        with suppress(Stopped):
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
