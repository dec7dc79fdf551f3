"""A device that is not looked at ran out of memory: whoever looks at another one should know, and get there."""

from __future__ import annotations

from memviz.analysis.which_device import others_out_of_memory
from memviz.trace.model import DeviceTrace, Trace


def ran_out_elsewhere(trace: Trace, device: DeviceTrace) -> str:
    """Empty where no other device did."""
    names = others_out_of_memory(trace, device)
    if not names:
        return ""
    if len(names) == 1:
        return f"Device {names[0]} ran out of memory."
    return f"Devices {', '.join(names[:-1])} and {names[-1]} ran out of memory."
