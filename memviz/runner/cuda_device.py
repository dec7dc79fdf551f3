"""A real GPU with its history recorded: what the driver of a run needs of a device, measured.

    with CudaDevice() as device:
        model = device.place(model)
        with device.phase("forward"):
            output = model(**device.inputs(workload))
        trace = device.finish()

With `record=False` the same steps run with nothing recorded and no hooks, for their seconds.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self

import torch
from torch import nn

from memviz.errors import UsageError
from memviz.runner.accelerator import Accelerator, find_accelerator
from memviz.runner.counts import Counts, places
from memviz.runner.device import TakesInputs
from memviz.runner.history import History, StackKind
from memviz.runner.log import Log
from memviz.runner.reconcile import Peaks, Reported, reconcile
from memviz.runner.recording import read_taken
from memviz.runner.sighting import see_all
from memviz.runner.timing import EventStopwatch, Timing, measure
from memviz.runner.watching import Watch
from memviz.trace.model import Category, DeviceTrace, Phase, Trace


@dataclass(frozen=True)
class _Books:
    """As PyTorch keeps them."""

    allocated: int
    reserved: int
    peak_allocated: int
    peak_reserved: int
    peak_requested: int


class CudaDevice:
    """One of the process's GPUs. Also XPU, where torch has a history for it."""

    def __init__(
        self,
        index: int = 0,
        *,
        record: bool = True,
        stacks: StackKind = "python",
        max_entries: int | None = None,
        accelerator: Accelerator | None = None,
    ) -> None:
        self.accelerator = accelerator or find_accelerator()
        self.index = index
        self.history = History(self.accelerator, stacks=stacks, max_entries=max_entries, device=index)
        self.peaks: Peaks | None = None
        """After `finish`: what PyTorch reports, held against the trace."""
        self._records = record
        self._log = Log(self.history.counts)
        self._watch = Watch(self._log, self.accelerator.kind, follow_phases=False)
        self._reset_at: Counts | None = None
        self._final: _Books | None = None

    def __enter__(self) -> Self:
        self.accelerator.api.init()
        self.accelerator.api.set_device(self.index)
        gc.collect()
        self.empty_cache()
        if self._records:
            self.history.start()
            self.history.when_out_of_memory = lambda _: self._watch.see_all()
            self._watch.every_optimizer()
        self.reset_peak()
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _at: TracebackType | None
    ) -> None:
        self._watch.close()
        self.history.stop()

    @property
    def name(self) -> str:
        return self.accelerator.name_of(self.index)

    @property
    def torch_device(self) -> torch.device:
        return torch.device(self.accelerator.kind, self.index)

    def place(self, model: nn.Module) -> nn.Module:
        model = model.to(self.torch_device)
        if self._records:
            self._watch.model(model)
        return model

    def inputs(self, workload: TakesInputs) -> dict[str, Any]:
        made = workload.inputs(self.torch_device)
        if self._records:
            see_all(self._log, made, Category.INPUT, self.accelerator.kind)
        return made

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        if not self._records:
            yield
            return
        self._watch.refresh()
        with self._log.during(name):
            yield
            if self._log.phase == Phase.BACKWARD:
                self._watch.see_gradients()

    def empty_cache(self) -> None:
        self.accelerator.api.memory.empty_cache()

    def reset_peak(self) -> None:
        self.accelerator.api.memory.reset_peak_memory_stats(self.index)
        self._reset_at = self.history.counts()

    @property
    def allocated_bytes(self) -> int:
        return self._books().allocated

    @property
    def reserved_bytes(self) -> int:
        return self._books().reserved

    @property
    def peak_allocated_bytes(self) -> int:
        return self._books().peak_allocated

    @property
    def peak_reserved_bytes(self) -> int:
        return self._books().peak_reserved

    @property
    def peak_requested_bytes(self) -> int:
        """What the program asked for at most, before anything is rounded."""
        return self._books().peak_requested

    def seconds(self, step: Callable[[], object], *, steps: int, warmup: int = 1) -> Timing:
        """Only with `record=False`."""
        return measure(step, EventStopwatch(self.accelerator.api), steps=steps, warmup=warmup)

    def finish(self) -> Trace:
        """Ends the recording. Where memory ran out, what was live then is live at the end of the trace."""
        if not self.history.is_on:
            raise UsageError("This device records nothing, or its recording has been read already.")
        self.accelerator.api.synchronize()
        self._watch.close()
        self._watch.see_all()
        final = self._books()
        taken = self.history.take_last()
        self.history.stop()
        self._final = final
        trace = read_taken(self.history, taken, self._log, self.index, facts={})
        ours = self._ours(trace)
        since = 0
        if taken.counts is not None and self._reset_at is not None:
            since = int(places(ours.events, taken.counts, [self._reset_at])[0])
        reported = Reported(final.peak_allocated, final.peak_reserved)
        lost = bool(self.history.lost(taken))
        self.peaks = reconcile(trace, ours, reported, since=since, lost_events=lost)
        about = replace(trace.about, facts={**trace.about.facts, **self.peaks.facts()})
        return replace(trace, devices=(ours,), about=about)

    def _ours(self, trace: Trace) -> DeviceTrace:
        for each in trace.devices:
            if (each.kind, each.device) == ("gpu", self.index):
                return each
        raise UsageError(f"Nothing was allocated on {self.name} while it was recorded.")

    def _books(self) -> _Books:
        if self._final is not None:
            return self._final
        figures = self.accelerator.api.memory.memory_stats_as_nested_dict(self.index)
        allocated, reserved, requested = (
            _all(figures, f"{name}_bytes") for name in ("allocated", "reserved", "requested")
        )
        return _Books(
            allocated.get("current", 0),
            reserved.get("current", 0),
            allocated.get("peak", 0),
            reserved.get("peak", 0),
            requested.get("peak", 0),
        )


def _all(figures: Mapping[str, Any], name: str) -> Mapping[str, int]:
    found: Mapping[str, int] = figures.get(name, {}).get("all", {})
    return found
