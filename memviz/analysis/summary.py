"""What a trace holds, in one plain value: what `summary --json` writes and other programs build on."""

from __future__ import annotations

from typing import Any

import numpy as np

from memviz.analysis.health import health, history
from memviz.analysis.reserved.known import tells_reserved
from memviz.analysis.timeline import timeline
from memviz.trace.distinct import distinct
from memviz.trace.model import Action, DeviceTrace, Note, Trace, driver_free


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
        "reserved_is_known": tells_reserved(device),
        "history": history(device),
        "actions": {trace.action_name(int(code)): int(n) for code, n in zip(*_counts(events.action), strict=True)},
        "oom": [_oom(device, int(event)) for event in np.flatnonzero(events.action == Action.OOM)],
        "streams": sorted(trace.streams[code] for code in _used(events.stream, device.segments.stream)),
        "pools": sorted(list(trace.pools[code]) for code in _used(events.pool, device.segments.pool)),
        "annotations": sorted({trace.strings[code] for code in distinct(device.annotations.name)}),
    }


def _counts(column: Any) -> Any:
    return np.unique(column, return_counts=True)


def _used(first: Any, second: Any) -> list[int]:
    return [int(code) for code in distinct(np.append(distinct(first), distinct(second)))]


def _oom(device: DeviceTrace, event: int) -> dict[str, int | None]:
    line = timeline(device)
    return {
        "event": event,
        "requested_bytes": int(device.events.size[event]),
        "device_free_bytes": driver_free(device.events, event),
        "live_bytes": int(line.live[event + 1]),
        "reserved_bytes": int(line.reserved[event + 1]),
    }


def _note(note: Note) -> dict[str, str]:
    return {"code": note.code, "level": note.level, "text": note.text, "remedy": note.remedy}
