"""The allocations of which the peak consists."""

from __future__ import annotations

import argparse
from typing import Any

from memviz.analysis.as_json import live_json
from memviz.analysis.groups import GROUPINGS
from memviz.analysis.peak import LiveSet
from memviz.analysis.peak import peak as peak_of
from memviz.analysis.which_device import chosen_device
from memviz.commands.command import (
    Command,
    add_device,
    add_file,
    add_grouping,
    add_json,
    open_trace,
    print_json,
    print_table,
    printable,
)
from memviz.headlines.names import ran_out_elsewhere
from memviz.trace.model import DeviceTrace, Trace, is_reserved_known
from memviz.units import bytes_text, count_text, percent_text


def peak(trace: Trace, device: str | None = None, by: str = "site", top: int | None = None) -> dict[str, Any]:
    """Return the output of `python -m memviz peak --json`."""
    chosen = chosen_device(trace, device)
    return live_json(trace, chosen, peak_of(trace, chosen, by, top=top), "peak_bytes")


def print_live(device: DeviceTrace, live: LiveSet, words: str) -> None:
    moment = f"after event {count_text(live.event)}"
    if live.event < 0:
        moment = "before the first event" if len(device.events) else "at the end, all that is known"
    waiting = f", {bytes_text(live.waiting_bytes)} of it waiting to be freed" if live.waiting_bytes else ""
    is_known = is_reserved_known(live.live_bytes, live.reserved_bytes)
    reserved = f"{bytes_text(live.reserved_bytes)} reserved" if is_known else "reserved not known"
    print(f"Device {live.device}, {words}{moment}: {bytes_text(live.live_bytes)} live{waiting}, {reserved}\n")
    rows = [
        [bytes_text(group.bytes), percent_text(group.bytes, live.live_bytes), count_text(group.count), group.label]
        for group in live.live.groups
    ]
    if live.live.rest_count:
        rest = live.live
        share = percent_text(rest.rest_bytes, live.live_bytes)
        rows.append([bytes_text(rest.rest_bytes), share, count_text(rest.rest_count), "(all others)"])
    print_table(["bytes", "share", "blocks", live.live.by], rows, left=3)


def print_elsewhere(trace: Trace, device: DeviceTrace) -> None:
    words = ran_out_elsewhere(trace, device)
    if words:
        print(f"\n{printable(words)} --device looks at another one.")


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_file(parser)
    add_device(parser)
    add_grouping(parser, list(GROUPINGS), top=20)
    add_json(parser)


def _run(args: argparse.Namespace) -> int:
    trace = open_trace(args.file)
    device = chosen_device(trace, args.device)
    live = peak_of(trace, device, args.by, top=args.top or None)
    if args.json:
        print_json(live_json(trace, device, live, "peak_bytes"))
    else:
        print_live(device, live, "peak ")
        print_elsewhere(trace, device)
    return 0


COMMAND = Command(_add_arguments, _run)
