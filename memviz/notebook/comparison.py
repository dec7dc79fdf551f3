"""Comparisons of a trace: with other traces' peaks, and with a replay under other settings or on another card."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from memviz.allocator.context import OVERHEAD_BYTES
from memviz.allocator.replay_answer import ReplayAnswer, ReplayQuestion, replay_answer
from memviz.allocator.replay_result import RanOut
from memviz.allocator.replayer import CardMemory
from memviz.allocator.settings import parse_settings
from memviz.analysis.comparing.changes import Change, Changes, changes, summarize_comparison
from memviz.analysis.comparing.matching import Pair
from memviz.errors import UsageError
from memviz.headlines.compare import compare, compared_json
from memviz.headlines.headline import Headline
from memviz.headlines.names import letter
from memviz.headlines.what_if import replayed_json, what_if
from memviz.notebook.result import MOST_ROWS, Bar, Result, TableRow, render_table, share
from memviz.trace.model import DeviceTrace, Trace
from memviz.ui.html.markup import Html
from memviz.units import bytes_text, count_text, delta_text, parse_bytes


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
        """Rows with the largest difference from the baseline first."""
        return self.found.rows

    def by(self, by: str) -> Comparison:
        return compare_peaks(self.sides, by)

    @cached_property
    def headline(self) -> Headline:
        return compare(summarize_comparison(self.sides))

    def as_json(self) -> dict[str, Any]:
        """Return the output of `diff --json --top 0`."""
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
        rows = [_change_row(change, others, self._most()) for change in self.rows[:shown]]
        rest = self.found.after(shown)
        if any(rest.counts):
            rows.append(TableRow(_change_numbers(rest.bytes, [rest.delta(other) for other in others]), "(all others)"))
        rows.append(TableRow(_change_numbers(self.peaks, [self.found.delta(other) for other in others]), "peak"))
        head = [*letters, *(f"{other} - A" for other in letters[1:]), self.found.by]
        return render_table(str(self), head, rows)

    def _most(self) -> int:
        return max((abs(row.delta(1)) for row in self.rows), default=0)


def _change_numbers(sizes: Sequence[int], deltas: Sequence[int]) -> tuple[str, ...]:
    return (*map(bytes_text, sizes), *map(delta_text, deltas))


def _change_row(change: Change, others: Sequence[int], most: int) -> TableRow:
    """The bar is the second trace's change, to the left of the middle where it holds less."""
    length = share(change.delta(1), most) / 2
    bar = Bar(0.5 + min(0.0, length), 0.5 + max(0.0, length))
    return TableRow(_change_numbers(change.bytes, [change.delta(other) for other in others]), change.thing.name, (bar,))


def compare_peaks(sides: Sequence[Pair], by: str = "site") -> Comparison:
    return Comparison(tuple(sides), changes(sides, by, with_kinds=False))


@dataclass(frozen=True)
class ReplayRow:
    name: str
    settings: str
    """Allocator settings in the syntax of PYTORCH_CUDA_ALLOC_CONF; empty for PyTorch's defaults."""
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    retries: int
    oom_event: int | None
    """The event at which memory runs out; -1 is before the first event."""


@dataclass(frozen=True, repr=False)
class Replay(Result):
    """`memviz.open("run.pickle").replay(settings="expandable_segments:True", memory="24GiB")`."""

    answer: ReplayAnswer = field(compare=False)
    rows: tuple[ReplayRow, ...]
    """The recorded settings in the same memory, what was asked for, and with `search` whatever was tried."""

    @property
    def trace(self) -> Trace:
        """The replay itself, for `memviz.open`."""
        return self.answer.found.replayed.trace

    @property
    def peak_reserved_bytes(self) -> int:
        return self.answer.found.replayed.peak_reserved_bytes

    @property
    def runs(self) -> bool:
        """To its end, in the memory that was named."""
        return self.answer.found.replayed.oom is None

    @property
    def headline(self) -> Headline:
        said, card = what_if(self.answer.found, self.answer.searched), self.answer.found.card
        if card is None or not card.overhead_bytes:
            return said
        aside = bytes_text(card.overhead_bytes)
        return said.and_also(f"Of the card's {card.name}, {aside} are set aside for the CUDA context and libraries.")

    def as_json(self) -> dict[str, Any]:
        """Return the output of `replay --json`."""
        return replayed_json(self.answer)

    def columns(self) -> Mapping[str, list[Any]]:
        names = ("name", "settings", "peak_allocated_bytes", "peak_reserved_bytes", "retries", "oom_event")
        return {name: [getattr(row, name) for row in self.rows] for name in names}

    def _html(self) -> Html:
        most = max(row.peak_reserved_bytes for row in self.rows)
        rows = [
            TableRow(
                (bytes_text(row.peak_reserved_bytes), count_text(row.retries), _end(row)),
                f"{row.name}: {row.settings or 'the default'}",
                (Bar(0, share(row.peak_reserved_bytes, most)),),
            )
            for row in self.rows
        ]
        return render_table(str(self), ["reserved at most", "retries", "end", "settings"], rows)


def _end(row: ReplayRow) -> str:
    if row.oom_event is None:
        return "runs"
    return f"out of memory at event {count_text(row.oom_event)}" if row.oom_event >= 0 else "does not begin"


def _oom_event(oom: RanOut | None) -> int | None:
    return None if oom is None else oom.event


def replay_result(
    trace: Trace,
    device: DeviceTrace,
    *,
    settings: str | None,
    memory: int | str | None,
    overhead: int | str | None,
    search: bool,
) -> Replay:
    if not isinstance(settings, str | None):
        raise UsageError(f'settings is a text, such as "expandable_segments:True", and not {settings!r}.')
    beside = OVERHEAD_BYTES if overhead is None else _size("overhead", overhead)
    question = ReplayQuestion(
        settings=None if settings is None else parse_settings(settings),
        card=None if memory is None else CardMemory(_size("memory", memory), beside),
        search=search,
        overhead=beside,
    )
    answer = replay_answer(trace, device, question)
    return Replay(answer, tuple(_rows(answer)))


def _size(name: str, said: int | str) -> int:
    try:
        size = parse_bytes(said) if isinstance(said, str) else int(said)
    except ValueError as error:
        raise UsageError(f"{name}: {error}") from None
    except (TypeError, OverflowError):
        raise UsageError(f'{name} is a size, as bytes or as in "24GiB", and not {said!r}.') from None
    if size < 0:
        raise UsageError(f"{name}: {said} is less than nothing.")
    return size


def _rows(answer: ReplayAnswer) -> list[ReplayRow]:
    outcome = answer.found
    named = [("recorded", outcome.compared_with)]
    if outcome.replayed is not outcome.compared_with:
        named.append(("replayed", outcome.replayed))
    rows = [
        ReplayRow(
            name,
            replayed.settings.to_text(),
            replayed.peak_allocated_bytes,
            replayed.peak_reserved_bytes,
            replayed.retries,
            _oom_event(replayed.oom),
        )
        for name, replayed in named
    ]
    tried = answer.searched.tried if answer.searched else ()
    return rows + [
        ReplayRow(
            "tried", one.text, one.peak_allocated_bytes, one.peak_reserved_bytes, one.retries, _oom_event(one.oom)
        )
        for one in tried
    ]
