"""A real GPU with its history recorded: memory of the steps, seconds of the steps, and PyTorch's own peaks.

The peaks that PyTorch reports are compared with those of the trace, which the allocator model turns into blocks; a
difference is shown with its reason. Seconds come from GPU events with the recording off, since it takes a stack at
every allocation, and after whole warm-up steps, since a first backward loads kernels and takes workspaces.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from statistics import median, quantiles
from types import TracebackType
from typing import Any, Self

import torch
from torch import nn

from memviz.allocator.replay_result import Replayed
from memviz.allocator.replayer import Replayer
from memviz.errors import UsageError
from memviz.runner.measure.accelerator import Accelerator, find_accelerator
from memviz.runner.record.log import Counts, Log, comparable, event_indices
from memviz.runner.record.memory_history import RecordedHistory, StackKind, is_recording
from memviz.runner.record.model_hooks import ModelHooks, see_all
from memviz.runner.record.recording import read_taken
from memviz.runner.run_device import TakesInputs
from memviz.trace.model import Category, DeviceTrace, Events, Labels, Phase, Trace

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


@dataclass(frozen=True)
class Peaks:
    allocated: Reconciled
    reserved: Reconciled

    @property
    def agree(self) -> bool:
        return not (self.allocated.difference or self.reserved.difference)

    def facts(self) -> dict[str, str]:
        """For the trace itself, so that a file says how well it was checked."""
        return {"peak allocated": _reason_text(self.allocated), "peak reserved": _reason_text(self.reserved)}


@dataclass(frozen=True)
class Reported:
    allocated: int
    reserved: int


def reconcile(trace: Trace, device: DeviceTrace, reported: Reported, *, since: int = 0, lost_events: bool) -> Peaks:
    """`since` is the event before which the peaks were reset, `lost_events` whether the ring buffer was full."""
    part = since_event(device, since)
    replayed = Replayer(replace(trace, devices=(part,)), part).as_recorded()
    allocated, reserved = replayed.peak_allocated_bytes, replayed.peak_reserved_bytes
    return Peaks(
        Reconciled(
            reported.allocated, allocated, _difference_reason(reported.allocated - allocated, replayed, lost_events)
        ),
        Reconciled(
            reported.reserved, reserved, _difference_reason(reported.reserved - reserved, replayed, lost_events)
        ),
    )


def since_event(device: DeviceTrace, first: int) -> DeviceTrace:
    """The same device as if its recording had begun there: what was live then is in its final state and its frees."""
    if first <= 0:
        return device
    events = Events(**{name: column[first:] for name, column in device.events.columns()})
    labels = device.event_labels
    if labels is not None:
        labels = Labels(**{name: column[first:] for name, column in labels.columns()})
    return replace(device, events=events, event_labels=labels)


def _difference_reason(difference: int, replayed: Replayed, lost_events: bool) -> str:
    if not difference:
        return ""
    if lost_events:
        return "The history was full, so the trace lacks its beginning, and with it perhaps the peak."
    if not replayed.exact:
        return "The trace does not replay exactly, so the sizes of its blocks are not all known."
    if difference < 0:
        return "The trace holds more than was reported: the peak was reset while something else was going on."
    if difference <= _LARGEST_HIDDEN_REST:
        return "Blocks handed out before the recording began can be up to 1 MiB larger than their requests show."
    return "Memory was taken and given back outside the recorded part, before it began or after it ended."


def _reason_text(peak: Reconciled) -> str:
    if not peak.difference:
        return f"{peak.reported} bytes, by PyTorch and by the trace"
    return f"{peak.reported} bytes by PyTorch, {peak.from_trace} by the trace. {peak.reason}"


FILLED_SECONDS = 3.0
"""Time to fill with measured steps, where they are short."""
FEWEST_STEPS = 3
MOST_STEPS = 1000


@dataclass(frozen=True)
class Timing:
    seconds: tuple[float, ...]
    """Time of each measured step, in order."""
    clock: str

    @property
    def count(self) -> int:
        return len(self.seconds)

    @property
    def median(self) -> float:
        return median(self.seconds)

    @property
    def spread(self) -> float:
        """Between the quartiles; 0 for a single step."""
        low, high = self.quartiles
        return high - low

    @property
    def quartiles(self) -> tuple[float, float]:
        if len(self.seconds) < 2:
            return self.seconds[0], self.seconds[0]
        low, _, high = quantiles(self.seconds, n=4, method="inclusive")
        return low, high


class EventStopwatch:
    """Events in the GPU's own queue: nothing waits between two steps, as nothing would in training."""

    clock = "GPU events"

    def __init__(self, api: Any) -> None:
        self._api = api
        self._events: list[Any] = []

    def lap(self) -> None:
        event = self._api.Event(enable_timing=True)
        event.record()
        self._events.append(event)

    def laps(self) -> tuple[float, ...]:
        """Seconds between one `lap` and the next."""
        self._api.synchronize()
        pairs = zip(self._events, self._events[1:], strict=False)
        return tuple(float(before.elapsed_time(after)) / 1000 for before, after in pairs)


