"""Data of timelines: their value, the pieces that the browser requests, several on one scale, segments over time.

memviz/ui/components/memory_timeline/README.md lists the pieces.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np

from memviz.analysis.allocations import rows_alike
from memviz.analysis.annotations import annotated, marks
from memviz.analysis.breakdown import parse_path, rows_below
from memviz.analysis.callstacks.sites import sites
from memviz.analysis.comparing.align import START, Aligned, Alignment, Axis, align
from memviz.analysis.find import find_rows
from memviz.analysis.findings.finding import NOTICEABLE
from memviz.analysis.findings.ranking import finding_by_key
from memviz.analysis.groups import group_codes
from memviz.analysis.lifetimes import BEFORE, has_times, lifetimes
from memviz.analysis.overview import overview
from memviz.analysis.peak import failed_requests
from memviz.analysis.purpose.phases import phase_name, phase_spans
from memviz.analysis.segments import NO_ALLOCATION, SegmentLives, segment_lives
from memviz.analysis.timeline import timeline
from memviz.errors import UsageError
from memviz.figures.colouring import Colouring, SharedHue, colouring, group_colour, largest_of_all, pixel_palette
from memviz.figures.packed_timeline import (
    PackedTimeline,
    pack_allocations,
    pack_colouring,
    pack_selection,
    pack_sites,
    pack_spans_and_reserved,
    pack_times,
)
from memviz.predictor.cards import common_cards, short_name
from memviz.results.summary import trace_headline
from memviz.text import LONGEST_TEXT, cut_middle, plain
from memviz.trace.model import DeviceTrace, Ints8, Trace
from memviz.units import bytes_text

_MOST_PHASES = 2000
_MOST_MARKS = 2000
_CARDS = {short_name(card.name): card.memory_bytes for card in common_cards()}
"""Whose memory can be drawn as a line."""
_CARD_IN_SIGHT = 2
"""Times the reserved peak that a card's line may be high: more would make the picture flat."""
_MOST_CARD = 16
_MOST_OOM = 50
_HOST_STRETCHES = 240
_NOTED_BY_TORCH = ("Optimizer.", "ProfilerStep#")
"""Such notes are coarser than what stacks show."""


def timeline_value(
    trace: Trace, device: DeviceTrace, key: str, *, state: dict[str, Any] | None = None
) -> dict[str, Any]:
    reserved, failed = timeline(device).reserved, failed_requests(trace, device, slice(_MOST_OOM))
    named = [[plain(mark.name), mark.end_event + 1] for mark in marks(trace, device)[:_MOST_MARKS]]
    return {
        "key": key,
        "label": str(trace_headline(overview(trace, device))),
        "has_times": has_times(device),
        "phases": phase_bands(trace, device),
        "ooms": [
            {"event": event, "reserved": int(reserved[event + 1]), "text": f"{bytes_text(size)} did not fit"}
            for event, size in ((oom.event, oom.requested_bytes) for oom in failed)
        ],
        "state": state or {},
        **({"marks": named} if named else {}),
        **(card_line(trace, int(reserved.max())) or {"cards": _CARDS}),
        **host_lane(device),
    }


