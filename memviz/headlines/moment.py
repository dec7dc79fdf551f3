"""What is live at a moment, and how the reserved memory is used then."""

from __future__ import annotations

from memviz.analysis.peak import LiveSet
from memviz.analysis.reserved.segments import SegmentsAt, TileKind
from memviz.analysis.which_device import Which
from memviz.headlines.headline import Headline
from memviz.headlines.names import device_name, kind_name, short
from memviz.units import bytes_text, count_text, counted, percent_text


def live_then(live: LiveSet, which: Which, event_count: int) -> Headline:
    """`event_count` is the device's: without a history the only moment is the end."""
    answer = f"{bytes_text(live.live_bytes)} are live{_where(which)}{_when(live.event, event_count)}{_most(live)}."
    if live.reserved_bytes < live.live_bytes:
        # The file says less of its segments than of its tensors.
        return Headline(answer)
    return Headline(answer, f"{bytes_text(live.reserved_bytes)} are reserved then.")


def segments_then(found: SegmentsAt, which: Which, event_count: int, *, is_known: bool) -> Headline:
    """`is_known`: the recording tells what was reserved."""
    reserved, segments = found.reserved_bytes, counted(len(found.segments), "segment")
    where = f"{_where(which)}{_when(found.event, event_count)}"
    if not is_known:
        return Headline(f"What is reserved{where} is not in the file.")
    if not reserved:
        return Headline(f"Nothing is reserved{where}.")
    free = int(found.tiles.size[found.tiles.kind == TileKind.FREE].sum())
    share = f"{bytes_text(free)} ({percent_text(free, reserved)})"
    return Headline(
        f"{bytes_text(reserved)} are reserved in {segments}{where}.",
        f"Blocks take {bytes_text(reserved - free)} of it, and {share} is free.",
    )


def _where(which: Which) -> str:
    return f" on {device_name(which)}" if which.is_one_of_several else ""


def _when(event: int, event_count: int) -> str:
    if not event_count:
        return " at the end"
    return f" after event {count_text(event)}" if event >= 0 else " before the first event"


def _most(live: LiveSet) -> str:
    """The largest group, as far as its name says something."""
    if not live.live.groups:
        return ""
    first = live.live.groups[0]
    name = kind_name(first.label) if live.live.by == "category" else first.label
    return f", {percent_text(first.bytes, live.live_bytes)} of it {_JOINTS.get(live.live.by, 'in')} {short(name)}"


_JOINTS = {"site": "at", "line": "at", "stack": "at", "category": "in", "size": "of"}
