"""A real GPU with its history recorded: memory of the steps, seconds of the steps, and PyTorch's own peaks.

The peaks that PyTorch reports are compared with those of the trace, which the allocator model turns into blocks; a
difference is shown with its reason. Seconds come from GPU events with the recording off, since it takes a stack at
every allocation, and after whole warm-up steps, since a first backward loads kernels and takes workspaces.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median, quantiles
from types import TracebackType
from typing import Any, Self

import torch
from torch import nn

from memviz.allocator.replay_result import Replayed
from memviz.allocator.replayer import Replayer
from memviz.errors import UsageError
from memviz.predictor.device import TakesInputs
from memviz.runner.measure.accelerator import Accelerator, find_accelerator
from memviz.runner.record.log import Counts, comparable, event_indices
from memviz.runner.record.memory_history import RecordedHistory, is_recording
from memviz.runner.record.model_hooks import see_values
from memviz.runner.record.recording import Recording
from memviz.runner.request import Seconds
from memviz.trace.model import Category, DeviceTrace, Phase, Trace

_LARGEST_HIDDEN_REST = 1 << 20


@dataclass(frozen=True)
class Reconciled:
    reported: int
    from_trace: int
    reason: str
    """Why they differ; empty where they agree."""

    @property
    def difference(self) -> int:
        """Bytes that PyTorch reports beyond the trace."""
        return self.reported - self.from_trace

    @property
    def text(self) -> str:
        if not self.difference:
            return f"{self.reported} bytes, by PyTorch and by the trace"
        return f"{self.reported} bytes by PyTorch, {self.from_trace} by the trace. {self.reason}"


@dataclass(frozen=True)
class Peaks:
    allocated: Reconciled
    reserved: Reconciled


def reconcile(
    trace: Trace, device: DeviceTrace, allocated: int, reserved: int, *, since: int = 0, lost_events: bool
) -> Peaks:
    """Compare reported peaks with the trace's.

    Args:
        since: The event before which the peaks were reset.
        lost_events: Whether the ring buffer was full.
    """
    part = _since_event(device, since)
    replayed = Replayer(replace(trace, devices=(part,)), part).as_recorded()

    def compare(reported: int, from_trace: int) -> Reconciled:
        return Reconciled(reported, from_trace, _difference_reason(reported - from_trace, replayed, lost_events))

    return Peaks(compare(allocated, replayed.peak_allocated_bytes), compare(reserved, replayed.peak_reserved_bytes))


def _since_event(device: DeviceTrace, first: int) -> DeviceTrace:
    """The device as if its recording had begun there: what was live then is in its final state and its frees."""
    if first <= 0:
        return device
    rows, labels = slice(first, None), device.event_labels
    labels = None if labels is None else labels.select(rows)
    return replace(device, events=device.events.select(rows), event_labels=labels, holders=None, host=None)


def _difference_reason(difference: int, replayed: Replayed, lost_events: bool) -> str:
    if not difference:
        return ""
    if lost_events:
        return "The history was full, so the trace lacks its beginning, and perhaps the peak."
    if not replayed.exact:
        return "The trace does not replay exactly, so some block sizes are unknown."
    if difference < 0:
        return "The trace has a higher peak than reported: the peak statistics were reset during the run."
    if difference <= _LARGEST_HIDDEN_REST:
        return "Blocks allocated before recording started can be up to 1 MiB larger than their requests."
    return "Memory was allocated and freed outside the recorded part."


FILLED_SECONDS = 3.0
"""Time to fill with measured steps, where they are short."""
FEWEST_STEPS = 3
MOST_STEPS = 1000


def seconds_of(laps: Sequence[float]) -> Seconds:
    """Summarize the time of each measured step."""
    low, _, high = quantiles(laps, n=4, method="inclusive") if len(laps) > 1 else (laps[0],) * 3
    return Seconds(median(laps), high - low, len(laps), "GPU events", low, high)


def time_steps(
    step: Callable[[], object],
    api: Any,
    *,
    warmup: int = 1,
    left_seconds: float = math.inf,
    is_recording: Callable[[], bool] = is_recording,
    clock: Callable[[], float] = time.monotonic,
) -> Seconds:
    """Time whole steps, backward and optimizer included.

    Raises:
        UsageError: A history is on, or too little time is left for as many steps as a median needs.
    """
    if warmup < 1:
        raise UsageError("Timing needs at least one warm-up step: without it, seconds include loading and tuning.")
    if is_recording():
        raise UsageError("Timing needs the recording off, which takes a stack at every allocation.")
    until = clock() + left_seconds
    for _ in range(warmup):
        step()
    first = _lap_seconds(step, api, 1)[0]
    seconds = _lap_seconds(step, api, _step_count(first, until - clock()))
    if is_recording():
        raise UsageError("The program turned on recording itself, so its seconds are not measured.")
    return seconds_of(seconds)


def _lap_seconds(step: Callable[[], object], api: Any, count: int) -> list[float]:
    """Time steps by events in the GPU's own queue: nothing waits between two steps, as nothing would in training."""
    # The first event is behind earlier work, which does not count.
    events = [api.Event(enable_timing=True) for _ in range(count + 1)]
    events[0].record()
    for event in events[1:]:
        step()
        event.record()
    api.synchronize()
    return [float(before.elapsed_time(after)) / 1000 for before, after in pairwise(events)]


def _step_count(one_seconds: float, left_seconds: float) -> int:
    if FEWEST_STEPS * one_seconds > left_seconds:
        raise UsageError(
            f"A step takes {one_seconds:,.1f} s, and {max(0.0, left_seconds):,.0f} s of the time limit are left: "
            f"not enough for {FEWEST_STEPS} of them."
        )
    one = max(one_seconds, FILLED_SECONDS / MOST_STEPS)
    wanted = max(FEWEST_STEPS, math.ceil(FILLED_SECONDS / one))
    return wanted if math.isinf(left_seconds) else min(wanted, int(left_seconds / one))


