"""Results that several views need are computed once per device and die with it."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TypeVar

from memviz.trace.model import DeviceTrace

Result = TypeVar("Result")


def remembered(function: Callable[[DeviceTrace], Result]) -> Callable[[DeviceTrace], Result]:
    """Keeps the result on the (frozen) device itself: no cache that outlives a trace or mixes visitors."""
    key = f"_remembered_{function.__module__}.{function.__qualname__}"

    @wraps(function)
    def recall(device: DeviceTrace) -> Result:
        if key not in device.__dict__:
            device.__dict__[key] = function(device)
        result: Result = device.__dict__[key]
        return result

    return recall
