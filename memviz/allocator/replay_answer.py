"""A question about a recording (settings, card, search), its answer, and the answer as JSON values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from memviz.allocator.context import OVERHEAD_BYTES
from memviz.allocator.event_replay import Progress, part_of, rest_of
from memviz.allocator.replay_result import Figures, Replayed, allocation_count
from memviz.allocator.replayer import CardMemory, Replayer, WhatIf
from memviz.allocator.search import Search, SettingsTrial, search
from memviz.allocator.settings import NEWEST, Release, Settings
from memviz.trace.model import DeviceTrace, Trace

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
class ReplayAnswer:
    trace: Trace
    device: DeviceTrace
    found: WhatIf
    searched: Search | None


def replay_answer(
    trace: Trace, device: DeviceTrace, question: ReplayQuestion, progress: Progress | None = None
) -> ReplayAnswer:
    parts = 1 + _SEARCH_PARTS if question.search else 1
    replayer, overhead = Replayer(trace, device), question.overhead
    first = part_of(progress, 0, parts)
    outcome = replayer.what_if(question.settings, question.card, overhead_bytes=overhead, progress=first)
    searched = None
    if question.search and allocation_count(outcome.recorded):
        searched = search(
            replayer,
            question.card,
            also=question.settings,
            release=question.release,
            overhead_bytes=overhead,
            progress=rest_of(progress, 1, parts),
        )
    return ReplayAnswer(trace, device, outcome, searched)


def replay_json(outcome: WhatIf, searched: Search | None, verdict: str) -> dict[str, Any]:
    """`verdict` is the headline, which is made above here."""
    said = _said(outcome, verdict)
    if not allocation_count(outcome.recorded):
        said |= dict.fromkeys(_OF_AN_END)
        if outcome.replayed.oom is not None:
            said |= dict.fromkeys(_OF_A_REPLAY)
    return {**said, **(_search(searched) if searched else {})}


_OF_AN_END = ("as_recorded", "oom", "fit", "smallest_card_bytes", "change_bytes")
"""Nothing is said of how it ends where there is nothing to replay."""
_OF_A_REPLAY = (
    *("peak_requested_bytes", "peak_allocated_bytes", "peak_reserved_bytes", "reserved_end_bytes", "retries"),
    *("unused_at_peak_bytes", "fragmentation", "recorded_settings_replayed", "recorded_settings_as_memory_lay"),
)
"""Nor of what was there, where that cannot be laid out on the card."""


def _said(outcome: WhatIf, verdict: str) -> dict[str, Any]:
    ours, card = outcome.replayed, outcome.card
    return {
        "settings": ours.settings.to_text(),
        **_agreement(outcome.recorded),
        **_figures(ours),
        "verdict": verdict,
        "provenance": ours.trace.about.label,
        "recorded_settings": outcome.recorded.settings.to_text(),
        "addresses": allocation_count(outcome.recorded),
        **_beside(outcome),
        "peak_requested_bytes": ours.peak_requested_bytes,
        "waiting_at_start_bytes": ours.waiting_at_start_bytes,
        "unused_at_peak_bytes": ours.unused_at_peak_bytes,
        "fragmentation": round(ours.fragmentation, 6),
        "card_bytes": card.total_bytes if card else None,
        "overhead_bytes": card.overhead_bytes if card else None,
        "memory_bytes": card.usable_bytes if card else None,
        "fit": outcome.fit,
        "context": outcome.context.as_json() if outcome.context else None,
        "smallest_card_bytes": outcome.smallest_card.total_bytes if outcome.smallest_card else None,
        "notes": [{"code": note.code, "level": note.level, "text": note.text} for note in ours.trace.notes],
    }


def _beside(outcome: WhatIf) -> dict[str, Any]:
    """The recording, and the recorded settings in the same memory and from the same start."""
    return {
        "as_recorded": outcome.replayed is outcome.base and not outcome.divergence,
        "why_not_as_recorded": outcome.divergence if outcome.replayed is outcome.base else outcome.why_not_as_recorded,
        "recorded_peak_reserved_bytes": outcome.recorded_peak_bytes if outcome.knows_recorded_peak else None,
        "recorded_retries": outcome.recorded.retries,
        "recorded_settings_replayed": _figures(outcome.compared_with),
        "recorded_settings_as_memory_lay": _figures(outcome.base),
        "change_bytes": None if outcome.replayed.oom or outcome.compared_with.oom else outcome.change_bytes,
    }


def _columns(result: object, *names: str) -> dict[str, Any]:
    return {name: getattr(result, name) for name in names}


def _figures(replayed: Figures) -> dict[str, Any]:
    names = ("peak_allocated_bytes", "peak_reserved_bytes", "reserved_end_bytes", "retries")
    return {**_columns(replayed, *names), "oom": _oom(replayed)}


def _agreement(recorded: Replayed) -> dict[str, Any]:
    agreement = recorded.agreement
    assert agreement is not None
    first = agreement.first_mismatch
    return {
        "exact": recorded.exact,
        "address_mismatches": agreement.address_mismatches,
        "first_mismatch": None if first is None else dict(vars(first)),
    }


def _oom(replayed: Figures | SettingsTrial) -> dict[str, int] | None:
    if replayed.oom is None:
        return None
    return _columns(replayed.oom, "event", "requested_bytes", "allocated_bytes", "reserved_bytes")


def _search(searched: Search) -> dict[str, Any]:
    return {
        "search": [_trial(trial) for trial in searched.tried],
        "advice": searched.advice,
        "advised_settings": searched.advised.text,
        "environment": environment(searched.advised.text),
        "saved_by": searched.saved_by.text if searched.saved_by else None,
    }


def _trial(trial: SettingsTrial) -> dict[str, Any]:
    return {
        "settings": trial.text,
        "is_recorded": trial.is_recorded,
        "as_recorded": trial.is_as_recorded,
        **_columns(trial, "fits", "peak_allocated_bytes", "peak_reserved_bytes"),
        "peak_reserved_on_card_bytes": trial.reserved_on_card_bytes,
        "retries": trial.retries,
        "oom": _oom(trial),
        "smallest_card_bytes": trial.smallest_card.total_bytes if trial.smallest_card else None,
    }


def environment(text: str) -> str:
    """Return the settings as a shell assignment, quoted where they hold brackets or >."""
    quoted = f'"{text}"' if any(letter in text for letter in "[]>") else text
    return f"PYTORCH_CUDA_ALLOC_CONF={quoted}"
