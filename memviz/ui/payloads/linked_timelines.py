"""What each of several timelines is given, so that they share one byte scale and move together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from memviz.analysis.comparing.align import START, Aligned, Alignment, Axis, align
from memviz.analysis.lifetimes import has_times
from memviz.analysis.timeline import timeline
from memviz.figures.colouring import SharedHue, largest_of_all
from memviz.trace.model import DeviceTrace, Trace
from memviz.ui.html.words import LONGEST, cut_middle
from memviz.ui.payloads.timeline_value import timeline_value
from memviz.units import bytes_text

_HEADROOM = 1.06
_MOST_NAME = 80


@dataclass(frozen=True)
class LinkedTrace:
    letter: str
    key: str
    """Of its timeline."""
    name: str
    trace: Trace
    device: DeviceTrace

    @property
    def pair(self) -> tuple[Trace, DeviceTrace]:
        return self.trace, self.device


def linked_name(traces: Sequence[LinkedTrace]) -> str:
    """What their timelines share. Another set of traces has another name, so that all begin anew together."""
    return blake2b("\n".join(trace.key for trace in traces).encode(), digest_size=8).hexdigest()


def linked_values(
    traces: Sequence[LinkedTrace], way: Alignment = START, axis: Axis = "event", *, colour: str = "category"
) -> list[dict[str, Any]]:
    """One per trace, in their order. `colour` is what colours mean: sites and modules have theirs in all of them."""
    baseline = timeline(traces[0].device).peak_bytes
    lines = [timeline(trace.device) for trace in traces]
    top = max(max(line.reserved_peak_bytes, line.peak_bytes) for line in lines) or 1
    aligned = alignments(traces, way)
    common = {
        "linked": linked_name(traces),
        "plain": True,
        "top": top * _HEADROOM,
        "ruler": {"bytes": baseline, "text": f"A {bytes_text(baseline)}"},
        "axis": axis,
        "colour": colour,
        "among": [hue.key for hue in shared_hues(traces, colour)],
    }
    values = [timeline_value(trace.trace, trace.device, trace.key) for trace in traces]
    return [
        {
            **value,
            **common,
            "badge": trace.letter,
            "name": cut_middle(trace.name, LONGEST),
            "band": any(value["phases"] for value in values),
            "align": placed(aligned, number),
        }
        for number, (trace, value) in enumerate(zip(traces, values, strict=True))
    ]


def shared_hues(traces: Sequence[LinkedTrace], colour: str) -> list[SharedHue]:
    return [] if colour == "category" else largest_of_all([trace.pair for trace in traces], colour)


def alignments(traces: Sequence[LinkedTrace], way: Alignment) -> Mapping[Axis, Aligned]:
    pairs = [trace.pair for trace in traces]
    axes: tuple[Axis, ...] = ("event", "time") if all(has_times(trace.device) for trace in traces) else ("event",)
    return {axis: align(pairs, way, axis) for axis in axes}


def placed(aligned: Mapping[Axis, Aligned], number: int) -> dict[str, Any]:
    """Of one trace, by axis."""
    return {
        axis: {"span": list(one.spans[number]), "extent": list(one.extent), "focus": list(one.focus)}
        for axis, one in aligned.items()
    }
