"""The summary of a trace: bytes at the start, peak and end of each device, in a sentence, a table and JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from memviz.analysis.devices import choose_device
from memviz.analysis.health import health, history
from memviz.analysis.overview import Overview, overview
from memviz.analysis.peak import FailedRequest, failed_requests
from memviz.analysis.purpose.categories import categories
from memviz.analysis.timeline import by_event, has_reserved, timeline
from memviz.results.device_bill import DeviceBill, HostBill, device_bill, host_bill
from memviz.results.headline import (
    Headline,
    and_list,
    device_name,
    device_number,
    device_suffix,
    purpose_name,
    reserved_text,
    shorten,
)
from memviz.results.result import Result, Table, TableRow, area, named_fields
from memviz.text import Html, joined, tag
from memviz.trace.intern import distinct
from memviz.trace.model import DeviceTrace, Note, Trace
from memviz.units import bytes_text, count_text, counted, percent_text

_COLUMNS = 300
_OOM_FIELDS = ("event", "requested_bytes", "device_free_bytes", "live_bytes", "reserved_bytes")


@dataclass(frozen=True)
class DeviceSummary:
    """The fields of a device in `summary --json`."""

    device: str
    """A number, or "host0" for pinned memory."""
    events: int
    start_bytes: int
    peak_bytes: int
    peak_event: int
    """-1 is before the first event."""
    end_bytes: int
    reserved_peak_bytes: int
    reserved_end_bytes: int
    reserved_is_known: bool
    history: str
    actions: Mapping[str, int]
    oom: list[dict[str, int | None]]
    streams: list[int]
    pools: list[list[int]]
    annotations: list[str]


@dataclass(frozen=True, repr=False)
class Summary(Result):
    """`memviz.open("run.pickle").summary()`."""

    trace: Trace = field(compare=False)
    device: str
    """The device of the headline: of several, the one to look at first."""
    devices: tuple[DeviceSummary, ...]

    @property
    def headline(self) -> Headline:
        return self.headline_of(self.device)

    def headline_of(self, device: str) -> Headline:
        return trace_headline(overview(self.trace, choose_device(self.trace, device)))

    def bill_of(self, device: str) -> DeviceBill | None:
        """Return the bill of a device; None for memory of the host."""
        return device_bill(self.trace, choose_device(self.trace, device))

    def host_of(self, device: str) -> dict[str, Any] | None:
        """Return host memory of the process at its peak, over the events of a device; None where it is unknown."""
        of = choose_device(self.trace, device)
        if (host := of.host) is None:
            return None
        at = int(host.total.argmax())
        sizes = {"peak_bytes": int(host.total[at]), "pinned_bytes": int(host.pinned[at])}
        counts = "resident size" if of.is_timed else "CPU tensors"
        bill = self.host_bill_of(device)
        return {"counts": counts, **sizes, "event": int(host.event[at]) - 1, "bill": bill.as_json() if bill else None}

    def host_bill_of(self, device: str) -> HostBill | None:
        """Return the bill of host memory over the events of a device; None where nothing is known of it."""
        return host_bill(self.trace, choose_device(self.trace, device))

    @property
    def notes(self) -> list[Note]:
        names = {device.device for device in self.devices}
        return [note for note in (*self.trace.notes, *health(self.trace)) if not note.device or note.device in names]

    def as_json(self) -> dict[str, Any]:
        """Return the output of `summary --json`, findings included."""
        # Every kind of finding is a module of its own; a summary for people shows none.
        from memviz.results.findings import findings_result

        about = self.trace.about
        return {
            "file": about.source,
            "format": about.format,
            "origin": about.label,
            "devices": [
                {
                    **vars(device),
                    "device": device_number(choose_device(self.trace, device.device)),
                    "headline": self.headline_of(device.device).as_json(),
                    "device_bill": bill.as_json() if (bill := self.bill_of(device.device)) else None,
                    **({"host": host} if (host := self.host_of(device.device)) else {}),
                    "findings": findings_result(self.trace, device.device).as_json()["findings"],
                }
                for device in self.devices
            ],
            "notes": [named_fields(note, "code", "level", "text", "remedy") for note in self.notes],
        }

    def columns(self) -> Mapping[str, list[Any]]:
        plain = ("events", "start_bytes", "peak_bytes", "peak_event", "end_bytes")
        reserved = ("reserved_peak_bytes", "reserved_end_bytes", "reserved_is_known")
        return {
            "device": [device_number(choose_device(self.trace, device.device)) for device in self.devices],
            **{name: [getattr(device, name) for device in self.devices] for name in (*plain, *reserved, "history")},
            "oom": [len(device.oom) for device in self.devices],
        }

    def table(self, most: int | None = None) -> Table:
        head = ("events", "at the start", "at the peak", "at the end", "peak reserved", "device")
        rows = []
        for device in self.devices:
            sizes = (device.start_bytes, device.peak_bytes, device.end_bytes)
            reserved = reserved_text(device.peak_bytes, device.reserved_peak_bytes)
            rows.append(TableRow((count_text(device.events), *map(bytes_text, sizes), reserved), device.device))
        return Table(head, tuple(rows))

    def _above_table(self) -> Html:
        about = self.trace.about
        return joined(tag("p", f"{about.source}, {about.label}"), *map(self._picture, self.devices))

    def _picture(self, device: DeviceSummary) -> Html:
        if not device.events:
            return Html("")
        line = by_event(choose_device(self.trace, device.device), _COLUMNS)
        label = f"Live and reserved bytes of device {device.device}"
        return area(line.live_max.tolist(), line.reserved_max.tolist(), label=label)


def summary_result(trace: Trace, device: str | None = None) -> Summary:
    first = choose_device(trace, device)
    devices = trace.devices if device is None else (first,)
    for each in devices:
        # First, while little else is held: finding purposes takes more memory than anything here, and gives it back.
        categories(trace, each)
    return Summary(trace, first.name, tuple(_device_summary(trace, each) for each in devices))


def _device_summary(trace: Trace, device: DeviceTrace) -> DeviceSummary:
    events, line = device.events, timeline(device)
    codes, counts = np.unique(events.action, return_counts=True)
    return DeviceSummary(
        device=device.name,
        events=len(events),
        start_bytes=line.start_bytes,
        peak_bytes=line.peak_bytes,
        peak_event=line.peak_event,
        end_bytes=line.end_bytes,
        reserved_peak_bytes=line.reserved_peak_bytes,
        reserved_end_bytes=int(line.reserved[-1]),
        reserved_is_known=has_reserved(device),
        history=history(device),
        actions={trace.action_name(int(code)): int(count) for code, count in zip(codes, counts, strict=True)},
        oom=[named_fields(failed, *_OOM_FIELDS) for failed in failed_requests(trace, device)],
        streams=sorted(trace.streams[code] for code in _distinct_codes(events.stream, device.segments.stream)),
        pools=sorted(list(trace.pools[code]) for code in _distinct_codes(events.pool, device.segments.pool)),
        annotations=sorted({trace.strings[code] for code in distinct(device.annotations.name)}),
    )


def _distinct_codes(first: Any, second: Any) -> list[int]:
    return [int(code) for code in distinct(np.append(distinct(first), distinct(second)))]


def trace_headline(overview: Overview) -> Headline:
    if overview.ran_out is not None:
        headline = _ran_out(overview, overview.ran_out)
    elif not overview.event_count:
        where = f" on {device_name(overview.device)}" if overview.device.is_one_of_several else ""
        why = "The file has no history, only the final state."
        if overview.trace_has_events:
            why = "No events were recorded there; this is the final state."
        headline = Headline(f"{bytes_text(overview.peak_bytes)} are live{where}.", why)
    else:
        headline = _peak_headline(overview)
    return headline.as_estimate(overview.limit_of_start) if overview.is_estimate else headline


def _peak_headline(overview: Overview) -> Headline:
    main_part = ""
    if overview.most_of_it is not None:
        share = percent_text(overview.most_of_it.bytes, overview.peak_bytes)
        sure = "probably " if overview.most_of_it.is_probable else ""
        main_part = f", {share} of it {sure}{purpose_name(overview.most_of_it.category)}"
    elif overview.largest_site:
        share = percent_text(overview.largest_site_bytes, overview.peak_bytes)
        main_part = f", {share} of it from {shorten(overview.largest_site)}"
    answer = f"The peak{device_suffix(overview.device)} is {bytes_text(overview.peak_bytes)}{main_part}."
    return Headline(answer, f"{_keepers(overview)}{_peak_moment(overview)}")


def _keepers(overview: Overview) -> str:
    """Return the call sites that keep most of the activations, where these are few."""
    most = overview.most_of_it
    keeps = most.kept_by if most is not None else None
    if most is None or keeps is None:
        return ""
    layers = f", in {most.layers}" if most.layers else ""
    share = percent_text(keeps.bytes, overview.peak_bytes)
    labels: list[str] = []
    before = ""
    for site in keeps.places:
        name, _, line = site.label.removesuffix(f" {site.function}").rpartition(":")
        labels.append(f":{line}" if site.path == before else shorten(f"{name}:{line}"))
        before = site.path
    return f"{share} is from {and_list(labels)}{layers}. "


def _ran_out(overview: Overview, failed: FailedRequest) -> Headline:
    who = device_name(overview.device) if overview.device.is_one_of_several else "it"
    site = f" in {failed.site}" if failed.site else ""
    times = "" if overview.failed_count == 1 else f" {counted(overview.failed_count, 'time')}, the last time when"
    joint = ":" if overview.failed_count == 1 else ""
    answer = f"{who} ran out of memory{joint}{times} {bytes_text(failed.requested_bytes)} requested{site}."
    reason = f"{bytes_text(failed.live_bytes)} were live"
    if failed.reserved_bytes >= failed.live_bytes:
        reason += f", and {bytes_text(failed.reserved_bytes - failed.live_bytes)} reserved but not live"
    return Headline(f"{answer[0].upper()}{answer[1:]}", f"{reason}.")


def _peak_moment(overview: Overview) -> str:
    if overview.peak_event < 0:
        return "It was allocated before recording started."
    event = f"event {count_text(overview.peak_event)} of {count_text(overview.event_count)}"
    return f"Reached {overview.moment} ({event})." if overview.moment else f"Reached at {event}."
