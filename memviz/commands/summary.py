"""The contents of a snapshot: per device the bytes at start, peak and end, and notes on the recording."""

from __future__ import annotations

import argparse
from typing import Any

from memviz.analysis.which_device import chosen_device
from memviz.commands.command import (
    Command,
    add_device,
    add_file,
    add_json,
    open_trace,
    print_json,
    printable,
)
from memviz.headlines.explore import summary_json
from memviz.trace.model import Trace
from memviz.units import bytes_text, count_text, counted

_HISTORY = {
    "complete": "complete from the first byte",
    "late": "started late: something was there before the first event",
    "none": "none: only the state at the end is known",
}


def summary(trace: Trace, device: str | None = None, *, findings: bool = True) -> dict[str, Any]:
    """Return the output of `python -m memviz summary --json`; the printed form needs no findings."""
    return summary_json(trace, None if device is None else [chosen_device(trace, device)], findings=findings)


def _print(result: dict[str, Any]) -> None:
    print(f"{printable(result['file'])}: {result['format']}, {printable(result['origin'])}")
    for device in result["devices"]:
        print(printable(f"{device['headline']['answer']} {device['headline']['reason']}"))
    for device in result["devices"]:
        _print_device(device)
    for note in result["notes"]:
        mark = "!" if note["level"] == "warning" else "-"
        print(f"\n{mark} {printable(note['text'])}" + (f"\n  {printable(note['remedy'])}" if note["remedy"] else ""))


def _print_device(device: dict[str, Any]) -> None:
    print(f"\nDevice {device['device']}: {counted(device['events'], 'event')}, history {_HISTORY[device['history']]}")
    moment = f"at event {count_text(device['peak_event'])}"
    if device["peak_event"] < 0:
        moment = "before the first event" if device["events"] else "which is the end, all that is known"
    print(f"  live      {bytes_text(device['peak_bytes'])} at the peak, {moment}")
    print(f"            {bytes_text(device['start_bytes'])} at the start, {bytes_text(device['end_bytes'])} at the end")
    reserved, end = bytes_text(device["reserved_peak_bytes"]), bytes_text(device["reserved_end_bytes"])
    told = f"{reserved} at its peak, {end} at the end" if device["reserved_is_known"] else "not known"
    print(f"  reserved  {told}")
    for oom in device["oom"]:
        requested, free = bytes_text(oom["requested_bytes"]), oom["device_free_bytes"]
        had = "what was free on the device is not known" if free is None else f"{bytes_text(free)} free on the device"
        print(f"  out of memory at event {count_text(oom['event'])}: {requested} asked, {had}")


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_file(parser)
    add_device(parser, "all")
    add_json(parser)


def _run(args: argparse.Namespace) -> int:
    result = summary(open_trace(args.file), args.device, findings=args.json)
    print_json(result) if args.json else _print(result)
    return 0


COMMAND = Command(_add_arguments, _run)