def host_lane(device: DeviceTrace) -> dict[str, Any]:
    """Return the highest and the last host memory of each stretch of events; nothing where it is little."""
    host = device.host
    if host is None or int(host.total.max()) < max(NOTICEABLE * timeline(device).peak_bytes, 1):
        return {}
    rows = host.thinned(host.event * _HOST_STRETCHES // (len(device.events) + 1))
    lane = {
        "of": "resident" if device.is_timed else "tensors",
        "peak": int(host.total.max()),
        "rows": np.stack([rows.event, rows.total, rows.pinned], axis=1).tolist(),
    }
    return {"host": lane}


def card_line(trace: Trace, reserved_bytes: int) -> dict[str, Any]:
    """Return a line at the memory of the card that a prediction is for, unless it is far above what was reserved."""
    text = trace.about.facts.get("card_bytes", "")
    card_bytes = int(text) if text.isdecimal() and len(text) <= 18 else 0
    if not 0 < card_bytes <= _CARD_IN_SIGHT * reserved_bytes:
        return {}
    line = {"bytes": card_bytes, "text": cut_middle(plain(trace.about.on), _MOST_CARD), "is_limit": True}
    return {"ruler": line, "top": round(_HEADROOM * max(card_bytes, reserved_bytes))}


def phase_bands(trace: Trace, device: DeviceTrace) -> list[list[Any]]:
    """[name, first instant, last instant] of what the program noted itself; of phases seen in stacks where it did not.

    Of what it noted only what no other note encloses.
    """
    intervals = annotated(device)
    rows = ((intervals.depth == 0) & (intervals.end_event >= intervals.start_event)).nonzero()[0][:_MOST_PHASES]
    names = [plain(trace.strings[code]) for code in intervals.name[rows]]
    ends = (intervals.start_event[rows] + 1).tolist(), (intervals.end_event[rows] + 2).tolist()
    noted = [list(band) for band in zip(names, *ends, strict=True)]
    phases = phase_spans(trace, device)
    if phases.spans and all(str(name).startswith(_NOTED_BY_TORCH) for name, _, _ in noted):
        seen = [(plain(phase_name(trace, device, span)), span) for span in phases.spans[:_MOST_PHASES]]
        return [[name, span.first + 1, span.last + 2] for name, span in seen]
    return noted


def piece(trace: Trace, device: DeviceTrace, request: dict[str, Any]) -> PackedTimeline:
    kind = request.get("piece")
    if kind == "timeline":
        return pack_allocations(device)
    if kind == "groups":
        # The keys of traces that share their colours. The request comes from a browser, so it is checked.
        keys = request.get("among")
        among = tuple(key for key in keys if isinstance(key, str)) if isinstance(keys, list) else ()
        return groups_piece(colouring(trace, device, str(request.get("meaning", "category")), among))
    if kind == "times":
        return pack_times(device)
    if kind == "sites":
        table = sites(trace)
        return pack_sites(table.of_stack[lifetimes(device).stack], [site.label for site in table.sites])
    if kind == "lit":
        lit = lit_rows(trace, device, str(request.get("by", "site")), request.get("group"))
        return pack_selection(lit, len(lifetimes(device)))
    raise UsageError(f"Unknown part of a timeline: {kind!r}.")


def lit_rows(trace: Trace, device: DeviceTrace, by: str, group: Any) -> Ints8:
    """All allocations of one group, wherever in time; of what a person looks for, of one box of the icicle, of a
    finding, or like one of them."""
    rows = np.arange(len(lifetimes(device)))
    if by == "find":
        return find_rows(trace, device, str(group))
    if by == "finding":
        return finding_by_key(trace, device, str(group)).rows
    if by == "like":
        number = str(group)
        return rows_alike(device, int(number) if number.isdecimal() and len(number) <= 18 else -1)
    if by == "path":
        return rows_below(trace, device, rows, parse_path(trace, str(group)))
    keyed = group_codes(trace, device, rows, by)
    wanted = [code for code in np.unique(keyed.codes).tolist() if keyed.name(int(code))[0] == group]
    return np.asarray(rows[np.isin(keyed.codes, wanted)], dtype=np.int64)


def groups_piece(colours: Colouring) -> PackedTimeline:
    packed = pack_colouring(colours)
    palettes = {
        f"{mode}{'_dimmed' if dimmed else ''}": pixel_palette(colours, dark=mode == "dark", dimmed=dimmed)
        for mode in ("light", "dark")
        for dimmed in (False, True)
    }
    header = {
        **packed.header,
        "meaning": colours.meaning,
        "labels": list(colours.labels),
        "colours": {
            mode: [group_colour(colours, i, dark=mode == "dark") for i in range(len(colours.labels))]
            for mode in ("light", "dark")
        },
        "palettes": {mode: table.reshape(-1).tolist() for mode, table in palettes.items()},
    }
    return PackedTimeline(header, packed.body)


_HEADROOM = 1.06
_MOST_NAME = 80


@dataclass(frozen=True)
class LinkedTrace:
    letter: str
    key: str
    """Key of its timeline."""
    name: str
    trace: Trace
    device: DeviceTrace

    @property
    def pair(self) -> tuple[Trace, DeviceTrace]:
        return self.trace, self.device


def linked_name(traces: Sequence[LinkedTrace]) -> str:
    """Return the name that linked timelines share. Another set of traces gets another, so that all reset together."""
    return blake2b("\n".join(trace.key for trace in traces).encode(), digest_size=8).hexdigest()


def linked_values(
    traces: Sequence[LinkedTrace], alignment: Alignment = START, axis: Axis = "event", *, colour: str = "category"
) -> list[dict[str, Any]]:
    """One per trace, in their order. `colour` is what colours mean: sites and modules have theirs in all of them."""
    baseline = timeline(traces[0].device).peak_bytes
    lines = [timeline(trace.device) for trace in traces]
    top = max(max(line.reserved_peak_bytes, line.peak_bytes) for line in lines) or 1
    aligned = alignments(traces, alignment)
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
    hosts = [value["host"] for value in values if "host" in value]
    for host in hosts:
        host["top"] = max(one["peak"] for one in hosts)
    return [
        {
            **value,
            **common,
            "badge": trace.letter,
            "name": cut_middle(trace.name, LONGEST_TEXT),
            "band": any(value["phases"] for value in values),
            "align": placed(aligned, number),
        }
        for number, (trace, value) in enumerate(zip(traces, values, strict=True))
    ]


def shared_hues(traces: Sequence[LinkedTrace], colour: str) -> list[SharedHue]:
    return [] if colour == "category" else largest_of_all([trace.pair for trace in traces], colour)


def alignments(traces: Sequence[LinkedTrace], alignment: Alignment) -> Mapping[Axis, Aligned]:
    pairs = [trace.pair for trace in traces]
    axes: tuple[Axis, ...] = ("event", "time") if all(has_times(trace.device) for trace in traces) else ("event",)
    return {axis: align(pairs, alignment, axis) for axis in axes}


def placed(aligned: Mapping[Axis, Aligned], number: int) -> dict[str, Any]:
    """Return the alignment of one trace, by axis."""
    return {
        axis: {"span": list(one.spans[number]), "extent": list(one.extent), "focus": list(one.focus)}
        for axis, one in aligned.items()
    }


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
        return pack_spans_and_reserved(device, lives.start - BEFORE, lives.end - BEFORE, lives.size)
    if kind == "groups":
        group = np.searchsorted(-np.array(_BOUNDS), -lives.used, side="left").astype(np.uint8)
        return groups_piece(Colouring("use", _LABELS, group, _SHADES))
    if kind == "times":
        return pack_times(device)
    if kind == "sites":
        return _by_longest_site(trace, device, lives)
    if kind == "lit":
        return pack_selection(np.zeros(0, dtype=np.int64), len(lives))
    raise UsageError(f"Unknown part of segments over time: {kind!r}.")


def _by_longest_site(trace: Trace, device: DeviceTrace, lives: SegmentLives) -> PackedTimeline:
    """Return, for each segment, the site whose allocation occupied it longest and so prevented its release."""
    table = sites(trace)
    held = lives.longest != NO_ALLOCATION
    site: Ints8 = np.full(len(lives), len(table.sites), dtype=np.int64)
    if held.any():
        site[held] = table.of_stack[lifetimes(device).stack[lives.longest[held]]]
    codes, place = np.unique(site, return_inverse=True)
    labels = [f"segment, held longest by {plain(one.label)}" for one in table.sites] + ["segment, never used"]
    return pack_sites(place.astype(np.int32), [labels[code] for code in codes.tolist()])
