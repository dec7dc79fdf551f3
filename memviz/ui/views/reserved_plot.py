"""What the plot of the What if tab is given: live bytes once, and what each replay reserved for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from memviz.allocator.replayer import Replayed, reserved_by_event
from memviz.allocator.verdict import in_words
from memviz.allocator.what_if import WhatIf
from memviz.analysis import reserved_lines
from memviz.analysis.live import clock, has_times
from memviz.analysis.reserved_lines import Replay, ReservedLines
from memviz.trace.model import DeviceTrace
from memviz.units import bytes_text, count_text

COLUMNS = 900


@dataclass(frozen=True)
class Drawn:
    """A replay and how it is spoken of."""

    replayed: Replayed
    name: str
    is_thick: bool


def plot_value(device: DeviceTrace, found: WhatIf, *, at: int, label: str) -> dict[str, Any]:
    drawn = drawn_replays(found)
    replays = [_replay(device, each) for each in drawn]
    limit = found.card.usable_bytes if found.card else None
    by_event = reserved_lines.reserved_by_event(device, replays, limit=limit, columns=COLUMNS)
    axes = {"event": _axis(by_event)}
    if has_times(device):
        by_time = reserved_lines.reserved_by_time(device, replays, limit=limit, columns=COLUMNS)
        times = clock(device)
        axes["time"] = {**_axis(by_time), "span": int(times[-1] - times[0])}
    return {
        "label": label,
        "events": len(device.events),
        "limit": limit,
        "at": at,
        "lines": [{"name": each.name, "thick": each.is_thick} for each in drawn],
        "stops": [_stop(each, number) for number, each in enumerate(drawn) if each.replayed.oom is not None],
        "axes": axes,
    }


def drawn_replays(found: WhatIf) -> list[Drawn]:
    """The recording's own line is drawn dashed without being replayed."""
    base, ours = found.base, found.replayed
    if ours is found.recorded:
        return []
    drawn = [Drawn(ours, in_words(ours.settings), True)]
    if base is not ours and base is not found.recorded and base.oom is not None:
        drawn.insert(0, Drawn(base, "the recorded settings in this limit", False))
    return drawn


def _replay(device: DeviceTrace, drawn: Drawn) -> Replay:
    reserved = reserved_by_event(drawn.replayed, len(device.events))
    return Replay(drawn.name, reserved, drawn.replayed.oom is not None)


def _stop(drawn: Drawn, number: int) -> dict[str, Any]:
    oom = drawn.replayed.oom
    assert oom is not None
    when = f"event {count_text(oom.event)}" if oom.event >= 0 else "before the first event"
    return {"line": number, "event": oom.event, "text": f"out of memory, {when}"}


def _axis(lines: ReservedLines) -> dict[str, Any]:
    columns = lines.columns
    return {
        "first": columns.first_event.tolist(),
        "count": columns.event_count.tolist(),
        "live": columns.live_max.tolist(),
        "recorded": columns.reserved_max.tolist(),
        "lines": [line.reserved[: line.last_column + 1].tolist() for line in lines.lines],
    }


def moment_that_matters(device: DeviceTrace, found: WhatIf) -> int:
    """Where memory runs out; else the first event at which the recording reserves its most."""
    for each in (found.base, found.replayed, found.recorded):
        if each.oom is not None:
            return min(each.oom.event, len(device.events) - 1)
    return int(reserved_by_event(found.recorded, len(device.events)).argmax()) - 1


def event_in(replayed: Replayed, event: int) -> int:
    """The replay's own event after which it had done what the recording did up to `event`; -1 is before its first."""
    return int(np.searchsorted(replayed.sources, event, side="right")) - 1


def plot_label(found: WhatIf, answer: str) -> str:
    """For those who do not see it."""
    ours = found.replayed
    return f"{answer} Reserved at most {bytes_text(ours.peak_reserved_bytes)}. The table below has the figures."
