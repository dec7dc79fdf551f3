"""What is worth knowing about a trace, ranked by bytes."""

from __future__ import annotations

import argparse
from typing import Any

from memviz.analysis.findings.as_json import findings_json
from memviz.analysis.findings.ranked import findings as findings_of
from memviz.analysis.which_device import chosen_device
from memviz.commands.command import Command, add_device, add_file, add_json, open_trace, print_json, printable
from memviz.commands.peak import print_elsewhere
from memviz.trace.model import DeviceTrace, Trace
from memviz.units import bytes_text


def findings(trace: Trace, device: str | None = None) -> dict[str, Any]:
    """As `python -m memviz findings --json` writes it."""
    return findings_json(trace, chosen_device(trace, device))


def _print(trace: Trace, device: DeviceTrace) -> None:
    ranked = findings_of(trace, device)
    if not ranked:
        print(f"Device {device.name}: nothing stands out.")
    for finding in ranked:
        print(f"{bytes_text(finding.bytes):>10}  {printable(finding.sentence)}")
        print(f"{'':10}  {printable(finding.remedy)}")


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_file(parser)
    add_device(parser)
    add_json(parser)


def _run(args: argparse.Namespace) -> int:
    trace = open_trace(args.file)
    device = chosen_device(trace, args.device)
    if args.json:
        print_json(findings_json(trace, device))
    else:
        _print(trace, device)
        print_elsewhere(trace, device)
    return 0


COMMAND = Command("findings", "What is worth knowing about a snapshot, ranked by bytes.", _add_arguments, _run)
