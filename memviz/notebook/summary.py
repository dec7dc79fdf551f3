"""What a trace holds, device by device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from memviz.analysis.decimate import by_event
from memviz.analysis.overview import overview
from memviz.analysis.timeline import timeline
from memviz.analysis.which_device import chosen_device
from memviz.headlines.explore import explore, summary_json
from memviz.headlines.headline import Headline
from memviz.headlines.names import reserved_text
from memviz.notebook.result import Result
from memviz.notebook.table import TableRow, area, drawn
from memviz.trace.model import DeviceTrace, Trace
from memviz.ui.html.markup import Html, joined, tag
from memviz.units import bytes_text, count_text

_COLUMNS = 300
_FIGURES = (
    "device",
    "events",
    "start_bytes",
    "peak_bytes",
    "peak_event",
    "end_bytes",
    "reserved_peak_bytes",
    "reserved_end_bytes",
    "reserved_is_known",
    "history",
)


@dataclass(frozen=True)
class DeviceSummary:
    """Live bytes at three moments, and reserved ones at two; `as_json` has more."""

    device: str
    events: int
    start_bytes: int
    peak_bytes: int
    peak_event: int
    """-1 is before the first."""
    end_bytes: int
    reserved_peak_bytes: int
    reserved_end_bytes: int


@dataclass(frozen=True, repr=False)
class Summary(Result):
    """`memviz.open("run.pickle").summary()`."""

    trace: Trace = field(compare=False)
    device: str
    """The one that the sentence is about: of several, the one to look at first."""
    devices: tuple[DeviceSummary, ...]

    @property
    def headline(self) -> Headline:
        return explore(overview(self.trace, chosen_device(self.trace, self.device)))

    def as_json(self) -> dict[str, Any]:
        """As `summary --json` writes it, findings included."""
        return summary_json(self.trace, [chosen_device(self.trace, summed.device) for summed in self.devices])

    def columns(self) -> Mapping[str, list[Any]]:
        devices = self.as_json()["devices"]
        failed = [len(device["oom"]) for device in devices]
        return {**{name: [device[name] for device in devices] for name in _FIGURES}, "oom": failed}

    def _html(self) -> Html:
        head = ["events", "at the start", "at the peak", "at the end", "reserved at most", "device"]
        above = joined(
            tag("p", f"{self.trace.about.source}, {self.trace.about.label}"), *map(self._picture, self.devices)
        )
        return drawn(str(self), head, [_row(device) for device in self.devices], above=above)

    def _picture(self, summed: DeviceSummary) -> Html:
        if not summed.events:
            return Html("")
        line = by_event(chosen_device(self.trace, summed.device), _COLUMNS)
        label = f"Live and reserved bytes of device {summed.device}"
        return area(line.live_max.tolist(), line.reserved_max.tolist(), label=label)


def _row(device: DeviceSummary) -> TableRow:
    sizes = (device.start_bytes, device.peak_bytes, device.end_bytes)
    reserved = reserved_text(device.peak_bytes, device.reserved_peak_bytes)
    return TableRow((count_text(device.events), *map(bytes_text, sizes), reserved), device.device)


def summary_result(trace: Trace, named: str | None) -> Summary:
    """Of the named device, or of all."""
    first = chosen_device(trace, named)
    devices = trace.devices if named is None else (first,)
    return Summary(trace, first.name, tuple(_summed(device) for device in devices))


def _summed(device: DeviceTrace) -> DeviceSummary:
    line = timeline(device)
    return DeviceSummary(
        device=device.name,
        events=len(device.events),
        start_bytes=line.start_bytes,
        peak_bytes=line.peak_bytes,
        peak_event=line.peak_event,
        end_bytes=line.end_bytes,
        reserved_peak_bytes=line.reserved_peak_bytes,
        reserved_end_bytes=int(line.reserved[-1]),
    )
