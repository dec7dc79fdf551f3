"""What a replay found as plain values, for `--json` and for other programs."""

from __future__ import annotations

from typing import Any

from memviz.allocator.agreement import addresses
from memviz.allocator.replayed import Figures, Replayed
from memviz.allocator.search import Search
from memviz.allocator.tried import Tried
from memviz.allocator.what_if import WhatIf


def replay_json(outcome: WhatIf, searched: Search | None, verdict: str) -> dict[str, Any]:
    """`verdict` is the headline, which is made above here."""
    said = _said(outcome, verdict)
    if not addresses(outcome.recorded):
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
        "peak_allocated_bytes": ours.peak_allocated_bytes,
        "peak_reserved_bytes": ours.peak_reserved_bytes,
        "reserved_end_bytes": ours.reserved_end_bytes,
        "retries": ours.retries,
        "oom": _oom(ours),
        "verdict": verdict,
        "provenance": ours.trace.about.label,
        "recorded_settings": outcome.recorded.settings.to_text(),
        "addresses": addresses(outcome.recorded),
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
        "as_recorded": outcome.replayed is outcome.base and not outcome.parted,
        "why_not_as_recorded": outcome.parted if outcome.replayed is outcome.base else outcome.why_not_as_recorded,
        "recorded_peak_reserved_bytes": outcome.recorded_peak_bytes if outcome.knows_recorded_peak else None,
        "recorded_retries": outcome.recorded.retries,
        "recorded_settings_replayed": _figures(outcome.rival),
        "recorded_settings_as_memory_lay": _figures(outcome.base),
        "change_bytes": None if outcome.replayed.oom or outcome.rival.oom else outcome.change_bytes,
    }


def _figures(replayed: Figures) -> dict[str, Any]:
    return {
        "peak_allocated_bytes": replayed.peak_allocated_bytes,
        "peak_reserved_bytes": replayed.peak_reserved_bytes,
        "reserved_end_bytes": replayed.reserved_end_bytes,
        "retries": replayed.retries,
        "oom": _oom(replayed),
    }


def _agreement(recorded: Replayed) -> dict[str, Any]:
    agreement = recorded.agreement
    assert agreement is not None
    first = agreement.first_mismatch
    return {
        "exact": recorded.exact,
        "address_mismatches": agreement.address_mismatches,
        "first_mismatch": None
        if first is None
        else {"event": first.event, "expected": first.expected, "got": first.got, "why": first.why},
    }


def _oom(replayed: Figures | Tried) -> dict[str, int] | None:
    oom = replayed.oom
    if oom is None:
        return None
    return {
        "event": oom.event,
        "requested_bytes": oom.requested_bytes,
        "allocated_bytes": oom.allocated_bytes,
        "reserved_bytes": oom.reserved_bytes,
    }


def _search(searched: Search) -> dict[str, Any]:
    return {
        "search": [_tried(outcome) for outcome in searched.tried],
        "advice": searched.advice,
        "advised_settings": searched.advised.text,
        "environment": environment(searched.advised.text),
        "saved_by": searched.saved_by.text if searched.saved_by else None,
    }


def _tried(tried: Tried) -> dict[str, Any]:
    return {
        "settings": tried.text,
        "is_recorded": tried.is_recorded,
        "as_recorded": tried.is_as_recorded,
        "fits": tried.fits,
        "peak_allocated_bytes": tried.peak_allocated_bytes,
        "peak_reserved_bytes": tried.peak_reserved_bytes,
        "peak_reserved_on_card_bytes": tried.reserved_on_card_bytes,
        "retries": tried.retries,
        "oom": _oom(tried),
        "smallest_card_bytes": tried.smallest_card.total_bytes if tried.smallest_card else None,
    }


def environment(text: str) -> str:
    """As a shell takes it: brackets and > mean something there."""
    quoted = f'"{text}"' if any(letter in text for letter in "[]>") else text
    return f"PYTORCH_CUDA_ALLOC_CONF={quoted}"
