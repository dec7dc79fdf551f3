"""Which maps stand beside each other: of what ran out, or was recorded, and of what would have been."""

from __future__ import annotations

from dataclasses import dataclass

from memviz.allocator.replayed import Replayed
from memviz.trace.model import DeviceTrace
from memviz.ui.what_if.reserved_plot import event_in
from memviz.ui.what_if.verdict import Answer, caption


@dataclass(frozen=True)
class MapSide:
    replayed: Replayed
    is_recording: bool
    device: DeviceTrace
    at: int
    """Its own event at the moment that is shown."""
    caption: str


def map_sides(answer: Answer) -> list[MapSide]:
    """One or two. Behind its end a replay shows nothing."""
    outcome = answer.what_if
    ran_out = outcome.base.oom is not None and answer.at <= outcome.base.oom.event
    left, ours = outcome.base if ran_out else outcome.recorded, outcome.replayed
    has_more = ours is not left and (ours.oom is None or answer.at <= ours.oom.event)
    return [_side(side, answer) for side in ([left, ours] if has_more else [left])]


def _side(replayed: Replayed, answer: Answer) -> MapSide:
    is_recording = replayed is answer.what_if.recorded
    return MapSide(
        replayed=replayed,
        is_recording=is_recording,
        device=answer.device if is_recording else replayed.trace.devices[0],
        at=answer.at if is_recording else event_in(replayed, answer.at),
        caption=caption(replayed, is_recording=is_recording),
    )
