"""The settings a recording was made under: what the file says of them, and what its events show."""

from __future__ import annotations

from dataclasses import replace

from memviz.allocator.settings import Settings, settings_from_snapshot
from memviz.trace.model import Action, DeviceTrace, Trace


def settings_of(trace: Trace, device: DeviceTrace) -> tuple[Settings, bool]:
    """And whether they are inferred: pages are mapped only for segments that expand, whatever the file calls them.

    Releases before 2.3 write no settings at all, and `_set_allocator_settings` can change them while a program runs.
    """
    named = settings_from_snapshot(trace.settings)
    if named.expandable_segments or not _expands(device):
        return named, False
    return replace(named, expandable_segments=True), True


def _expands(device: DeviceTrace) -> bool:
    """All that it takes from the device in this history, or where it takes nothing, all that it has."""
    action = device.events.action
    mapped, whole = bool((action == Action.SEGMENT_MAP).any()), bool((action == Action.SEGMENT_ALLOC).any())
    if mapped or whole:
        return mapped and not whole
    return bool(len(device.segments) and device.segments.is_expandable.all())
