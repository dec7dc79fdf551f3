"""Results that several views need are computed once, kept on what they are computed from, and die with it.

Traces and devices are frozen, so a result stays right; and no cache outlives a trace or mixes visitors.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import wraps
from typing import TypeVar

from memviz.analysis.held import held_bytes
from memviz.trace.holes import give_back_after
from memviz.trace.model import DeviceTrace, Trace

_LARGE = 1 << 14
"""Bytes. What takes fewer stays: some of it took long to work out."""

Result = TypeVar("Result")


def kept(owner: Trace | DeviceTrace, key: Hashable, make: Callable[[], Result]) -> Result:
    """`key` says what the result is, and what else it depends on."""
    results = owner.__dict__.setdefault("_kept", {})
    if key not in results:
        results[key] = make()
        give_back_after(owner.event_count if isinstance(owner, Trace) else len(owner.events))
    result: Result = results[key]
    return result


def remembered(function: Callable[[DeviceTrace], Result]) -> Callable[[DeviceTrace], Result]:
    """For a function of nothing but a device."""
    key = f"{function.__module__}.{function.__qualname__}"

    @wraps(function)
    def recall(device: DeviceTrace) -> Result:
        return kept(device, key, lambda: function(device))

    return recall


def let_go(trace: Trace) -> None:
    """What was computed for views that nobody looks at: it comes again when it is asked for."""
    for owner in (trace, *trace.devices):
        results = owner.__dict__.get("_kept", {})
        for key in [key for key, result in list(results.items()) if held_bytes(result) > _LARGE]:
            results.pop(key, None)
