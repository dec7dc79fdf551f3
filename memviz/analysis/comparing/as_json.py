"""A comparison as plain values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from memviz.analysis.comparing.changes import Change, Changes
from memviz.analysis.comparing.setting_differences import Setting
from memviz.trace.reserved_bytes import is_reserved_known


def diff_json(comparison: Changes, settings: Sequence[Setting], *, top: int | None = None) -> dict[str, Any]:
    pairs = [_pair(comparison, settings, other, top) for other in range(1, len(comparison.moments))]
    return pairs[0] if len(pairs) == 1 else {"comparisons": pairs}


def _pair(comparison: Changes, settings: Sequence[Setting], other: int, top: int | None) -> dict[str, Any]:
    return {
        "a": _side(comparison, 0),
        "b": _side(comparison, other),
        "by": comparison.by,
        "delta_bytes": comparison.delta(other),
        "rows": [_row(row, comparison.by, other) for row in comparison.rows[:top]],
        "rest_bytes": comparison.after(top).delta(other),
        "settings": {setting.name: [setting.values[0], setting.values[other]] for setting in settings},
    }


def _row(row: Change, by: str, other: int) -> dict[str, Any]:
    return {
        "site" if by == "site" else "key": row.thing.name,
        "a_bytes": row.bytes[0],
        "b_bytes": row.bytes[other],
        "delta_bytes": row.delta(other),
        "a_count": row.counts[0],
        "b_count": row.counts[other],
        "function": row.thing.function,
        "operator": row.thing.operator,
    }


def _side(comparison: Changes, number: int) -> dict[str, Any]:
    moment = comparison.moments[number]
    return {
        "file": moment.source,
        "device": moment.which.name,
        "event": moment.event,
        "peak_bytes": moment.live_bytes,
        "reserved_peak_bytes": moment.reserved_peak_bytes,
        "reserved_is_known": is_reserved_known(moment.live_bytes, moment.reserved_peak_bytes),
        "events": moment.event_count,
        "ran_out_at_event": moment.ran_out_at,
    }
