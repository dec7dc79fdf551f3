"""The live allocations at the peak or at another moment, in groups; and call sites that match a query."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from memviz.analysis.breakdown import dominant_by_group, purpose_totals
from memviz.analysis.devices import DeviceName, choose_device, name_device
from memviz.analysis.groups import Group
from memviz.analysis.holders import forwards_between
from memviz.analysis.lifetimes import live_rows
from memviz.analysis.overview import overview
from memviz.analysis.peak import LiveSet, at
from memviz.analysis.timeline import timeline
from memviz.results.headline import Headline, device_name, device_number, purpose_name, shorten
from memviz.results.result import Bar, Result, Table, TableRow, named_fields, share
from memviz.results.summary import trace_headline
from memviz.trace.model import DeviceTrace, Trace, is_reserved_known
from memviz.units import bytes_text, count_text, delta_text, percent_text

if TYPE_CHECKING:
    from memviz.analysis.find import FindResult

_MOST_OF_STACKS = 64 << 20
"""Characters in one answer. Few frames with long names, in many orders, would become gigabytes of text."""
_FRAME = 50
_JOINTS = {"site": "at", "line": "at", "stack": "at", "category": "in", "size": "of"}


@dataclass(frozen=True, repr=False)
class Live(Result):
    """`memviz.open("run.pickle").peak()`, and `.live_at(event=1000)`."""

    trace: Trace = field(compare=False)
    device: str
    """Its name: a number, or 'host0' for pinned memory."""
    found: LiveSet
    is_peak: bool = False
    top: int | None = None
    """The most groups that there are; the bytes of the others are `rest_bytes`."""

    @property
    def event(self) -> int:
        """The moment is after this event; -1 is before the first."""
        return self.found.event

    @property
    def live_bytes(self) -> int:
        return self.found.live_bytes

    @property
    def waiting_bytes(self) -> int:
        """Live bytes whose free is requested, but which another stream may still use."""
        return self.found.waiting_bytes

    @property
    def reserved_bytes(self) -> int:
        return self.found.reserved_bytes

    @property
    def groups(self) -> tuple[Group, ...]:
        """Groups by bytes, largest first. With `rest_bytes` they add up to `live_bytes`."""
        return self.found.live.groups

    @property
    def rest_bytes(self) -> int:
        return self.found.live.rest_bytes

    def by(self, by: str) -> Live:
        """The same moment by "site", "line", "stack", "category", "module", "holder", "phase", "annotation",
        "stream", "pool" or "size"."""
        moment = at(self.trace, self._device, self.event, by, top=self.top)
        return Live(self.trace, self.device, moment, self.is_peak, self.top)

    def since(self, earlier: Live) -> LiveChange:
        """Return what changed since an earlier moment of the same trace, in this one's groups."""
        by = self.found.live.by
        sizes = [
            {group.label: group.bytes for group in at(self.trace, self._device, one.event, by).live.groups}
            for one in (earlier, self)
        ]
        rows = [ChangedGroup(label, *(size.get(label, 0) for size in sizes)) for label in sizes[0] | sizes[1]]
        changed = sorted((row for row in rows if row.change), key=lambda row: -abs(row.change))
        return LiveChange(earlier, self, tuple(changed))

    @property
    def headline(self) -> Headline:
        device = self._device
        if self.is_peak:
            return trace_headline(overview(self.trace, device))
        return live_headline(self.found, name_device(self.trace, device), len(device.events))

    def as_json(self) -> dict[str, Any]:
        """Return the output of `peak --json` or `at --json`.

        Smaller groups have no stacks if those of larger groups fill the answer already.
        """
        trace, device, live = self.trace, self._device, self.found
        stacks = [group.stack for group in self.groups if group.stack is not None]
        listed_stacks = _stacks_that_fit(trace, stacks)
        rows, by = live_rows(device, live.event), live.live.by
        dominant = dominant_by_group(trace, device, rows, by)
        left_out = sum(stack not in listed_stacks for stack in stacks)
        return {
            "device": device_number(device),
            **named_fields(live, "event", "time_us"),
            "peak_bytes" if self.is_peak else "live_bytes": live.live_bytes,
            **named_fields(live, "waiting_bytes", "reserved_bytes"),
            "reserved_is_known": is_reserved_known(live.live_bytes, live.reserved_bytes),
            "by": by,
            "rows": [
                {
                    "site" if by == "site" else "key": group.label,
                    **named_fields(group, "bytes", "count"),
                    "purpose": dominant[group.key].kind,
                    "purpose_bytes": dominant[group.key].bytes,
                    "certainty": dominant[group.key].certainty.word,
                    "reason": dominant[group.key].reason,
                    **(
                        {"stack": frames_json(trace, group.stack)}
                        if group.stack is not None and group.stack in listed_stacks
                        else {}
                    ),
                }
                for group in self.groups
            ],
            **named_fields(live.live, "rest_bytes", "rest_count"),
            "purposes": [
                {
                    "purpose": purpose.kind,
                    "certainty": purpose.certainty.word,
                    **named_fields(purpose, "reason", "bytes", "count"),
                }
                for purpose in purpose_totals(trace, device, rows)
            ],
            **({"stacks_left_out": left_out} if left_out else {}),
        }

    def columns(self) -> Mapping[str, list[Any]]:
        rows = self.as_json()["rows"]
        columns = {"site" if self.found.live.by == "site" else "key": [group.label for group in self.groups]}
        if self.found.live.by == "stack":
            # The caller first, as flame graphs have it.
            columns["stack"] = [
                ";".join(f"{frame['filename']}:{frame['line']} {frame['name']}" for frame in reversed(stack))
                for stack in (row.get("stack", []) for row in rows)
            ]
        plain = ("bytes", "count", "purpose", "purpose_bytes", "certainty", "reason")
        return {**columns, **{column: [row[column] for row in rows] for column in plain}}

    @property
    def _device(self) -> DeviceTrace:
        return choose_device(self.trace, self.device)

    def table(self, most: int | None = None) -> Table:
        total, groups = self.live_bytes, self.groups[:most]
        largest = groups[0].bytes if groups else 0
        rows = [_live_row(group.label, group.bytes, group.count, total, largest) for group in groups]
        rest_count = self.found.live.count - sum(group.count for group in groups)
        if rest_count:
            rest_bytes = total - sum(group.bytes for group in groups)
            rows.append(_live_row("(all others)", rest_bytes, rest_count, total, 0))
        return Table(("bytes", "share", "blocks", self.found.live.by), tuple(rows))


