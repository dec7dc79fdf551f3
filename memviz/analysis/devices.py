"""The device of a trace to look at first, and the devices that ran out of memory."""

from __future__ import annotations

from dataclasses import dataclass

from memviz.analysis.timeline import timeline
from memviz.errors import UsageError
from memviz.trace.model import Action, DeviceTrace, Trace


@dataclass(frozen=True)
class DeviceName:
    """A device among those of its trace. Where there are several, texts name the device."""

    name: str
    of: int = 1
    """How many devices the trace has."""

    @property
    def is_one_of_several(self) -> bool:
        return self.of > 1


def name_device(trace: Trace, device: DeviceTrace) -> DeviceName:
    return DeviceName(device.name, len(trace.devices))


def choose_device(trace: Trace, name: str | None = None) -> DeviceTrace:
    """The named one; else the one that ran out of memory, else the one whose memory went highest."""
    if name is None and len(trace.devices) == 1:
        return trace.devices[0]
    if name is None:
        return max(
            trace.devices,
            key=lambda device: (device.kind == "gpu", ran_out_of_memory(device), timeline(device).peak_bytes),
        )
    for device in trace.devices:
        if device.name == name:
            return device
    names = ", ".join(device.name for device in trace.devices)
    raise UsageError(f"{trace.about.source} has no device {name}. Its devices: {names}.")


def ran_out_of_memory(device: DeviceTrace) -> bool:
    return bool((device.events.action == Action.OOM).any())


def others_out_of_memory(trace: Trace, device: DeviceTrace) -> tuple[str, ...]:
    """Names of the other devices that ran out of memory."""
    return tuple(other.name for other in trace.devices if other.name != device.name and ran_out_of_memory(other))
