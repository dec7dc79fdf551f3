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
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self

import torch
from torch import nn

from memviz.errors import UsageError
from memviz.runner.measure.accelerator import Accelerator, find_accelerator
from memviz.runner.measure.reconcile import Peaks, Reported, reconcile
from memviz.runner.measure.timing import EventStopwatch, Timing, measure
from memviz.runner.record.event_clock import Counts, comparable, places
from memviz.runner.record.log import Log
from memviz.runner.record.memory_history import RecordedHistory, StackKind, is_recording
from memviz.runner.record.model_hooks import ModelHooks
from memviz.runner.record.recording import read_taken
from memviz.runner.record.tensor_labels import see_all
from memviz.runner.run_device import TakesInputs
from memviz.trace.model import Category, DeviceTrace, Phase, Trace

_SWITCHED_OFF = (
    "The program switched the recording off by itself (torch.cuda.memory._record_memory_history), so what came before "
    "or after that is missing in the trace. The peaks are PyTorch's own."
)


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
        self.history = RecordedHistory(self.accelerator, stacks=stacks, max_entries=max_entries, device=index)
        self.peaks: Peaks | None = None
        """After `finish`: what PyTorch reports, held against the trace."""
        self.notes: tuple[str, ...] = ()
        """After `finish`: what the program did to the recording."""
        self._records = record
        self._log = Log(self.history.counts)
        self._hooks = ModelHooks(self._log, self.accelerator.kind, follow_phases=False, failed=self.history.failed)
        self._reset_at: Counts | None = None
        self._final: _Books | None = None
        self._is_broken = False

    def __enter__(self) -> Self:
        try:
            self._begin()
        except BaseException:
            self._end()
            raise
        return self

    def _begin(self) -> None:
        self.accelerator.wake()
        self.accelerator.api.set_device(self.index)
        gc.collect()
        self.empty_cache()
        if self._records:
            self.history.start()
            self.history.when_out_of_memory = lambda _: self._hooks.see_all()
            self._hooks.every_optimizer()
        self.reset_peak()

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _at: TracebackType | None
    ) -> None:
        self._end()

    def _end(self) -> None:
        try:
            self._hooks.close()
        finally:
            self.history.stop()
        with suppress(RuntimeError):
            self.history.silence()

    @property
    def name(self) -> str:
        return self.accelerator.name_of(self.index)

    is_predicted = False

    @property
    def torch_device(self) -> torch.device:
        return torch.device(self.accelerator.kind, self.index)

    def place(self, model: nn.Module, on_host: Collection[nn.Parameter] = ()) -> nn.Module:
        # `.to` would move all of it, and a model whose weights stay on the host may be larger than the card.
        stay = frozenset(map(id, on_host))
        model._apply(  # type: ignore[no-untyped-call]
            lambda tensor: tensor if id(tensor) in stay else tensor.to(self.torch_device)
        )
        if self._records:
            self._hooks.model(model)
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
        self._hooks.refresh()
        with self._log.during(name), self._hearing_of_errors():
            yield
            if self._log.phase == Phase.BACKWARD:
                self._hooks.see_gradients()

    @contextmanager
    def _hearing_of_errors(self) -> Iterator[None]:
        """A backward and an optimizer fail outside of every module; this is the nearest that hears of it."""
        try:
            yield
        except Exception as error:
            self.history.failed(error)
            raise

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

    @property
    def retries(self) -> int:
        """How often the allocator had to give its cache back before it could serve a request."""
        return int(self.accelerator.api.memory.memory_stats_as_nested_dict(self.index).get("num_alloc_retries", 0))

    def seconds(
        self,
        step: Callable[[], object],
        *,
        steps: int | None = None,
        warmup: int = 1,
        left_seconds: float = math.inf,
    ) -> Timing:
        """Only with `record=False`."""
        stopwatch = EventStopwatch(self.accelerator.api)
        return measure(
            step, stopwatch, steps=steps, warmup=warmup, left_seconds=left_seconds, is_recording=self._is_recording
        )

    def _is_recording(self) -> bool:
        """By whomever: the program itself may have switched a history on."""
        return is_recording() or bool(self.accelerator.history_is_on and self.accelerator.history_is_on())

    def finish(self) -> Trace:
        """Ends the recording. Where memory ran out, what was live then is live at the end of the trace."""
        if not self.history.is_on:
            raise UsageError("This device records nothing, or its recording has been read already.")
        self._wait()
        if self.accelerator.history_is_on is not None and not self.accelerator.history_is_on():
            self.notes = (_SWITCHED_OFF,)
        self._hooks.see_all()
        self._hooks.close()
        final = self._books()
        taken = self.history.take_last()
        self.history.stop()
        self._final = final
        trace = read_taken(self.history, taken, self._log, self.index, facts={})
        device = self._own_device(trace)
        since = 0
        if taken.counts is not None and self._reset_at is not None and comparable([self._reset_at], taken.counts).stop:
            since = int(places(device.events, taken.counts, [self._reset_at])[0])
        reported = Reported(final.peak_allocated, final.peak_reserved)
        lost = bool(self.history.lost(taken))
        self.peaks = reconcile(trace, device, reported, since=since, lost_events=lost)
        about = replace(trace.about, facts={**trace.about.facts, **self.peaks.facts()})
        return replace(trace, devices=(device,), about=about)

    def _wait(self) -> None:
        """For errors of kernels that are still under way. Whoever asks again wants what is there in spite of them."""
        if self._is_broken:
            return
        try:
            self.accelerator.api.synchronize()
        except RuntimeError:
            self._is_broken = True
            raise

    def _own_device(self, trace: Trace) -> DeviceTrace:
        for device in trace.devices:
            if (device.kind, device.device) == ("gpu", self.index):
                return device
        raise UsageError(" ".join([f"Nothing was allocated on {self.name} while it was recorded.", *self.notes]))

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
    every: Mapping[str, int] = figures.get(name, {}).get("all", {})
    return every
