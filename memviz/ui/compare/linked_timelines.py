"""What each of several timelines is given, so that they share one byte scale and move together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memviz.analysis.comparing.align import Aligned, Axis, Way, align
from memviz.analysis.live import has_times
from memviz.analysis.timeline import timeline
from memviz.ui.compare.compare_state import CompareView, Side, linked_name
from memviz.ui.explore.timeline import timeline_value
from memviz.ui.html.words import cut
from memviz.units import bytes_text

_HEADROOM = 1.06
_MOST_NAME = 80


def linked_values(sides: tuple[Side, ...], view: CompareView) -> list[dict[str, Any]]:
    """One per side, in their order."""
    baseline = timeline(sides[0].device).peak_bytes
    lines = [timeline(side.device) for side in sides]
    top = max(max(line.reserved_peak_bytes, line.peak_bytes) for line in lines) or 1
    aligned = alignments(sides, view.way)
    common = {
        "linked": linked_name(sides),
        "plain": True,
        "top": top * _HEADROOM,
        "ruler": {"bytes": baseline, "text": f"A {bytes_text(baseline)}"},
        "axis": view.axis,
    }
    values = [timeline_value(side.trace, side.device, side.key) for side in sides]
    return [
        {
            **value,
            **common,
            "badge": side.letter,
            "name": cut(side.name, _MOST_NAME),
            "band": any(each["phases"] for each in values),
            "align": placed(aligned, number),
        }
        for number, (side, value) in enumerate(zip(sides, values, strict=True))
    ]


def alignments(sides: tuple[Side, ...], way: Way) -> Mapping[Axis, Aligned]:
    pairs = [side.pair for side in sides]
    axes: tuple[Axis, ...] = ("event", "time") if all(has_times(side.device) for side in sides) else ("event",)
    return {axis: align(pairs, way, axis) for axis in axes}


def placed(aligned: Mapping[Axis, Aligned], number: int) -> dict[str, Any]:
    """Of one side, by axis."""
    return {
        axis: {"span": list(each.spans[number]), "extent": list(each.extent), "focus": list(each.focus)}
        for axis, each in aligned.items()
    }


def overlay_value(sides: tuple[Side, ...], view: CompareView) -> dict[str, Any]:
    names = ", ".join(f"{side.letter} {side.name}" for side in sides)
    return {
        "linked": linked_name(sides),
        "count": len(sides),
        "other": view.number_of_other(sides),
        "shown": view.overlay,
        "label": f"Live bytes of {names} over each other. The table below has the same figures.",
    }
