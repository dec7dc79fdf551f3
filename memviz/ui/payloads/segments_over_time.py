"""What stands in the picture of segments over time: a timeline whose allocations are segments."""

from __future__ import annotations

from typing import Any

import numpy as np

from memviz.analysis.callstacks.sites import sites
from memviz.analysis.lifetimes import BEFORE, has_times, lifetimes
from memviz.analysis.segments import NO_ALLOCATION, SegmentLives, segment_lives
from memviz.errors import UsageError
from memviz.figures.colouring import Colouring
from memviz.figures.packed_timeline import PackedTimeline, pack_rows, pack_sites, pack_spans, pack_times
from memviz.trace.model import DeviceTrace, Ints8, Trace
from memviz.ui.html.plain import plain
from memviz.ui.payloads.timeline_pieces import groups_piece

KEY_ENDING = "#segments"
"""So that the page does not take it for the trace's own timeline, of which pieces are handed around by key."""
_BOUNDS = (0.9, 0.5, 0.1)
_LABELS = ("over 90 % used", "50 to 90 % used", "10 to 50 % used", "under 10 % used")
_SHADES = (1.0, 0.7, 0.4, 0.1)


def segments_over_time_value(device: DeviceTrace, key: str) -> dict[str, Any]:
    """None where nothing was recorded over time, or it cannot be drawn."""
    try:
        has_any = len(device.events) and len(segment_lives(device))
    except UsageError:
        return {}
    if not has_any:
        return {}
    return {
        "key": key + KEY_ENDING,
        "label": "Segments over time, by how much of each was used.",
        "has_times": has_times(device),
        "phases": [],
        "ooms": [],
        "state": {"colour": "use"},
        "of": "segments",
        "name": "Segments over time, by how much of each was used on average",
        "linked": "segments",
        "follows": key,
    }


def segments_over_time_piece(trace: Trace, device: DeviceTrace, request: dict[str, Any]) -> PackedTimeline:
    lives, kind = segment_lives(device), request.get("piece")
    if kind == "timeline":
        return pack_spans(device, lives.start - BEFORE, lives.end - BEFORE, lives.size)
    if kind == "groups":
        return groups_piece(_by_use(lives))
    if kind == "times":
        return pack_times(device)
    if kind == "sites":
        return _held_longest(trace, device, lives)
    if kind == "lit":
        return pack_rows(np.zeros(0, dtype=np.int64), len(lives))
    raise UsageError(f"Segments over time have no piece {kind!r}.")


def _by_use(lives: SegmentLives) -> Colouring:
    group = np.searchsorted(-np.array(_BOUNDS), -lives.used, side="left").astype(np.uint8)
    return Colouring("use", _LABELS, group, _SHADES)


def _held_longest(trace: Trace, device: DeviceTrace, lives: SegmentLives) -> PackedTimeline:
    """Of each segment in words: whose allocation was in it for most events, and so kept it from being given back."""
    table = sites(trace)
    held = lives.longest != NO_ALLOCATION
    site: Ints8 = np.full(len(lives), len(table.sites), dtype=np.int64)
    if held.any():
        site[held] = table.of_stack[lifetimes(device).stack[lives.longest[held]]]
    codes, place = np.unique(site, return_inverse=True)
    words = [
        "segment, never used"
        if code == len(table.sites)
        else f"segment, held longest by {plain(table.sites[code].label)}"
        for code in codes.tolist()
    ]
    return pack_sites(place.astype(np.int32), words)
