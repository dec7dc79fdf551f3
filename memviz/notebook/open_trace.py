"""`memviz.open`: a snapshot, as an object that programs and notebooks put their questions to."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from operator import index
from typing import Any, Protocol

from memviz.analysis.comparing.matching import Pair
from memviz.analysis.lifetimes import event_at_seconds
from memviz.analysis.which_device import chosen_device
from memviz.errors import UsageError
from memviz.headlines.headline import Headline
from memviz.notebook.comparison import Comparison, compared
from memviz.notebook.download import downloaded, file_name, is_address
from memviz.notebook.live import Live, live_result
from memviz.notebook.replayed import Replay, replay_result
from memviz.notebook.result import Result
from memviz.notebook.segment_map import SegmentMap, segment_map
from memviz.notebook.summary import Summary, summary_result
from memviz.trace.limits import Limits
from memviz.trace.load import load_trace, read_trace
from memviz.trace.model import DeviceTrace, Trace
from memviz.ui.html.markup import Html


@dataclass(frozen=True, eq=False, repr=False)
class OpenTrace(Result):
    """What `memviz.open` gives. Where a trace has several devices, `device` says which one every answer is about;
    without it that is the one that ran out of memory, else the one with the highest peak."""

    trace: Trace = field(repr=False)
    device: str | None = None

    @property
    def devices(self) -> tuple[str, ...]:
        """Their names: '0', '1', and 'host0' for pinned memory."""
        return tuple(device.name for device in self.trace.devices)

    def on(self, device: int | str) -> OpenTrace:
        """The same trace, looked at on one device."""
        return OpenTrace(self.trace, chosen_device(self.trace, str(device)).name)

    def summary(self, *, device: int | str | None = None) -> Summary:
        """Live and reserved bytes at the start, the peak and the end; of all devices unless one is named."""
        return summary_result(self.trace, self.device if device is None else str(device))

    def peak(self, by: str = "site", *, top: int | None = None, device: int | str | None = None) -> Live:
        """The highest moment of live bytes, in groups: `by` is as in `Live.by`; `top` keeps the largest.

        A prediction's `peak` is of reserved bytes instead.
        """
        return live_result(self.trace, self._device(device), None, by, top)

    def by(self, by: str, *, top: int | None = None, device: int | str | None = None) -> Live:
        """The peak by "site", "stack", "module", "category" or another of `Live.by`."""
        return self.peak(by, top=top, device=device)

    def live_at(
        self,
        *,
        event: int | None = None,
        time: float | None = None,
        by: str = "site",
        top: int | None = None,
        device: int | str | None = None,
    ) -> Live:
        """What is live after an event (-1 is before the first), or at a time in seconds: since the first event, or
        since 1970."""
        chosen = self._device(device)
        return live_result(self.trace, chosen, _moment(chosen, event, time), by, top)

    def segments_at(
        self, *, event: int | None = None, time: float | None = None, device: int | str | None = None
    ) -> SegmentMap:
        """The allocator's segments after an event or at a time, and how each is used."""
        chosen = self._device(device)
        return segment_map(self.trace, chosen, _moment(chosen, event, time))

    def compare(self, *others: Any, by: str = "site", device: int | str | None = None) -> Comparison:
        """From this trace's peak to those of the others, which may be open traces, files or addresses."""
        if not others:
            raise UsageError("compare takes one other trace or more.")
        opened = [self, *map(_opened, others)]
        return compared([one._side(device) for one in opened], by)

    def replay(
        self,
        *,
        settings: str | None = None,
        memory: int | str | None = None,
        overhead: int | str | None = None,
        search: bool = False,
        device: int | str | None = None,
    ) -> Replay:
        """The recorded requests, put to PyTorch's allocator under other settings or on another card.

        Args:
            settings: As in PYTORCH_CUDA_ALLOC_CONF; without it the recorded ones.
            memory: Of the whole card, as bytes or as in "24GiB"; without it memory without end.
            overhead: Of the card, for the CUDA context and libraries; 512 MiB unless you say, an assumption.
            search: Whether to try the settings that matter as well.
            device: Which of several.
        """
        chosen = self._device(device)
        return replay_result(self.trace, chosen, settings=settings, memory=memory, overhead=overhead, search=search)

    @property
    def headline(self) -> Headline:
        said = self.summary().headline
        return Headline(f"{self.trace.about.source or 'A trace'}: {said.answer}", said.reason)

    def as_json(self) -> dict[str, Any]:
        return self.summary().as_json()

    def columns(self) -> Any:
        return self.summary().columns()

    def _html(self) -> Html:
        return self.summary()._html()

    def _device(self, named: int | str | None) -> DeviceTrace:
        return chosen_device(self.trace, self.device if named is None else str(named))

    def _side(self, named: int | str | None) -> Pair:
        return self.trace, self._device(named)


class HasTrace(Protocol):
    @property
    def trace(self) -> Trace | None: ...


def open(source: str | os.PathLike[str] | Trace | HasTrace, *, device: int | str | None = None) -> OpenTrace:
    """Opens a snapshot of any PyTorch release, as data: nothing in it is run.

        training = memviz.open("sample_traces/training.pickle.gz")
        print(training.peak())

    Args:
        source: A file, an address (http or https), or what has a trace already: a recording, a prediction, a replay.
        device: Which one to look at where there are several: a number, or "host0" for pinned memory.

    Raises:
        TraceError: It is no snapshot, is damaged, cannot be had, or goes beyond the limits.
        UsageError: There is no such device, or the address is of another kind.
    """
    opened = OpenTrace(_trace(source))
    return opened if device is None else opened.on(device)


def _trace(source: str | os.PathLike[str] | Trace | HasTrace) -> Trace:
    if isinstance(source, Trace):
        return source
    if not isinstance(source, str | os.PathLike):
        return _trace_within(source)
    if isinstance(source, str) and is_address(source):
        limits = Limits.from_environment()
        with downloaded(source, limits) as (file, size):
            return read_trace(file, file_name(source), size, limits=limits)
    return load_trace(source)


def _trace_within(source: Any) -> Trace:
    """Of a recording, a prediction or a replay."""
    made = getattr(source, "trace", None)
    if isinstance(made, Trace):
        return made
    kind = type(source).__name__
    if hasattr(source, "trace"):
        raise UsageError(f"There is no trace in this {kind}: it may not be over yet.")
    raise UsageError(f"A trace is opened by the name of its file or by its address, not from this {kind}.")


def _opened(other: Any) -> OpenTrace:
    return other if isinstance(other, OpenTrace) else open(other)


def _moment(device: DeviceTrace, event: int | None, time: float | None) -> int:
    if (event is None) == (time is None):
        raise UsageError("Name the moment by its event or by its time: event=1000, or time=0.5.")
    if time is not None:
        return event_at_seconds(device, _seconds(time))
    return _whole(event)


def _whole(event: Any) -> int:
    """A float too where it is whole: a pandas frame makes such of its numbers where one is missing."""
    try:
        return int(event) if isinstance(event, float) and event.is_integer() else index(event)
    except TypeError:
        raise UsageError(f"event is a whole number, such as 1000, and not {event!r}.") from None


def _seconds(time: Any) -> float:
    try:
        # As text it would be read too, where an event given as text is not.
        return float(time + 0)
    except (TypeError, ValueError):
        raise UsageError(f"time is a number of seconds, such as 0.5, and not {time!r}.") from None
