"""A replay of a trace's requests under other settings or on another card: its rows and the JSON of `replay`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from memviz.allocator.context import OVERHEAD_BYTES
from memviz.allocator.event_replay import Progress, part_of, rest_of
from memviz.allocator.replay_result import Figures, allocation_count
from memviz.allocator.replayer import CardMemory, Replayer, WhatIf
from memviz.allocator.search import Search, search
from memviz.allocator.settings import NEWEST, Release, Settings, environment_text
from memviz.results.headline import Headline, device_number
from memviz.results.replay_headline import replay_headline
from memviz.results.result import Bar, Result, Table, TableRow, named_fields, share
from memviz.trace.model import DeviceTrace, Trace
from memviz.units import bytes_text, count_text

_SEARCH_PARTS = 6
"""How many times as long as an answer a search takes, about."""


@dataclass(frozen=True)
class ReplayQuestion:
    """Each part may be left out."""

    settings: Settings | None = None
    card: CardMemory | None = None
    release: Release = NEWEST
    search: bool = False
    overhead: int = OVERHEAD_BYTES


@dataclass(frozen=True)
class ReplayRow:
    name: str
    settings: str
    """Allocator settings in the syntax of PYTORCH_CUDA_ALLOC_CONF; empty for PyTorch's defaults."""
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    retries: int
    oom_event: int | None
    """Event at which memory runs out; -1 is before the first event."""


@dataclass(frozen=True, repr=False)
class Replay(Result):
    """`memviz.open("run.pickle").replay(settings="expandable_segments:True", memory="24GiB")`."""

    recording: Trace = field(compare=False)
    device: DeviceTrace = field(compare=False)
    found: WhatIf = field(compare=False)
    searched: Search | None = field(compare=False)
    rows: tuple[ReplayRow, ...]
    """The recorded settings in the same memory, the given ones, and with `search` all that were tried."""

    @property
    def trace(self) -> Trace:
        """The replay itself, for `memviz.open`."""
        return self.found.replayed.trace

    @property
    def peak_reserved_bytes(self) -> int:
        return self.found.replayed.peak_reserved_bytes

    @property
    def runs(self) -> bool:
        """True if the replay ends without running out of memory."""
        return self.found.replayed.oom is None

    @property
    def headline(self) -> Headline:
        headline, card = replay_headline(self.found, self.searched), self.found.card
        if card is None or not card.overhead_bytes:
            return headline
        size = bytes_text(card.overhead_bytes)
        return headline.and_also(f"{size} of the card's {card.name} are set aside for the CUDA context and libraries.")

    def as_json(self) -> dict[str, Any]:
        """Return the output of `replay --json`."""
        outcome, searched = self.found, self.searched
        written = _outcome_json(outcome, replay_headline(outcome, searched))
        if not allocation_count(outcome.recorded):
            written |= dict.fromkeys(_KEYS_OF_END)
            if outcome.replayed.oom is not None:
                written |= dict.fromkeys(_KEYS_OF_REPLAY)
        written = {"device": device_number(self.device), **written}
        if searched is None:
            return written
        return {
            **written,
            "search": [
                {
                    "settings": outcome.text,
                    "is_recorded": outcome.is_recorded,
                    "as_recorded": outcome.is_as_recorded,
                    **named_fields(outcome, "fits", "peak_allocated_bytes", "peak_reserved_bytes"),
                    "peak_reserved_on_card_bytes": outcome.reserved_on_card_bytes,
                    "retries": outcome.retries,
                    "oom": _oom_json(outcome),
                    "smallest_card_bytes": outcome.smallest_card.total_bytes if outcome.smallest_card else None,
                }
                for outcome in searched.tried
            ],
            "advice": searched.advice,
            "advised_settings": searched.advised.text,
            "environment": environment_text(searched.advised.text),
            "saved_by": searched.saved_by.text if searched.saved_by else None,
        }

    def columns(self) -> Mapping[str, list[Any]]:
        return {name: [getattr(row, name) for row in self.rows] for name in ReplayRow.__annotations__}

    def table(self, most: int | None = None) -> Table:
        largest = max(row.peak_reserved_bytes for row in self.rows)
        rows = [
            TableRow(
                (bytes_text(row.peak_reserved_bytes), count_text(row.retries), _end_text(row)),
                f"{row.name}: {row.settings or 'the default'}",
                (Bar(0, share(row.peak_reserved_bytes, largest)),),
            )
            for row in self.rows
        ]
        return Table(("peak reserved", "retries", "end", "settings"), tuple(rows))