@dataclass(frozen=True)
class ChangedGroup:
    label: str
    before_bytes: int
    bytes: int

    @property
    def change(self) -> int:
        return self.bytes - self.before_bytes


@dataclass(frozen=True, repr=False)
class LiveChange(Result):
    """`later.since(earlier)`: two moments of one trace, by group, the largest change first."""

    before: Live
    after: Live
    rows: tuple[ChangedGroup, ...]

    @property
    def headline(self) -> Headline:
        total = delta_text(self.after.live_bytes - self.before.live_bytes)
        between = f"between events {count_text(self.before.event)} and {count_text(self.after.event)}"
        most = ""
        if self.rows:
            change, live = self.rows[0].change, self.after
            steps = forwards_between(live.trace, live._device, self.before.event, live.event)
            each = f", {delta_text(round(change / steps))} per step" if steps > 1 else ""
            most = f" Most of it: {shorten(self.rows[0].label)}, {delta_text(change)}{each}."
        return Headline(f"{total} live {between}.{most}")

    def as_json(self) -> dict[str, Any]:
        """Return the output of `at --since NAME --json`."""
        rows = [{"key": row.label, **named_fields(row, "before_bytes", "bytes", "change")} for row in self.rows]
        moments = {"since_event": self.before.event, "event": self.after.event, "by": self.after.found.live.by}
        return {"device": device_number(self.after._device), **moments, "rows": rows}

    def columns(self) -> Mapping[str, list[Any]]:
        names = ("label", "before_bytes", "bytes", "change")
        return {name: [getattr(row, name) for row in self.rows] for name in names}

    def table(self, most: int | None = None) -> Table:
        rows = (
            TableRow((delta_text(row.change), bytes_text(row.before_bytes), bytes_text(row.bytes)), row.label)
            for row in self.rows[:most]
        )
        return Table(("change", "before", "after", self.after.found.live.by), tuple(rows))


