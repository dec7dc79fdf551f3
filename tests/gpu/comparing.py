"""Differences of two traces in their segments, requests, and live bytes at the peak."""

from typing import Any

import numpy as np

from memviz.analysis.peak import peak
from memviz.trace.model import Action, DeviceTrace, Trace


def sizes_of(device: DeviceTrace, *actions: Action) -> list[int]:
    """Sizes of the events with one of these actions, in order."""
    events = device.events
    sizes: list[int] = events.size[np.isin(events.action, actions)].tolist()
    return sizes


def out_of_memory_at(device: DeviceTrace) -> dict[str, int] | None:
    """Return how many requests preceded the first out of memory, and its requested bytes."""
    events = device.events
    rows = np.flatnonzero(events.action == Action.OOM)
    if not len(rows):
        return None
    served = int((events.action[: rows[0]] == Action.ALLOC).sum())
    return {"served": served, "asked": int(events.size[rows[0]])}


def most_different(measured: Trace, predicted: Trace, by: str, top: int = 3) -> dict[str, int]:
    """Return the groups at the peaks that differ most, in measured minus predicted bytes."""
    more: dict[str, int] = {}
    for trace, sign in ((measured, 1), (predicted, -1)):
        for group in peak(trace, gpu_of(trace), by).live.groups:
            more[group.label] = more.get(group.label, 0) + sign * group.bytes
    ranked = sorted(more, key=lambda label: -abs(more[label]))
    return {label: more[label] for label in ranked[:top] if more[label]}


def gpu_of(trace: Trace) -> DeviceTrace:
    device: Any = next((device for device in trace.devices if device.kind == "gpu" and len(device.events)), None)
    assert device is not None, "The snapshot holds no event of a GPU."
    return device  # type: ignore[no-any-return]
