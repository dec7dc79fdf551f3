"""The peaks that PyTorch reports, held against those of the trace: two books kept apart, which have to agree.

PyTorch counts whole blocks, a trace lists requests. So the trace is put through the model of the allocator, which
knows each block's size; it starts where PyTorch's peaks were last reset. A difference is never hidden, and the
reason is what the evidence says, not what would be convenient.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from memviz.allocator.replay import replay
from memviz.allocator.replayed import Replayed
from memviz.trace.model import DeviceTrace, Events, Labels, Trace

_LARGEST_HIDDEN_REST = 1 << 20


@dataclass(frozen=True)
class Reconciled:
    reported: int
    from_trace: int
    reason: str
    """Why they differ; empty where they agree."""

    @property
    def difference(self) -> int:
        """What PyTorch reports beyond the trace."""
        return self.reported - self.from_trace


@dataclass(frozen=True)
class Peaks:
    allocated: Reconciled
    reserved: Reconciled

    @property
    def agree(self) -> bool:
        return not (self.allocated.difference or self.reserved.difference)

    def facts(self) -> dict[str, str]:
        """For the trace itself, so that a file says how well it was checked."""
        return {"peak allocated": _words(self.allocated), "peak reserved": _words(self.reserved)}


@dataclass(frozen=True)
class Reported:
    allocated: int
    reserved: int


def reconcile(trace: Trace, device: DeviceTrace, reported: Reported, *, since: int = 0, lost_events: bool) -> Peaks:
    """`since` is the event before which the peaks were reset, `lost_events` whether the ring buffer was full."""
    part = since_event(device, since)
    replayed = replay(replace(trace, devices=(part,)), part)
    allocated, reserved = replayed.peak_allocated_bytes, replayed.peak_reserved_bytes
    return Peaks(
        Reconciled(reported.allocated, allocated, _why(reported.allocated - allocated, replayed, lost_events)),
        Reconciled(reported.reserved, reserved, _why(reported.reserved - reserved, replayed, lost_events)),
    )


def since_event(device: DeviceTrace, first: int) -> DeviceTrace:
    """The same device as if its recording had begun there: what was live then is in its final state and its frees."""
    if first <= 0:
        return device
    events = Events(**{name: column[first:] for name, column in device.events.columns()})
    labels = device.event_labels
    if labels is not None:
        labels = Labels(**{name: column[first:] for name, column in labels.columns()})
    return replace(device, events=events, event_labels=labels)


def _why(difference: int, replayed: Replayed, lost_events: bool) -> str:
    if not difference:
        return ""
    if lost_events:
        return "The history was full, so the trace lacks its beginning, and with it perhaps the peak."
    if not replayed.exact:
        return "The trace does not replay exactly, so the sizes of its blocks are not all known."
    if difference < 0:
        return "The trace holds more than was reported: the peak was reset while something else was going on."
    if difference <= _LARGEST_HIDDEN_REST:
        return "Blocks handed out before the recording began can be up to 1 MiB larger than their requests show."
    return "Memory was taken and given back outside the recorded part, before it began or after it ended."


def _words(each: Reconciled) -> str:
    if not each.difference:
        return f"{each.reported} bytes, by PyTorch and by the trace"
    return f"{each.reported} bytes by PyTorch, {each.from_trace} by the trace. {each.reason}"
