"""`summary`, `peak`, `at` and `findings`: what one snapshot holds, in words or as JSON."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from memviz.analysis.annotations import event_of_mark
from memviz.analysis.devices import choose_device
from memviz.analysis.groups import GROUPINGS
from memviz.analysis.lifetimes import event_at_epoch_or_offset
from memviz.commands.command import (
    Command,
    add_device,
    add_file,
    add_grouping,
    add_json,
    open_trace,
    print_json,
    print_result_table,
    printable,
)
from memviz.results.headline import other_oom_note
from memviz.results.live import Live, live_result
from memviz.results.summary import DeviceSummary, Summary, summary_result
from memviz.trace.model import DeviceTrace, Trace, is_reserved_known
from memviz.units import bytes_text, count_text, counted, delta_text

if TYPE_CHECKING:
    from memviz.results.findings import Findings

_HISTORY = {
    "complete": "complete",
    "late": "started late: memory was allocated before the first event",
    "none": "none: only the final state is known",
}


def _summary(args: argparse.Namespace) -> int:
    result = summary_result(open_trace(args.file), args.device)
    print_json(result.as_json()) if args.json else print_summary(result)
    return 0


def print_summary(summary: Summary) -> None:
    about = summary.trace.about
    print(f"{printable(about.source)}: {about.format}, {printable(about.label)}")
    for device in summary.devices:
        headline = summary.headline_of(device.device)
        print(printable(f"{headline.answer} {headline.reason}"))
    for device in summary.devices:
        _print_device(device)
        if bill := summary.bill_of(device.device):
            print(printable(f"  on card   {bill.line}"))
        if host := summary.host_bill_of(device.device):
            print(printable(f"  host      {host.size_text} at the peak: {host.parts}"))
    for note in summary.notes:
        mark = "!" if note.level == "warning" else "-"
        print(f"\n{mark} {printable(note.text)}" + (f"\n  {printable(note.remedy)}" if note.remedy else ""))


def _print_device(device: DeviceSummary) -> None:
    print(f"\nDevice {device.device}: {counted(device.events, 'event')}, history {_HISTORY[device.history]}")
    moment = f"at event {count_text(device.peak_event)}"
    if device.peak_event < 0:
        moment = "before the first event" if device.events else "in the final state"
    print(f"  live      {bytes_text(device.peak_bytes)} at the peak, {moment}")
    print(f"            {bytes_text(device.start_bytes)} at the start, {bytes_text(device.end_bytes)} at the end")
    reserved, end = bytes_text(device.reserved_peak_bytes), bytes_text(device.reserved_end_bytes)
    print(f"  reserved  {f'{reserved} at its peak, {end} at the end' if device.reserved_is_known else 'not known'}")
    for oom in device.oom:
        requested, free = bytes_text(oom["requested_bytes"] or 0), oom["device_free_bytes"]
        rest = "free memory on the device not known" if free is None else f"{bytes_text(free)} free on the device"
        print(f"  out of memory at event {count_text(oom['event'] or 0)}: {requested} requested, {rest}")


def _add_moment(parser: argparse.ArgumentParser) -> None:
    moment = parser.add_mutually_exclusive_group(required=True)
    moment.add_argument("--event", type=int, metavar="N", help="state after event N; -1: before the first")
    moment.add_argument("--time", type=float, metavar="SECONDS", help="seconds since the first event, or Unix time")
    moment.add_argument("--mark", metavar="NAME", help="end of the last annotation NAME, such as memviz.mark(NAME)")
    parser.add_argument("--since", metavar="NAME", help="show the change since the last annotation NAME, by group")


def _live(args: argparse.Namespace, *, is_peak: bool) -> int:
    trace = open_trace(args.file)
    device = choose_device(trace, args.device)
    event = None
    if not is_peak and args.mark is not None:
        event = event_of_mark(trace, device, args.mark)
    elif not is_peak:
        event = args.event if args.event is not None else event_at_epoch_or_offset(device, args.time)
    live = live_result(trace, device, event, args.by, args.top or None)
    if not is_peak and args.since is not None:
        change = live.since(live_result(trace, device, event_of_mark(trace, device, args.since), args.by))
        if args.json:
            print_json(change.as_json())
        else:
            print(f"{change}\n")
            print_result_table(change.table(args.top or None))
    elif args.json:
        print_json(live.as_json())
    else:
        print_live(live, len(device.events))
        _print_other_oom(trace, device)
    return 0


def print_live(live: Live, event_count: int) -> None:
    moment = f"after event {count_text(live.event)}"
    if live.event < 0:
        moment = "before the first event" if event_count else "in the final state"
    waiting = f", {bytes_text(live.waiting_bytes)} of it waiting to be freed" if live.waiting_bytes else ""
    in_file = is_reserved_known(live.live_bytes, live.reserved_bytes)
    reserved = f"{bytes_text(live.reserved_bytes)} reserved" if in_file else "reserved not known"
    title = f"{'peak ' if live.is_peak else ''}{moment}"
    print(f"Device {live.device}, {title}: {bytes_text(live.live_bytes)} live{waiting}, {reserved}\n")
    print_result_table(live.table())


def _print_other_oom(trace: Trace, device: DeviceTrace) -> None:
    note = other_oom_note(trace, device)
    if note:
        print(f"\n{printable(note)} Choose a device with --device.")


def _add_estimates(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--estimates", action="store_true", help="replay possible fixes of each finding and show what they save"
    )


def _findings(args: argparse.Namespace) -> int:
    from memviz.results.findings import findings_result
    from memviz.ui.explore.findings import offers

    trace = open_trace(args.file)
    device = choose_device(trace, args.device)
    estimates = offers(trace, device, most_events=len(device.events)) if args.estimates else {}
    result = findings_result(trace, device.name, estimates)
    if args.json:
        print_json(result.as_json())
    else:
        _print_findings(result)
        _print_other_oom(trace, device)
    return 0


def _print_findings(result: Findings) -> None:
    from memviz.allocator.replayer import ESTIMATE
    from memviz.analysis.actions.proposals import limit_of_start
    from memviz.analysis.findings.finding import Facts

    if not result.rows:
        print(f"Device {result.device}: no findings.")
    for finding in result.rows:
        print(f"{bytes_text(finding.bytes):>10}  {printable(finding.sentence)}")
        print(f"{'':10}  {printable(finding.remedy)}")
        for offer in result.offers.get(finding.key, ()):
            live, reserved = delta_text(offer.estimate.requested_change), delta_text(offer.estimate.reserved_change)
            print(f"{'':10}  {offer.name}, {ESTIMATE}: {live} live, {reserved} reserved at the peaks")
    limit = limit_of_start(Facts(result.trace, choose_device(result.trace, result.device)))
    if limit and any(result.offers.values()):
        print(f"\n{limit}")


def _command(
    run: Callable[[argparse.Namespace], int], *arguments: Callable[[argparse.ArgumentParser], None]
) -> Command:
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        for add in (add_file, *arguments, add_json):
            add(parser)

    return Command(add_arguments, run)


_ADD_GROUPINGS = partial(add_grouping, groupings=list(GROUPINGS))
COMMANDS = {
    "summary": _command(_summary, partial(add_device, default="all")),
    "peak": _command(partial(_live, is_peak=True), add_device, _ADD_GROUPINGS),
    "at": _command(partial(_live, is_peak=False), _add_moment, add_device, _ADD_GROUPINGS),
    "findings": _command(_findings, add_device, _add_estimates),
}
