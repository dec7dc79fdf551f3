"""The recording's requests under other settings, or on another card."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from memviz.allocator.context import OVERHEAD_BYTES
from memviz.allocator.question import ReplayAnswer, ReplayQuestion, replay_answer
from memviz.allocator.replayed import RanOut
from memviz.allocator.settings import parse_settings
from memviz.allocator.what_if import CardMemory
from memviz.errors import UsageError
from memviz.headlines.headline import Headline
from memviz.headlines.what_if import replayed_json, what_if
from memviz.notebook.result import Result
from memviz.notebook.table import Bar, TableRow, drawn, share
from memviz.trace.model import DeviceTrace, Trace
from memviz.ui.html.markup import Html
from memviz.units import bytes_text, count_text, parse_bytes


@dataclass(frozen=True)
class ReplayRow:
    name: str
    settings: str
    """As in PYTORCH_CUDA_ALLOC_CONF; empty for PyTorch's defaults."""
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    retries: int
    oom_event: int | None
    """Where memory ran out; -1 is before the first event."""


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
        """As `replay --json` writes it."""
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
        return drawn(str(self), ["reserved at most", "retries", "end", "settings"], rows)


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
    named = [("recorded", outcome.rival)]
    if outcome.replayed is not outcome.rival:
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
