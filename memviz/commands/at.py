"""The live allocations after any event, or at any time."""

from __future__ import annotations

import argparse
from typing import Any

from memviz.analysis.as_json import live_json
from memviz.analysis.groups import GROUPINGS
from memviz.analysis.lifetimes import event_at_seconds
from memviz.analysis.peak import at as live_at
from memviz.analysis.which_device import chosen_device
from memviz.commands.command import (
    Command,
    add_device,
    add_file,
    add_grouping,
    add_json,
    open_trace,
    print_json,
)
from memviz.commands.peak import print_elsewhere, print_live
from memviz.trace.model import DeviceTrace, Trace


def at(trace: Trace, event: int, device: str | None = None, by: str = "site", top: int | None = None) -> dict[str, Any]:
    """Return the output of `python -m memviz at --event N --json`."""
    chosen = chosen_device(trace, device)
    return live_json(trace, chosen, live_at(trace, chosen, event, by, top=top), "live_bytes")


def _event(device: DeviceTrace, args: argparse.Namespace) -> int:
    if args.event is not None:
        return int(args.event)
    return event_at_seconds(device, args.time)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_file(parser)
    moment = parser.add_mutually_exclusive_group(required=True)
    moment.add_argument("--event", type=int, metavar="N", help="after this event; -1 is before the first")
    moment.add_argument("--time", type=float, metavar="SECONDS", help="since the first event, or since 1970")
    add_device(parser)
    add_grouping(parser, list(GROUPINGS), top=20)
    add_json(parser)


def _run(args: argparse.Namespace) -> int:
    trace = open_trace(args.file)
    device = chosen_device(trace, args.device)
    live = live_at(trace, device, _event(device, args), args.by, top=args.top or None)
    if args.json:
        print_json(live_json(trace, device, live, "live_bytes"))
    else:
        print_live(device, live, "")
        print_elsewhere(trace, device)
    return 0


COMMAND = Command(_add_arguments, _run)