def time_steps(
    step: Callable[[], object],
    stopwatch: EventStopwatch,
    *,
    steps: int | None = None,
    warmup: int = 1,
    left_seconds: float = math.inf,
    is_recording: Callable[[], bool] = is_recording,
    clock: Callable[[], float] = time.monotonic,
) -> Timing:
    """`step` is all of a step, its backward and its optimizer included.

    Raises:
        UsageError: A history is on, by whomever, or too little time is left for as many steps as a median needs.
    """
    if warmup < 1:
        raise UsageError("Seconds without a warm-up are those of loading and tuning. Allow at least one step for it.")
    if steps is not None and steps < 1:
        raise UsageError("At least one step has to be measured.")
    if is_recording():
        raise UsageError("Seconds are measured with the recording off: it takes a stack at every allocation.")
    until = clock() + left_seconds
    for _ in range(warmup):
        step()
    if steps is None:
        first = _lap_seconds(step, stopwatch, 1)[0]
        steps = _step_count(first, until - clock())
    seconds = _lap_seconds(step, stopwatch, steps)
    if is_recording():
        raise UsageError("The program switched the recording on by itself, so its seconds are not those of the steps.")
    return Timing(seconds, stopwatch.clock)


def _lap_seconds(step: Callable[[], object], stopwatch: EventStopwatch, count: int) -> tuple[float, ...]:
    """From a lap of its own on: what came before was waited for, and that is nobody's second."""
    stopwatch.lap()
    for _ in range(count):
        step()
        stopwatch.lap()
    return stopwatch.laps()[-count:]


def _step_count(one_seconds: float, left_seconds: float) -> int:
    if FEWEST_STEPS * one_seconds > left_seconds:
        raise UsageError(
            f"A step takes {one_seconds:,.1f} s, and {max(0.0, left_seconds):,.0f} s are left of the time that a run "
            f"may take: not enough for {FEWEST_STEPS} of them."
        )
    one = max(one_seconds, FILLED_SECONDS / MOST_STEPS)
    wanted = max(FEWEST_STEPS, math.ceil(FILLED_SECONDS / one))
    return wanted if math.isinf(left_seconds) else min(wanted, int(left_seconds / one))


_SWITCHED_OFF = (
    "The program switched the recording off by itself (torch.cuda.memory._record_memory_history), so what came before "
    "or after that is missing in the trace. The peaks are PyTorch's own."
)


@dataclass(frozen=True)
class _Books:
    """Counters of PyTorch's allocator."""

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
        """Peak of requested bytes, before rounding to blocks."""
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
        return time_steps(
            step, stopwatch, steps=steps, warmup=warmup, left_seconds=left_seconds, is_recording=self._is_recording
        )

    def _is_recording(self) -> bool:
        """Return True if a history is on: ours, or one that the program enabled itself."""
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
            since = int(event_indices(device.events, taken.counts, [self._reset_at])[0])
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