def _live_row(label: str, size: int, count: int, total: int, largest: int) -> TableRow:
    numbers = (bytes_text(size), percent_text(size, total), count_text(count))
    return TableRow(numbers, label, (Bar(0, share(size, largest)),) if largest else ())


def live_result(
    trace: Trace, device: DeviceTrace, event: int | None = None, by: str = "site", top: int | None = None
) -> Live:
    """Return the live allocations after the event, or at the peak."""
    moment = timeline(device).peak_event if event is None else event
    return Live(trace, device.name, at(trace, device, moment, by, top=top), event is None, top)


def live_headline(live: LiveSet, which: DeviceName, event_count: int) -> Headline:
    """`event_count` is the device's: without a history the only moment is the end."""
    where = moment_text(which, live.event, event_count)
    largest = ""
    if live.live.groups:
        first = live.live.groups[0]
        name = purpose_name(first.label) if live.live.by == "category" else first.label
        joint = _JOINTS.get(live.live.by, "in")
        largest = f", {percent_text(first.bytes, live.live_bytes)} of it {joint} {shorten(name)}"
    answer = f"{bytes_text(live.live_bytes)} are live{where}{largest}."
    if live.reserved_bytes < live.live_bytes:
        # The file says less of its segments than of its tensors.
        return Headline(answer)
    return Headline(answer, f"{bytes_text(live.reserved_bytes)} are reserved at that moment.")


def moment_text(which: DeviceName, event: int, event_count: int) -> str:
    """' on device 1 after event 5'. The device is named where there are several."""
    device = f" on {device_name(which)}" if which.is_one_of_several else ""
    if not event_count:
        return f"{device} at the end"
    return f"{device} after event {count_text(event)}" if event >= 0 else f"{device} before the first event"


def find_json(device: DeviceTrace, result: FindResult, top: int | None = None) -> dict[str, Any]:
    """Return the answer of `/find`. The rows and the rest add up."""
    sites, rest = result.sites[:top], result.sites[len(result.sites[:top]) :]
    return {
        "device": device_number(device),
        **named_fields(result, "event", "count", "live_bytes", "live_count"),
        "rows": [
            {
                "site": site.label,
                **named_fields(site, "live_bytes", "live_count"),
                "all_bytes": site.bytes,
                "all_count": site.count,
            }
            for site in sites
        ],
        "rest_sites": len(rest),
        "rest_live_bytes": sum(site.live_bytes for site in rest),
        "rest_count": sum(site.count for site in rest),
    }


def _stacks_that_fit(trace: Trace, stacks: Sequence[int]) -> set[int]:
    """Return the stacks, from the first on, whose text stays within the bound; a repeated one counts each time."""
    frames, strings = trace.stacks.frames, trace.strings
    fit: set[int] = set()
    left = _MOST_OF_STACKS
    for stack in stacks:
        used = trace.stacks.of(stack)
        left -= sum(len(strings[frames.name[i]]) + len(strings[frames.filename[i]]) + _FRAME for i in used)
        if left < 0:
            break
        fit.add(stack)
    return fit


def frames_json(trace: Trace, stack: int) -> list[dict[str, Any]]:
    """Return a stack's frames, innermost first, as torch has it."""
    frames, strings = trace.stacks.frames, trace.strings
    return [
        {"name": strings[frames.name[i]], "filename": strings[frames.filename[i]], "line": int(frames.line[i])}
        for i in trace.stacks.of(stack)
    ]
