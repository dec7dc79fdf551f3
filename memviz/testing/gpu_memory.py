"""GPU memory of one test, predicted or measured, and its limit."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

from memviz.analysis.devices import choose_device
from memviz.analysis.peak import peak
from memviz.analysis.timeline import timeline
from memviz.errors import UsageError
from memviz.runner.measure.accelerator import find_accelerator
from memviz.runner.predicted_script import Predicting, predicting
from memviz.runner.record.recording import Recording, recording
from memviz.text import escape_control_chars
from memviz.trace.model import DeviceTrace, Trace
from memviz.units import bytes_text, parse_bytes, percent_text

MOST_SITES = 5


@dataclass(frozen=True)
class MemoryLimit:
    bytes: int | None = None
    """None where only the card limits the test."""
    card: str | None = None
    """The one that is pretended, by a part of its name; None for one without an end."""
    settings: str | None = None
    """Allocator settings in the syntax of PYTORCH_CUDA_ALLOC_CONF."""
    assume: Mapping[str, Any] | None = None
    """Values for lines of the test that ask for values, which a prediction does not compute."""


def limit_of(
    limit: int | str | None = None,
    *,
    card: str | None = None,
    settings: str | None = None,
    assume: Mapping[str, Any] | None = None,
) -> MemoryLimit:
    """Parse the arguments of `@pytest.mark.limit_gpu_memory`."""
    try:
        size = parse_bytes(limit) if isinstance(limit, str) else limit
    except ValueError as error:
        raise UsageError(f"limit_gpu_memory: {error}.") from None
    if size is not None and size < 0:
        raise UsageError(f"limit_gpu_memory: {limit} is less than nothing.")
    return MemoryLimit(size, card, settings, assume)


@dataclass(frozen=True)
class Used:
    """Live bytes, as `summary` has them."""

    peak_bytes: int
    """At most, over what was there when the test began."""
    before_bytes: int
    reserved_bytes: int
    allocations: int


def used(device: DeviceTrace) -> Used:
    line = timeline(device)
    return Used(line.peak_bytes - line.start_bytes, line.start_bytes, line.reserved_peak_bytes, len(device.events))


def over_limit(trace: Trace, device: DeviceTrace, limit: int) -> str:
    """Empty where the test keeps to it."""
    took = used(device)
    if took.peak_bytes <= limit:
        return ""
    more, where = bytes_text(took.peak_bytes - limit), f" ({trace.about.label})" if trace.about.on else ""
    head = (
        f"The test held {bytes_text(took.peak_bytes)} of GPU memory at its peak, {more} more than its limit of "
        f"{bytes_text(limit)}{where}."
    )
    return f"{head}\n{largest_sites(trace, device)}"


def largest_sites(trace: Trace, device: DeviceTrace) -> str:
    """Lines that add up to what was live at the peak."""
    live = peak(trace, device, "site", top=MOST_SITES)
    rows = [(group.bytes, group.label) for group in live.live.groups]
    if live.live.rest_count:
        rows.append((live.live.rest_bytes, "all others"))
    sizes = [(bytes_text(size), percent_text(size, live.live_bytes), label) for size, label in rows]
    return "\n".join(f"{size:>10}  {share:>5}  {escape_control_chars(label, keep='')}" for size, share, label in sizes)


class GpuMemory:
    """The value of the fixture `gpu_memory`."""

    def __init__(self, name: str, limit: MemoryLimit, *, predicts: bool) -> None:
        self.limit = limit
        self.is_predicted = predicts or not _has_gpu()
        self._name = name
        self._running: Predicting | Recording | None = None
        self._around: AbstractContextManager[Any] | None = None
        self._before = 0
        self.trace: Trace | None = None
        """There once the test is over."""

    def start(self) -> None:
        limit = self.limit
        if self.is_predicted:
            self._around = predicting(limit.card, settings=limit.settings, assume=limit.assume)
        else:
            self._around = recording()
        self._running = self._around.__enter__()
        self._before = self._requested("current")

    def finish(self) -> None:
        """Once; what comes later on the device is no part of the test."""
        around, self._around = self._around, None
        if around is None:
            return
        around.__exit__(None, None, None)
        trace = self._running.trace if self._running else None
        if trace is not None:
            self.trace = replace(trace, about=replace(trace.about, source=self._name))

    @property
    def device(self) -> DeviceTrace | None:
        """The one that was used, once the test is over."""
        return None if self.trace is None else choose_device(self.trace)

    @property
    def used(self) -> Used | None:
        return None if self.device is None else used(self.device)

    @property
    def took_something(self) -> bool:
        return self.used is not None and self.used.allocations > 0

    @property
    def peak_bytes(self) -> int:
        """Live bytes at most, so far, over what was there when the test began."""
        if self.used is not None:
            return self.used.peak_bytes
        return self._requested("peak") - self._before

    def _requested(self, which: str) -> int:
        """Bytes of tensors now, or at most since the test began."""
        if isinstance(self._running, Predicting):
            return self._running.device.highest_bytes().requested if which == "peak" else 0
        if self._running is None:
            return 0
        gpu, number = self._running.history.accelerator.api.memory, self._running.device
        if which == "current":
            gpu.reset_peak_memory_stats(number)
        stats = gpu.memory_stats_as_nested_dict(number)
        return int(stats.get("requested_bytes", {}).get("all", {}).get(which, 0))


def _has_gpu() -> bool:
    try:
        find_accelerator()
    except UsageError:
        return False
    return True
