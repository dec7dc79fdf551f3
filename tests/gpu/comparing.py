"""What two traces differ in: their segments, their requests, and what was live at their peaks."""

from __future__ import annotations

from typing import Any

import numpy as np

from memviz.analysis.peak import peak
from memviz.trace.model import Action, DeviceTrace, Trace

_GROWTH = (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP)


def requests_of(device: DeviceTrace) -> list[int]:
    """The sizes asked for, in order."""
    events = device.events
    return [int(each) for each in events.size[events.action == Action.ALLOC]]


def growth_of(device: DeviceTrace) -> list[int]:
    """The sizes taken from the card, in order."""
    events = device.events
    return [int(each) for each in events.size[np.isin(events.action, _GROWTH)]]


def first_difference(one: list[int], other: list[int]) -> int | None:
    """The place where two lists part; None where they are the same."""
    places = (place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    found = next(places, None)
    return found if found is not None or len(one) == len(other) else min(len(one), len(other))


def out_of_memory_at(device: DeviceTrace) -> dict[str, int] | None:
    """The first time: how many requests were served before, and what was asked for."""
    events = device.events
    found = np.flatnonzero(events.action == Action.OOM)
    if not len(found):
        return None
    served = int((events.action[: found[0]] == Action.ALLOC).sum())
    return {"served": served, "asked": int(events.size[found[0]])}


def most_different(measured: Trace, predicted: Trace, by: str, top: int = 3) -> list[dict[str, Any]]:
    """Of what is live at the two peaks, the groups that differ most, measured less predicted."""
    ours, theirs = (
        {group.key: (group.label, group.bytes) for group in peak(trace, gpu_of(trace), by).live.groups}
        for trace in (measured, predicted)
    )
    rows = [
        {
            "what": (ours.get(key) or theirs[key])[0],
            "more_bytes": ours.get(key, ("", 0))[1] - theirs.get(key, ("", 0))[1],
        }
        for key in {**ours, **theirs}
    ]
    rows = sorted((row for row in rows if row["more_bytes"]), key=lambda each: -abs(each["more_bytes"]))
    return rows[:top]


def gpu_of(trace: Trace) -> DeviceTrace:
    found = next((device for device in trace.devices if device.kind == "gpu" and len(device.events)), None)
    if found is None:
        raise LookupError("The snapshot holds no event of a GPU.")
    return found
