"""From the first trace's peak to the others': what holds how many bytes more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from memviz.analysis.comparing.changes import Change, Changes, changes, summarize_comparison
from memviz.analysis.comparing.matching import Pair
from memviz.headlines.compare import compare, compared_json
from memviz.headlines.headline import Headline
from memviz.headlines.names import letter
from memviz.notebook.result import Result
from memviz.notebook.table import MOST_ROWS, Bar, TableRow, drawn, share
from memviz.ui.html.markup import Html
from memviz.units import bytes_text, delta_text


@dataclass(frozen=True, repr=False)
class Comparison(Result):
    """`memviz.open("before.pickle").compare("after.pickle")`."""

    sides: tuple[Pair, ...] = field(compare=False)
    """Traces and their devices, the baseline first."""
    found: Changes

    @property
    def peaks(self) -> tuple[int, ...]:
        return tuple(moment.live_bytes for moment in self.found.moments)

    @property
    def delta_bytes(self) -> int:
        """From the baseline's peak to the second trace's; the rows add up to it."""
        return self.found.delta(1)

    @property
    def rows(self) -> tuple[Change, ...]:
        """By the largest difference from the baseline."""
        return self.found.rows

    def by(self, by: str) -> Comparison:
        return compared(self.sides, by)

    @cached_property
    def headline(self) -> Headline:
        return compare(summarize_comparison(self.sides))

    def as_json(self) -> dict[str, Any]:
        """As `diff --json --top 0` writes it."""
        return compared_json(self.sides, self.found)

    def columns(self) -> Mapping[str, list[Any]]:
        sides, rows = range(len(self.found.moments)), self.rows
        letters = [letter(side).lower() for side in sides]
        deltas = {
            "delta_bytes" if len(letters) == 2 else f"{letters[side]}_delta_bytes": [row.delta(side) for row in rows]
            for side in sides[1:]
        }
        return {
            "site" if self.found.by == "site" else "key": [row.thing.name for row in rows],
            **{f"{letters[side]}_bytes": [row.bytes[side] for row in rows] for side in sides},
            **deltas,
            **{f"{letters[side]}_count": [row.counts[side] for row in rows] for side in sides},
            "function": [row.thing.function for row in rows],
            "operator": [row.thing.operator for row in rows],
        }

    def _html(self) -> Html:
        others = range(1, len(self.found.moments))
        letters = [letter(side) for side in range(len(self.found.moments))]
        # By the largest difference, so those that differ come first.
        differ = sum(any(change.delta(other) for other in others) for change in self.rows)
        shown = min(differ, MOST_ROWS)
        rows = [_row(change, others, self._most()) for change in self.rows[:shown]]
        rest = self.found.after(shown)
        if any(rest.counts):
            rows.append(TableRow(_numbers(rest.bytes, [rest.delta(other) for other in others]), "(all others)"))
        rows.append(TableRow(_numbers(self.peaks, [self.found.delta(other) for other in others]), "peak"))
        head = [*letters, *(f"{other} - A" for other in letters[1:]), self.found.by]
        return drawn(str(self), head, rows)

    def _most(self) -> int:
        return max((abs(row.delta(1)) for row in self.rows), default=0)


def _numbers(sizes: Sequence[int], deltas: Sequence[int]) -> tuple[str, ...]:
    return (*map(bytes_text, sizes), *map(delta_text, deltas))


def _row(change: Change, others: Sequence[int], most: int) -> TableRow:
    """The bar is the second trace's change, to the left of the middle where it holds less."""
    length = share(change.delta(1), most) / 2
    bar = Bar(0.5 + min(0.0, length), 0.5 + max(0.0, length))
    return TableRow(_numbers(change.bytes, [change.delta(other) for other in others]), change.thing.name, (bar,))


def compared(sides: Sequence[Pair], by: str = "site") -> Comparison:
    return Comparison(tuple(sides), changes(sides, by, with_kinds=False))
