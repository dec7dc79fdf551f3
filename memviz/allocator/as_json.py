"""What a replay found as plain values, for `--json` and for other programs."""

from __future__ import annotations

from typing import Any

from memviz.allocator.replayer import Replayed
from memviz.allocator.search import Search, Tried
from memviz.allocator.verdict import addresses, verdict
from memviz.allocator.what_if import WhatIf


def replay_json(found: WhatIf, searched: Search | None = None) -> dict[str, Any]:
    ours, card = found.replayed, found.card
    return {
        "settings": ours.settings.to_text(),
        **_agreement(found.recorded),
        "peak_allocated_bytes": ours.peak_allocated_bytes,
        "peak_reserved_bytes": ours.peak_reserved_bytes,
        "reserved_end_bytes": ours.reserved_end_bytes,
        "retries": ours.retries,
        "oom": _oom(ours),
        "verdict": " ".join(verdict(found, searched)).strip(),
        "provenance": ours.trace.about.label,
        "recorded_settings": found.recorded.settings.to_text(),
        "addresses": addresses(found.recorded),
        "peak_requested_bytes": ours.peak_requested_bytes,
        "unused_at_peak_bytes": ours.unused_at_peak_bytes,
        "fragmentation": round(ours.fragmentation, 6),
        "card_bytes": card.total_bytes if card else None,
        "overhead_bytes": card.overhead_bytes if card else None,
        "memory_bytes": card.usable_bytes if card else None,
        "smallest_card_bytes": found.smallest_card.total_bytes if found.smallest_card else None,
        "notes": [{"code": each.code, "level": each.level, "text": each.text} for each in ours.trace.notes],
        **(_search(searched) if searched else {}),
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


def _oom(replayed: Replayed | Tried) -> dict[str, int] | None:
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
        "search": [_tried(each) for each in searched.tried],
        "advice": searched.advice,
        "advised_settings": searched.advised.text,
        "environment": environment(searched.advised.text),
        "saved_by": searched.saved_by.text if searched.saved_by else None,
    }


def _tried(each: Tried) -> dict[str, Any]:
    return {
        "settings": each.text,
        "is_recorded": each.is_recorded,
        "fits": each.fits,
        "peak_allocated_bytes": each.peak_allocated_bytes,
        "peak_reserved_bytes": each.peak_reserved_bytes,
        "retries": each.retries,
        "oom": _oom(each),
        "smallest_card_bytes": each.smallest_card.total_bytes if each.smallest_card else None,
    }


def environment(text: str) -> str:
    """As a shell takes it: brackets and > mean something there."""
    quoted = f'"{text}"' if any(each in text for each in "[]>") else text
    return f"PYTORCH_CUDA_ALLOC_CONF={quoted}"