def _end_text(row: ReplayRow) -> str:
    if row.oom_event is None:
        return "runs"
    return f"out of memory at event {count_text(row.oom_event)}" if row.oom_event >= 0 else "cannot start"


def replay_result(
    trace: Trace, device: DeviceTrace, question: ReplayQuestion, progress: Progress | None = None
) -> Replay:
    parts = 1 + _SEARCH_PARTS if question.search else 1
    replayer, first = Replayer(trace, device), part_of(progress, 0, parts)
    outcome = replayer.what_if(question.settings, question.card, overhead_bytes=question.overhead, progress=first)
    searched = None
    if question.search and allocation_count(outcome.recorded):
        searched = search(
            replayer,
            question.card,
            also=question.settings,
            release=question.release,
            overhead_bytes=question.overhead,
            progress=rest_of(progress, parts),
        )
    return replay_of(trace, device, outcome, searched)


def replay_of(trace: Trace, device: DeviceTrace, outcome: WhatIf, searched: Search | None) -> Replay:
    named: list[tuple[str, Figures]] = [("recorded", outcome.compared_with)]
    if outcome.replayed is not outcome.compared_with:
        named.append(("replayed", outcome.replayed))
    named += [("tried", trial) for trial in (searched.tried if searched else ())]
    rows = (
        ReplayRow(
            name=name,
            settings=replayed.settings.to_text(),
            peak_allocated_bytes=replayed.peak_allocated_bytes,
            peak_reserved_bytes=replayed.peak_reserved_bytes,
            retries=replayed.retries,
            oom_event=None if replayed.oom is None else replayed.oom.event,
        )
        for name, replayed in named
    )
    return Replay(trace, device, outcome, searched, tuple(rows))


_KEYS_OF_END = ("as_recorded", "oom", "fit", "smallest_card_bytes", "change_bytes")
"""Keys that are null where there is nothing to replay."""
_KEYS_OF_REPLAY = (
    *("peak_requested_bytes", "peak_allocated_bytes", "peak_reserved_bytes", "reserved_end_bytes", "retries"),
    *("unused_at_peak_bytes", "fragmentation", "recorded_settings_replayed", "recorded_settings_as_memory_lay"),
)
"""Keys that are null too where the memory from before the recording does not fit on the card."""


def _outcome_json(outcome: WhatIf, headline: Headline) -> dict[str, Any]:
    replayed, card = outcome.replayed, outcome.card
    agreement = outcome.recorded.agreement
    assert agreement is not None
    first = agreement.first_mismatch
    return {
        "settings": replayed.settings.to_text(),
        "exact": outcome.recorded.exact,
        "address_mismatches": agreement.address_mismatches,
        "first_mismatch": None if first is None else asdict(first),
        **_figures_json(replayed),
        "verdict": str(headline),
        "provenance": replayed.trace.about.label,
        "recorded_settings": outcome.recorded.settings.to_text(),
        "addresses": allocation_count(outcome.recorded),
        "as_recorded": outcome.replayed is outcome.base and not outcome.divergence,
        "why_not_as_recorded": outcome.divergence if outcome.replayed is outcome.base else outcome.why_not_as_recorded,
        "recorded_peak_reserved_bytes": outcome.recorded_peak_bytes if outcome.knows_recorded_peak else None,
        "recorded_retries": outcome.recorded.retries,
        "recorded_settings_replayed": _figures_json(outcome.compared_with),
        "recorded_settings_as_memory_lay": _figures_json(outcome.base),
        "change_bytes": None if outcome.replayed.oom or outcome.compared_with.oom else outcome.change_bytes,
        **named_fields(replayed, "peak_requested_bytes", "waiting_at_start_bytes", "unused_at_peak_bytes"),
        "fragmentation": round(replayed.fragmentation, 6),
        "card_bytes": card.total_bytes if card else None,
        "overhead_bytes": card.overhead_bytes if card else None,
        "memory_bytes": card.usable_bytes if card else None,
        "fit": outcome.fit,
        "context": outcome.context.as_json() if outcome.context else None,
        "smallest_card_bytes": outcome.smallest_card.total_bytes if outcome.smallest_card else None,
        "notes": [named_fields(note, "code", "level", "text") for note in replayed.trace.notes],
    }


def _figures_json(replayed: Figures) -> dict[str, Any]:
    names = ("peak_allocated_bytes", "peak_reserved_bytes", "reserved_end_bytes", "retries")
    return {**named_fields(replayed, *names), "oom": _oom_json(replayed)}


def _oom_json(replayed: Figures) -> dict[str, int] | None:
    names = ("event", "requested_bytes", "allocated_bytes", "reserved_bytes")
    return None if replayed.oom is None else named_fields(replayed.oom, *names)
