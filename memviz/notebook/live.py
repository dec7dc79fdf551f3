"""What is live at a moment, by place or kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from memviz.analysis.as_json import live_json
from memviz.analysis.groups import Group
from memviz.analysis.overview import overview
from memviz.analysis.peak import LiveSet, at
from memviz.analysis.timeline import timeline
from memviz.analysis.which_device import chosen_device, which
from memviz.headlines.explore import explore, live_then
from memviz.headlines.headline import Headline
from memviz.notebook.result import Result
from memviz.notebook.table import MOST_ROWS, Bar, TableRow, drawn, share
from memviz.trace.model import DeviceTrace, Trace
from memviz.ui.html.markup import Html
from memviz.units import bytes_text, count_text, percent_text


@dataclass(frozen=True, repr=False)
class Live(Result):
    """`memviz.open("run.pickle").peak()`, and `.live_at(event=1000)`."""

    trace: Trace = field(compare=False)
    device: str
    """Its name: a number, or 'host0' for pinned memory."""
    found: LiveSet
    is_peak: bool = False
    top: int | None = None
    """How many groups there are at most; what is left stands in `rest_bytes`."""

    @property
    def event(self) -> int:
        """The moment is after this event; -1 is before the first."""
        return self.found.event

    @property
    def live_bytes(self) -> int:
        return self.found.live_bytes

    @property
    def waiting_bytes(self) -> int:
        """Of the live ones: asked to be freed while another stream may still use them."""
        return self.found.waiting_bytes

    @property
    def reserved_bytes(self) -> int:
        return self.found.reserved_bytes

    @property
    def groups(self) -> tuple[Group, ...]:
        """By bytes, largest first. With `rest_bytes` they add up to `live_bytes`."""
        return self.found.live.groups

    @property
    def rest_bytes(self) -> int:
        return self.found.live.rest_bytes

    def by(self, by: str) -> Live:
        """The same moment by "site", "line", "stack", "category", "module", "phase", "annotation", "stream", "pool"
        or "size"."""
        found = at(self.trace, self._device, self.event, by, top=self.top)
        return Live(self.trace, self.device, found, self.is_peak, self.top)

    @property
    def headline(self) -> Headline:
        device = self._device
        if self.is_peak:
            return explore(overview(self.trace, device))
        return live_then(self.found, which(self.trace, device), len(device.events))

    def as_json(self) -> dict[str, Any]:
        """As `peak --json` and `at --json` write it."""
        total = "peak_bytes" if self.is_peak else "live_bytes"
        return live_json(self.trace, self._device, self.found, total)

    def columns(self) -> Mapping[str, list[Any]]:
        rows, groups = self.as_json()["rows"], self.groups
        name = "site" if self.found.live.by == "site" else "key"
        named = {name: [group.label for group in groups]}
        if self.found.live.by == "stack":
            named["stack"] = [_folded(row.get("stack", [])) for row in rows]
        plain = ("bytes", "count", "purpose", "purpose_bytes", "certainty", "reason")
        return {**named, **{column: [row[column] for row in rows] for column in plain}}

    @property
    def _device(self) -> DeviceTrace:
        return chosen_device(self.trace, self.device)

    def _html(self) -> Html:
        whole, largest = self.live_bytes, max((group.bytes for group in self.groups), default=0)
        shown = self.groups[:MOST_ROWS]
        rows = [_row(group.label, group.bytes, group.count, whole, largest) for group in shown]
        left = self.found.live.count - sum(group.count for group in shown)
        if left:
            rest = whole - sum(group.bytes for group in shown)
            rows.append(_row("(all others)", rest, left, whole, 0))
        return drawn(str(self), ["bytes", "share", "blocks", self.found.live.by], rows)


def _row(label: str, size: int, count: int, whole: int, largest: int) -> TableRow:
    numbers = (bytes_text(size), percent_text(size, whole), count_text(count))
    return TableRow(numbers, label, (Bar(0, share(size, largest)),) if largest else ())


def _folded(stack: list[dict[str, Any]]) -> str:
    """The caller first, as flame graphs have it."""
    return ";".join(f"{frame['filename']}:{frame['line']} {frame['name']}" for frame in reversed(stack))


def live_result(trace: Trace, device: DeviceTrace, event: int | None, by: str, top: int | None) -> Live:
    """Without an event, the peak."""
    moment = timeline(device).peak_event if event is None else event
    return Live(trace, device.name, at(trace, device, moment, by, top=top), event is None, top)