_SWITCHED_OFF = (
    "The program turned off the recording (torch.cuda.memory._record_memory_history), so the trace is incomplete. "
    "The peaks are PyTorch's own."
)


class _Counter:
    """A counter of PyTorch's allocator, in bytes; after the end of a recording, as it was then."""

    def __init__(self, name: str, when: str) -> None:
        self._name, self._when = f"{name}_bytes", when

    def __get__(self, device: CudaDevice, owner: type[CudaDevice] | None = None) -> int:
        return int(device.counters().get(self._name, {}).get("all", {}).get(self._when, 0))


class CudaDevice:
    """The process's first GPU. Also XPU, where torch has a history for it."""

    index = 0

    def __init__(self, *, record: bool = True, accelerator: Accelerator | None = None) -> None:
        self.accelerator = accelerator or find_accelerator()
        self.history = RecordedHistory(self.accelerator, device=self.index)
        self.peaks: Peaks | None = None
        """Peaks that PyTorch reports, compared with the trace; set by `finish`."""
        self.notes: tuple[str, ...] = ()
        """Changes that the program made to the recording; set by `finish`."""
        self._records = record
        self._recording = Recording(self.history, self.index, {}, follow_phases=False)
        self._reset_at: Counts | None = None
        self._final: dict[str, Any] | None = None
        self._is_broken = False

    def __enter__(self) -> Self:
        try:
            self.accelerator.wake()
            self.accelerator.api.set_device(self.index)
            gc.collect()
            self.empty_cache()
            if self._records:
                self.history.start()
                self._recording.hooks.every_optimizer()
            self.reset_peak()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _at: TracebackType | None
    ) -> None:
        self._end()

    def _end(self) -> None:
        self._recording.end()
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
            self._recording.hooks.model(model)
        return model

    def inputs(self, workload: TakesInputs) -> dict[str, Any]:
        inputs = workload.inputs(self.torch_device)
        if self._records:
            see_values(self._recording.log, inputs, Category.INPUT, self.accelerator.kind)
        return inputs

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        if not self._records:
            yield
            return
        hooks, log = self._recording.hooks, self._recording.log
        hooks.refresh()
        with log.during(name):
            try:
                yield
                if log.phase == Phase.BACKWARD:
                    hooks.see_gradients()
            except Exception as error:
                # A backward and an optimizer fail outside of every module, whose hooks would report it.
                self.history.failed(error)
                raise

    def empty_cache(self) -> None:
        self.accelerator.api.memory.empty_cache()

    def reset_peak(self) -> None:
        self.accelerator.api.memory.reset_peak_memory_stats(self.index)
        self._reset_at = self.history.counts()

    allocated_bytes = _Counter("allocated", "current")
    reserved_bytes = _Counter("reserved", "current")
    peak_allocated_bytes = _Counter("allocated", "peak")
    peak_reserved_bytes = _Counter("reserved", "peak")
    peak_requested_bytes = _Counter("requested", "peak")
    """Peak of requested bytes, before rounding to blocks."""

    def counters(self) -> dict[str, Any]:
        """Return PyTorch's counters, nested; those of the end once the recording is finished."""
        if self._final is not None:
            return self._final
        counters: dict[str, Any] = self.accelerator.api.memory.memory_stats_as_nested_dict(self.index)
        return counters

    @property
    def retries(self) -> int:
        """How often the allocator had to give its cache back before it could serve a request."""
        return int(self.accelerator.api.memory.memory_stats_as_nested_dict(self.index).get("num_alloc_retries", 0))

    def seconds(self, step: Callable[[], object], *, warmup: int = 1, left_seconds: float = math.inf) -> Seconds:
        """Only with `record=False`."""

        def is_any_history_on() -> bool:
            # The program may have enabled one itself.
            return is_recording() or bool(self.accelerator.history_is_on and self.accelerator.history_is_on())

        api = self.accelerator.api
        return time_steps(step, api, warmup=warmup, left_seconds=left_seconds, is_recording=is_any_history_on)

    def finish(self) -> Trace:
        """End the recording. Where memory ran out, what was live then is live at the end of the trace."""
        if not self.history.is_on:
            raise UsageError("This device has no recording, or it has already been read.")
        if not self._is_broken:
            # Raises errors of running kernels; once it failed, it is not called again.
            self._is_broken = True
            self.accelerator.api.synchronize()
            self._is_broken = False
        if self.accelerator.history_is_on is not None and not self.accelerator.history_is_on():
            self.notes = (_SWITCHED_OFF,)
        self._recording.look()
        final = self.counters()
        taken, trace = self._recording.finish()
        self._final = final
        gpus = (device for device in trace.devices if (device.kind, device.device) == ("gpu", self.index))
        device = next(gpus, None)
        if device is None:
            raise UsageError(" ".join([f"Nothing was allocated on {self.name} while it was recorded.", *self.notes]))
        since = 0
        if taken.counts is not None and self._reset_at is not None and comparable([self._reset_at], taken.counts).stop:
            since = int(event_indices(device.events, taken.counts, [self._reset_at])[0])
        peak_bytes, lost = (self.peak_allocated_bytes, self.peak_reserved_bytes), bool(self.history.lost(taken))
        self.peaks = reconcile(trace, device, *peak_bytes, since=since, lost_events=lost)
        peaks = {"peak allocated": self.peaks.allocated.text, "peak reserved": self.peaks.reserved.text}
        about = replace(trace.about, facts={**trace.about.facts, **peaks})
        return replace(trace, devices=(device,), about=about)
