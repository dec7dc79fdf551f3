"""What a snapshot holds: per device the bytes at start, peak and end, and what to know about the recording."""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from memviz.analysis.health import health, history
from memviz.analysis.timeline import timeline
from memviz.commands.command import (
    Command,
    add_device,
    add_file,
    add_json,
    choose_device,
    device_json,
    open_trace,
    print_json,
    printable,
)
from memviz.trace.model import Action, DeviceTrace, Note, Trace
from memviz.units import bytes_text, count_text

_HISTORY = {
    "complete": "complete from the first byte",
    "late": "started late: something was there before the first event",
    "none": "none: only the state at the end is known",
}


def summary(trace: Trace, device: str | None = None) -> dict[str, Any]:
    """As `python -m memviz summary --json` writes it."""
    devices = trace.devices if device is None else (choose_device(trace, device),)
    return {
        "file": trace.about.source,
        "format": trace.about.format,
        "origin": trace.about.label,
        "devices": [_device(trace, each) for each in devices],
        "notes": [_note(each) for each in (*trace.notes, *health(trace))],
    }


def _device(trace: Trace, device: DeviceTrace) -> dict[str, Any]:
    events, line = device.events, timeline(device)
    return {
        "device": device_json(device),
        "events": len(events),
        "start_bytes": line.start_bytes,
        "peak_bytes": line.peak_bytes,
        "peak_event": line.peak_event,
        "end_bytes": line.end_bytes,
        "reserved_peak_bytes": line.reserved_peak_bytes,
        "reserved_end_bytes": int(line.reserved[-1]),
        "history": history(device),
        "actions": {trace.action_name(int(code)): int(n) for code, n in zip(*_counts(events.action), strict=True)},
        "oom": [_oom(device, int(event)) for event in np.flatnonzero(events.action == Action.OOM)],
        "streams": sorted(trace.streams[code] for code in _used(events.stream, device.segments.stream)),
        "pools": sorted(list(trace.pools[code]) for code in _used(events.pool, device.segments.pool)),
        "annotations": sorted({trace.strings[code] for code in np.unique(device.annotations.name)}),
    }


def _counts(column: Any) -> Any:
    return np.unique(column, return_counts=True)


def _used(first: Any, second: Any) -> list[int]:
    return [int(code) for code in np.union1d(np.unique(first), np.unique(second))]


def _oom(device: DeviceTrace, event: int) -> dict[str, int]:
    line = timeline(device)
    return {
        "event": event,
        "requested_bytes": int(device.events.size[event]),
        "device_free_bytes": int(device.events.address[event]),
        "live_bytes": int(line.live[event + 1]),
        "reserved_bytes": int(line.reserved[event + 1]),
    }


def _note(note: Note) -> dict[str, str]:
    return {"code": note.code, "level": note.level, "text": note.text, "remedy": note.remedy}


def _print(result: dict[str, Any]) -> None:
    print(f"{printable(result['file'])}: {result['format']}, {printable(result['origin'])}")
    for each in result["devices"]:
        _print_device(each)
    for note in result["notes"]:
        mark = "!" if note["level"] == "warning" else "-"
        print(f"\n{mark} {printable(note['text'])}" + (f"\n  {printable(note['remedy'])}" if note["remedy"] else ""))


def _print_device(device: dict[str, Any]) -> None:
    print(f"\nDevice {device['device']}: {count_text(device['events'])} events, history {_HISTORY[device['history']]}")
    moment = "before the first event" if device["peak_event"] < 0 else f"at event {count_text(device['peak_event'])}"
    print(f"  live      {bytes_text(device['peak_bytes'])} at the peak, {moment}")
    print(f"            {bytes_text(device['start_bytes'])} at the start, {bytes_text(device['end_bytes'])} at the end")
    reserved, end = device["reserved_peak_bytes"], device["reserved_end_bytes"]
    print(f"  reserved  {bytes_text(reserved)} at its peak, {bytes_text(end)} at the end")
    for oom in device["oom"]:
        asked, had = bytes_text(oom["requested_bytes"]), bytes_text(oom["device_free_bytes"])
        print(f"  out of memory at event {count_text(oom['event'])}: {asked} asked, {had} free on the device")


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_file(parser)
    add_device(parser, "all")
    add_json(parser)


def _run(args: argparse.Namespace) -> int:
    result = summary(open_trace(args.file), args.device)
    print_json(result) if args.json else _print(result)
    return 0


COMMAND = Command("summary", "What a snapshot holds, and what to know about it.", _add_arguments, _run)
