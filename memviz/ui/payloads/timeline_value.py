"""What the timeline component is given besides the packed columns: words, phases and marks."""

from __future__ import annotations

from typing import Any

from memviz.analysis.annotations import annotated
from memviz.analysis.lifetimes import has_times
from memviz.analysis.overview import overview
from memviz.analysis.peak import out_of_memory
from memviz.analysis.purpose.phases import phase_name, phase_spans
from memviz.analysis.timeline import timeline
from memviz.headlines.explore import explore
from memviz.trace.model import DeviceTrace, Trace
from memviz.ui.html.plain import plain
from memviz.units import bytes_text

_MOST_PHASES = 2000
_MOST_OOM = 50
_NOTED_BY_TORCH = ("Optimizer.", "ProfilerStep#")
"""Such notes are coarser than what stacks show."""


def timeline_value(
    trace: Trace, device: DeviceTrace, key: str, *, state: dict[str, Any] | None = None
) -> dict[str, Any]:
    return {
        "key": key,
        "label": str(explore(overview(trace, device))),
        "has_times": has_times(device),
        "phases": phase_bands(trace, device),
        "ooms": [
            _oom(oom.then.event, oom.asked_bytes, device)
            for oom in out_of_memory(trace, device, top=0, chosen=slice(_MOST_OOM))
        ],
        "state": state or {},
    }


def phase_bands(trace: Trace, device: DeviceTrace) -> list[list[Any]]:
    """[name, first instant, last instant] of what the program noted itself; of phases seen in stacks where it did not.

    Of what it noted only what no other note encloses.
    """
    intervals = annotated(device).intervals
    rows = ((intervals.depth == 0) & (intervals.end_event >= intervals.start_event)).nonzero()[0][:_MOST_PHASES]
    noted = [
        [
            plain(trace.strings[intervals.name[row]]),
            int(intervals.start_event[row]) + 1,
            int(intervals.end_event[row]) + 2,
        ]
        for row in rows
    ]
    phases = phase_spans(trace, device)
    if phases.spans and all(str(name).startswith(_NOTED_BY_TORCH) for name, _, _ in noted):
        return [
            [plain(phase_name(trace, device, span)), span.first + 1, span.last + 2]
            for span in phases.spans[:_MOST_PHASES]
        ]
    return noted


def _oom(event: int, requested_bytes: int, device: DeviceTrace) -> dict[str, Any]:
    reserved = int(timeline(device).reserved[event + 1])
    return {"event": event, "reserved": reserved, "text": f"{bytes_text(requested_bytes)} did not fit"}
