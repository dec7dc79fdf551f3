"""The GPU memory of one test: predicted where there is no GPU, measured where there is one."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from memviz.analysis.which_device import chosen_device
from memviz.errors import UsageError
from memviz.runner.measure.accelerator import find_accelerator
from memviz.runner.predict.predicted_program import Predicting, predicting
from memviz.runner.record.recording import Recording, recording
from memviz.testing.limit import MemoryLimit, Used, used
from memviz.trace.model import DeviceTrace, Trace


class GpuMemory:
    """What a test may ask for by the fixture `gpu_memory`."""

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
        return None if self.trace is None else chosen_device(self.trace)

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
            return self._running.device.highest_requested_bytes if which == "peak" else 0
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
