"""Which maps stand beside each other: of what ran out, or was recorded, and of what would have been."""

from __future__ import annotations

from dataclasses import dataclass

from memviz.allocator.replayed import Replayed
from memviz.trace.model import DeviceTrace
from memviz.ui.what_if.answer_html import Found, caption
from memviz.ui.what_if.reserved_plot import event_in


@dataclass(frozen=True)
class MapSide:
    replayed: Replayed
    is_recording: bool
    device: DeviceTrace
    at: int
    """Its own event at the moment that is shown."""
    caption: str


def map_sides(found: Found) -> list[MapSide]:
    """One or two. Behind its end a replay shows nothing."""
    asked = found.what_if
    ran_out = asked.base.oom is not None and found.at <= asked.base.oom.event
    left, ours = asked.base if ran_out else asked.recorded, asked.replayed
    has_more = ours is not left and (ours.oom is None or found.at <= ours.oom.event)
    return [_side(each, found) for each in ([left, ours] if has_more else [left])]


def _side(replayed: Replayed, found: Found) -> MapSide:
    is_recording = replayed is found.what_if.recorded
    return MapSide(
        replayed=replayed,
        is_recording=is_recording,
        device=found.device if is_recording else replayed.trace.devices[0],
        at=found.at if is_recording else event_in(replayed, found.at),
        caption=caption(replayed, is_recording=is_recording),
    )
