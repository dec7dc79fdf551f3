"""What is live at a moment, and which event a moment is."""

from __future__ import annotations

from math import isfinite

import numpy as np

from memviz.analysis.cache import remembered
from memviz.analysis.lifetimes import BEFORE, lifetimes
from memviz.errors import UsageError
from memviz.trace.model import DeviceTrace, Ints8

_EARLIEST_EPOCH_SECONDS = 1e8
"""Seconds from here on are a date (1973 and later), below it they count from the first event."""


def live_rows(device: DeviceTrace, event: int) -> Ints8:
    """Rows of `lifetimes` that are live after this event; BEFORE (-1) asks for before the first one."""
    check_event(device, event)
    rows = lifetimes(device)
    begun = int(np.searchsorted(rows.start, event, side="right"))
    return np.flatnonzero(rows.end[:begun] > event)


def check_event(device: DeviceTrace, event: int) -> None:
    last = len(device.events) - 1
    if not BEFORE <= event <= last:
        reach = f"from 0 to {last}" if last >= 0 else "none"
        raise UsageError(
            f"Device {device.name} has no event {event}. Its events: {reach}; {BEFORE} stands for before the first."
        )


def has_times(device: DeviceTrace) -> bool:
    """torch before 2.2 recorded none, and on a predicted device no clock runs."""
    return device.is_timed and has_stamps(device)


def has_stamps(device: DeviceTrace) -> bool:
    """Times, or counts in their place: enough to say between which events an annotation begins and ends."""
    return bool(device.events.time_us.any())


@remembered
def clock(device: DeviceTrace) -> Ints8:
    """Times that never run backwards: threads may record an event a little after a later one."""
    times = device.events.time_us
    # Most clocks never do, and a column less is kept.
    return times if (times[1:] >= times[:-1]).all() else np.maximum.accumulate(times)


def event_at_time(device: DeviceTrace, time_us: int) -> int:
    """The last event not later than this time; BEFORE (-1) where all are later."""
    if not has_times(device):
        raise UsageError(f"The events of device {device.name} have no times. Ask by event instead.")
    return int(np.searchsorted(clock(device), time_us, side="right")) - 1


def event_at_seconds(device: DeviceTrace, seconds: float) -> int:
    """As people say a time: since the first event, or since 1970."""
    if not isfinite(seconds):
        raise UsageError(f"{seconds} is no time.")
    microseconds = round(seconds * 1e6)
    if seconds < _EARLIEST_EPOCH_SECONDS and len(device.events):
        microseconds += int(clock(device)[0])
    return event_at_time(device, microseconds)


def time_of_event(device: DeviceTrace, event: int) -> int | None:
    """None before the first event, and in a file without times."""
    if event == BEFORE or not has_times(device):
        return None
    return int(device.events.time_us[event])
