"""A trace, a live set and search results as plain values, for `--json` and other programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from memviz.analysis.breakdown import dominant_by_group, purpose_totals
from memviz.analysis.health import health, history
from memviz.analysis.lifetimes import live_rows
from memviz.analysis.peak import FailedRequest, LiveSet, failed_requests
from memviz.analysis.timeline import has_reserved, timeline
from memviz.trace.distinct import distinct
from memviz.trace.model import DeviceTrace, Note, Trace, is_reserved_known

if TYPE_CHECKING:
    from memviz.analysis.find import FindResult


def summary(trace: Trace, devices: tuple[DeviceTrace, ...] | None = None) -> dict[str, Any]:
    chosen = {device.name for device in (trace.devices if devices is None else devices)}
    notes = [note for note in (*trace.notes, *health(trace)) if not note.device or note.device in chosen]
    return {
        "file": trace.about.source,
        "format": trace.about.format,
        "origin": trace.about.label,
        "devices": [_device(trace, device) for device in (trace.devices if devices is None else devices)],
        "notes": [_note(note) for note in notes],
    }


def device_number(device: DeviceTrace) -> int | str:
    """In JSON: a number, or 'host0' for pinned memory."""
    return device.device if device.kind == "gpu" else device.name


def _device(trace: Trace, device: DeviceTrace) -> dict[str, Any]:
    events, line = device.events, timeline(device)
    return {
        "device": device_number(device),
        "events": len(events),
        "start_bytes": line.start_bytes,
        "peak_bytes": line.peak_bytes,
        "peak_event": line.peak_event,
        "end_bytes": line.end_bytes,
        "reserved_peak_bytes": line.reserved_peak_bytes,
        "reserved_end_bytes": int(line.reserved[-1]),
        "reserved_is_known": has_reserved(device),
        "history": history(device),
        "actions": {trace.action_name(int(code)): int(n) for code, n in zip(*_counts(events.action), strict=True)},
        "oom": [_oom_json(failed) for failed in failed_requests(trace, device)],
        "streams": sorted(trace.streams[code] for code in _used(events.stream, device.segments.stream)),
        "pools": sorted(list(trace.pools[code]) for code in _used(events.pool, device.segments.pool)),
        "annotations": sorted({trace.strings[code] for code in distinct(device.annotations.name)}),
    }


def _counts(column: Any) -> Any:
    return np.unique(column, return_counts=True)


def _used(first: Any, second: Any) -> list[int]:
    return [int(code) for code in distinct(np.append(distinct(first), distinct(second)))]


def _oom_json(failed: FailedRequest) -> dict[str, int | None]:
    names = ("event", "requested_bytes", "device_free_bytes", "live_bytes", "reserved_bytes")
    return {name: getattr(failed, name) for name in names}


def _note(note: Note) -> dict[str, str]:
    return {"code": note.code, "level": note.level, "text": note.text, "remedy": note.remedy}


_MOST_OF_STACKS = 64 << 20
"""Characters in one answer. Few frames with long names, in many orders, would become gigabytes of text."""
_FRAME = 50


def live_json(trace: Trace, device: DeviceTrace, live: LiveSet, total: str) -> dict[str, Any]:
    """The smaller groups come without their stacks where those of the larger ones fill the answer already."""
    stacks = _stacks_that_fit(trace, [group.stack for group in live.live.groups if group.stack is not None])
    rows = live_rows(device, live.event)
    mostly = dominant_by_group(trace, device, rows, live.live.by)
    left_out = sum(group.stack is not None and group.stack not in stacks for group in live.live.groups)
    return {
        "device": device_number(device),
        "event": live.event,
        "time_us": live.time_us,
        total: live.live_bytes,
        "waiting_bytes": live.waiting_bytes,
        "reserved_bytes": live.reserved_bytes,
        "reserved_is_known": is_reserved_known(live.live_bytes, live.reserved_bytes),
        "by": live.live.by,
        "rows": [
            {
                "site" if live.live.by == "site" else "key": group.label,
                "bytes": group.bytes,
                "count": group.count,
                "purpose": mostly[group.key].kind,
                "purpose_bytes": mostly[group.key].bytes,
                "certainty": mostly[group.key].certainty.word,
                "reason": mostly[group.key].reason,
                **(
                    {"stack": frames_json(trace, group.stack)}
                    if group.stack is not None and group.stack in stacks
                    else {}
                ),
            }
            for group in live.live.groups
        ],
        "rest_bytes": live.live.rest_bytes,
        "rest_count": live.live.rest_count,
        "purposes": [
            {
                "purpose": purpose.kind,
                "certainty": purpose.certainty.word,
                "reason": purpose.reason,
                "bytes": purpose.bytes,
                "count": purpose.count,
            }
            for purpose in purpose_totals(trace, device, rows)
        ],
        **({"stacks_left_out": left_out} if left_out else {}),
    }


def found_json(device: DeviceTrace, result: FindResult, top: int | None = None) -> dict[str, Any]:
    """The rows and the rest add up."""
    shown, rest = result.sites[:top], result.sites[len(result.sites[:top]) :]
    return {
        "device": device_number(device),
        "event": result.event,
        "count": result.count,
        "live_bytes": result.live_bytes,
        "live_count": result.live_count,
        "rows": [
            {
                "site": site.label,
                "live_bytes": site.live_bytes,
                "live_count": site.live_count,
                "all_bytes": site.bytes,
                "all_count": site.count,
            }
            for site in shown
        ],
        "rest_sites": len(rest),
        "rest_live_bytes": sum(site.live_bytes for site in rest),
        "rest_count": sum(site.count for site in rest),
    }


def _stacks_that_fit(trace: Trace, stacks: Sequence[int]) -> set[int]:
    """From the first on, each as often as it is named."""
    frames, strings = trace.stacks.frames, trace.strings
    fit: set[int] = set()
    left = _MOST_OF_STACKS
    for stack in stacks:
        used = trace.stacks.of(stack)
        left -= sum(len(strings[frames.name[i]]) + len(strings[frames.filename[i]]) + _FRAME for i in used)
        if left < 0:
            break
        fit.add(stack)
    return fit


def frames_json(trace: Trace, stack: int) -> list[dict[str, Any]]:
    """Innermost frame first, as torch has it."""
    frames, strings = trace.stacks.frames, trace.strings
    return [
        {"name": strings[frames.name[i]], "filename": strings[frames.filename[i]], "line": int(frames.line[i])}
        for i in trace.stacks.of(stack)
    ]
