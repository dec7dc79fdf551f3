"""Results as plain values: what `--json` writes, and the page's own interface for programs returns."""

from __future__ import annotations

from typing import Any

from memviz.analysis.compare import Comparison
from memviz.analysis.peak import LiveSet
from memviz.analysis.summary import device_number
from memviz.trace.model import DeviceTrace, Trace


def live_json(trace: Trace, device: DeviceTrace, live: LiveSet, total: str) -> dict[str, Any]:
    return {
        "device": device_number(device),
        "event": live.event,
        "time_us": live.time_us,
        total: live.live_bytes,
        "waiting_bytes": live.waiting_bytes,
        "reserved_bytes": live.reserved_bytes,
        "by": live.live.by,
        "rows": [
            {
                "site" if live.live.by == "site" else "key": each.label,
                "bytes": each.bytes,
                "count": each.count,
                **({"stack": frames_json(trace, each.stack)} if each.stack is not None else {}),
            }
            for each in live.live.groups
        ],
        "rest_bytes": live.live.rest_bytes,
        "rest_count": live.live.rest_count,
    }


def frames_json(trace: Trace, stack: int) -> list[dict[str, Any]]:
    """Innermost frame first, as torch has it."""
    frames, strings = trace.stacks.frames, trace.strings
    return [
        {"name": strings[frames.name[i]], "filename": strings[frames.filename[i]], "line": int(frames.line[i])}
        for i in trace.stacks.of(stack)
    ]


def diff_json(found: Comparison) -> dict[str, Any]:
    pairs = [_pair(found, other) for other in range(1, len(found.moments))]
    return pairs[0] if len(pairs) == 1 else {"comparisons": pairs}


def _pair(found: Comparison, other: int) -> dict[str, Any]:
    name = "site" if found.by == "site" else "key"
    return {
        "a": _side(found, 0),
        "b": _side(found, other),
        "by": found.by,
        "delta_bytes": found.delta_bytes[other],
        "rows": [
            {
                name: row.label,
                "a_bytes": row.bytes[0],
                "b_bytes": row.bytes[other],
                "delta_bytes": row.delta_bytes[other],
                "a_count": row.counts[0],
                "b_count": row.counts[other],
            }
            for row in found.rows
        ],
        "rest_bytes": found.rest_delta_bytes[other],
        "settings": {each.name: [each.values[0], each.values[other]] for each in found.settings},
    }


def _side(found: Comparison, number: int) -> dict[str, Any]:
    moment = found.moments[number]
    return {
        "file": moment.source,
        "device": moment.device,
        "event": moment.event,
        "peak_bytes": moment.live_bytes,
        "reserved_peak_bytes": moment.reserved_peak_bytes,
        "events": moment.event_count,
    }
