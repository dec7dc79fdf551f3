"""The plot of reserved memory under each setting, and which segment maps are compared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from memviz.allocator.replay_result import Replayed, reserved_after_events
from memviz.allocator.replayer import WhatIf
from memviz.analysis.lifetimes import clock, has_times
from memviz.analysis.timeline import ReplayedBytes, ReservedLines, by_event, by_time, reserved_lines, timeline
from memviz.results.replay_headline import settings_name
from memviz.text import when
from memviz.trace.model import DeviceTrace
from memviz.ui.what_if.verdict import Answer, caption
from memviz.units import bytes_text

COLUMNS = 900


def plot_value(device: DeviceTrace, outcome: WhatIf, *, at: int, label: str) -> dict[str, Any]:
    replays = lines(device, outcome)
    limit = outcome.card.usable_bytes if outcome.card else None
    over_events = reserved_lines(by_event(device, COLUMNS), replays, limit)
    has_reserved = outcome.knows_recorded_peak
    axes = {"event": _axis(over_events, has_reserved=has_reserved)}
    if has_times(device):
        over_time = reserved_lines(by_time(device, COLUMNS), replays, limit)
        times = clock(device)
        axes["time"] = {**_axis(over_time, has_reserved=has_reserved), "span": int(times[-1] - times[0])}
    return {
        "label": label,
        "events": len(device.events),
        "limit": limit,
        "at": at,
        "names": [replay.name for replay in replays],
        "stops": _stops(outcome),
        # Bytes after the last event, where a column of the axes may hold many events; none of what ran out before,
        # nor of what the file does not tell.
        "ends": {
            "live": timeline(device).end_bytes,
            "recorded": int(timeline(device).reserved[-1]) if has_reserved else None,
            "lines": [None if replay.stopped else int(replay.reserved[-1]) for replay in replays],
        },
        "axes": axes,
    }


def lines(device: DeviceTrace, outcome: WhatIf) -> list[ReplayedBytes]:
    """Return lines for the replay and its rival, without those that equal the recording, which has its own line."""
    replayed, rival = outcome.replayed, outcome.compared_with
    is_recording = replayed is outcome.base and not outcome.divergence
    shown = [] if is_recording else [replayed]
    if rival is not replayed and outcome.why_not_as_recorded:
        shown.append(rival)
    count = len(device.events)
    named = [(_name_of(one, outcome), one) for one in shown]
    return [ReplayedBytes(name, reserved_after_events(one, count), one.oom is not None) for name, one in named]


def _name_of(replayed: Replayed, outcome: WhatIf) -> str:
    if replayed.settings != outcome.recorded.settings:
        return settings_name(replayed.settings)
    if replayed is not outcome.base:
        return "recorded settings, same start"
    return f"recorded settings, {'same limit' if outcome.card else 'without limit'}"


def _stops(outcome: WhatIf) -> list[dict[str, Any]]:
    """Return the OOM marks, one per event; none of the recording's on a card with enough memory."""
    sides = (outcome.compared_with, outcome.replayed, outcome.base)
    ended = {side.oom.event: side for side in sides if side.oom is not None}
    stops = []
    for event, ending in sorted(ended.items()):
        whose = ""
        if len(ended) > 1:
            whose = settings_name(ending.settings) if ending is outcome.replayed else _name_of(ending, outcome)
            whose = " as recorded" if ending is outcome.base and not outcome.divergence else f" with {whose}"
        text = f"out of memory, {when(event)}{whose}"
        stops.append({"event": event, "reserved": ending.peak_reserved_bytes, "text": text})
    return stops


def _axis(lines: ReservedLines, *, has_reserved: bool) -> dict[str, Any]:
    """A recording without reserved bytes gets no line: one at zero would be wrong."""
    columns = lines.columns
    return {
        "first": columns.first_event.tolist(),
        "count": columns.event_count.tolist(),
        "live": columns.live_max.tolist(),
        "recorded": columns.reserved_max.tolist() if has_reserved else [],
        "lines": [line.reserved[: line.last_column + 1].tolist() for line in lines.lines],
    }


def moment_that_matters(device: DeviceTrace, outcome: WhatIf) -> int:
    """Return the event of the first OOM, else the first event at which the recording reserves its most."""
    for line in (outcome.base, outcome.replayed, outcome.recorded):
        if line.oom is not None:
            return min(line.oom.event, len(device.events) - 1)
    return int(reserved_after_events(outcome.recorded, len(device.events)).argmax()) - 1


def plot_label(outcome: WhatIf, answer: str) -> str:
    """Return the text for screen readers."""
    peak = bytes_text(outcome.replayed.peak_reserved_bytes)
    return f"{answer} Peak reserved {peak}. The table below has the figures."


@dataclass(frozen=True)
class MapSide:
    replayed: Replayed
    is_recording: bool
    device: DeviceTrace
    at: int
    """Its own event at the moment that is shown."""
    caption: str


def map_sides(answer: Answer) -> list[MapSide]:
    """Return one or two segment maps; after its OOM a replay has none."""
    outcome = answer.what_if
    ran_out = outcome.base.oom is not None and answer.at <= outcome.base.oom.event
    left, replayed = outcome.base if ran_out else outcome.recorded, outcome.replayed
    has_more = replayed is not left and (replayed.oom is None or answer.at <= replayed.oom.event)
    sides = []
    for side in [left, replayed] if has_more else [left]:
        is_recording = side is outcome.recorded
        device = answer.device if is_recording else side.trace.devices[0]
        # The replay's own event after which it had done what the recording did; -1 is before its first.
        at = answer.at if is_recording else int(np.searchsorted(side.sources, answer.at, side="right")) - 1
        sides.append(MapSide(side, is_recording, device, at, caption(side, is_recording=is_recording)))
    return sides
