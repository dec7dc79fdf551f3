"""Findings about a trace, ranked by bytes."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from memviz.allocator.replayer import ESTIMATE
from memviz.analysis.findings.ranking import findings as findings_of
from memviz.analysis.findings.ranking import findings_json
from memviz.analysis.which_device import chosen_device
from memviz.commands.command import Command, add_device, add_file, add_json, open_trace, print_json, printable
from memviz.commands.peak import print_elsewhere
from memviz.trace.model import DeviceTrace, Trace
from memviz.ui.explore.findings import Offer, offers
from memviz.units import bytes_text, delta_text


def findings(trace: Trace, device: str | None = None) -> dict[str, Any]:
    """Return the output of `python -m memviz findings --json`."""
    return _with_estimates(trace, chosen_device(trace, device), {})


def _with_estimates(trace: Trace, device: DeviceTrace, offered: Mapping[str, tuple[Offer, ...]]) -> dict[str, Any]:
    written = findings_json(trace, device)
    for finding in written["findings"] if offered else ():
        finding["estimates"] = [_estimate(offer) for offer in offered.get(finding["key"], ())]
    return written


def _estimate(offer: Offer) -> dict[str, Any]:
    before, after = offer.estimate.before, offer.estimate.after
    return {
        "kind": str(offer.kind),
        "name": offer.name,
        "peak_live_bytes": [before.peak_requested_bytes, after.peak_requested_bytes],
        "peak_reserved_bytes": [before.peak_reserved_bytes, after.peak_reserved_bytes],
        "assumptions": list(offer.assumptions),
    }


def _print(trace: Trace, device: DeviceTrace, offered: Mapping[str, tuple[Offer, ...]]) -> None:
    ranked = findings_of(trace, device)
    if not ranked:
        print(f"Device {device.name}: nothing stands out.")
    for finding in ranked:
        print(f"{bytes_text(finding.bytes):>10}  {printable(finding.sentence)}")
        print(f"{'':10}  {printable(finding.remedy)}")
        for offer in offered.get(finding.key, ()):
            print(f"{'':10}  {offer.name}, {ESTIMATE}: {_changes(offer)}")


def _changes(offer: Offer) -> str:
    live, reserved = offer.estimate.live_change, offer.estimate.reserved_change
    return f"{delta_text(live)} live, {delta_text(reserved)} reserved at the peaks"


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_file(parser)
    add_device(parser)
    parser.add_argument(
        "--estimates", action="store_true", help="replay what could be done about each, and what it saves"
    )
    add_json(parser)


def _run(args: argparse.Namespace) -> int:
    trace = open_trace(args.file)
    device = chosen_device(trace, args.device)
    offered = offers(trace, device, most_events=len(device.events)) if args.estimates else {}
    if args.json:
        print_json(_with_estimates(trace, device, offered))
    else:
        _print(trace, device, offered)
        print_elsewhere(trace, device)
    return 0


COMMAND = Command(_add_arguments, _run)
