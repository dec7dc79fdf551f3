"""`memviz.open`: a snapshot from a path or, within limits, from the web, as an object that answers questions."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPException
from operator import index
from tempfile import TemporaryFile
from typing import IO, Any, BinaryIO
from urllib.error import HTTPError, URLError
from urllib.parse import unquote, urlsplit
from urllib.request import (
    HTTPDefaultErrorHandler,
    HTTPErrorProcessor,
    HTTPHandler,
    HTTPRedirectHandler,
    HTTPSHandler,
    OpenerDirector,
    ProxyHandler,
    Request,
    UnknownHandler,
)

from memviz.allocator.context import OVERHEAD_BYTES
from memviz.allocator.replayer import CardMemory
from memviz.allocator.settings import parse_settings
from memviz.analysis.annotations import event_of_mark
from memviz.analysis.devices import choose_device
from memviz.analysis.lifetimes import event_at_epoch_or_offset
from memviz.errors import TraceError, UsageError
from memviz.results.comparison import Comparison, comparison_result
from memviz.results.headline import Headline
from memviz.results.live import Live, live_result
from memviz.results.replay import Replay, ReplayQuestion, replay_result
from memviz.results.result import Result, Table
from memviz.results.segments import SegmentMapResult, segments_result
from memviz.results.summary import Summary, summary_result
from memviz.text import Html
from memviz.trace.limits import Limits
from memviz.trace.load import load_trace, read_trace
from memviz.trace.model import DeviceTrace, HasTrace, Trace
from memviz.units import parse_bytes

_ADDRESS = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*://")
_PROTOCOLS = ("http", "https")
_HANDLERS = (
    ProxyHandler,
    HTTPHandler,
    HTTPSHandler,
    HTTPRedirectHandler,
    HTTPDefaultErrorHandler,
    HTTPErrorProcessor,
    UnknownHandler,
)
_SILENCE_SECONDS = 30.0
_PIECE = 1 << 20


def is_address(text: str) -> bool:
    return bool(_ADDRESS.match(text))


def file_name(address: str) -> str:
    """Return the last part of the path, without host and user name."""
    return unquote(urlsplit(address).path).replace("\\", "/").rstrip("/").rpartition("/")[2] or "download"


@contextmanager
def download(address: str, limits: Limits) -> Iterator[tuple[BinaryIO, int]]:
    """The file's content, on disk for as long as it is needed, and its size.

    Raises:
        UsageError: The address is not one of http or https.
        TraceError: There is no such file, or it is beyond the limits.
    """
    _check(address)
    name = file_name(address)
    with TemporaryFile() as file:
        try:
            size = _fetch_file(address, file, limits)
        except TraceError as error:
            raise error.named(name) from None
        except HTTPError as error:
            error.close()
            reason = f"The server answered {error.code}."
            raise TraceError(reason, remedy="Check the address.", source=name) from None
        except (URLError, OSError, HTTPException, ValueError) as error:
            why = error.reason if isinstance(error, URLError) else error
            raise TraceError(f"The download failed ({why}).", source=name) from None
        file.seek(0)
        yield file, size


def _check(address: str) -> None:
    try:
        parts = urlsplit(address)
    except ValueError as error:
        raise UsageError(f"Not a valid address: {error}.") from None
    if parts.scheme.lower() not in _PROTOCOLS or not parts.hostname:
        raise UsageError("Only addresses that begin with http:// or https:// are opened; download the file first.")


def _fetch_file(address: str, file: IO[bytes], limits: Limits) -> int:
    until, size = time.monotonic() + limits.seconds, 0
    # It follows redirects and knows no protocol but http and https.
    opener = OpenerDirector()
    for handler in _HANDLERS:
        opener.add_handler(handler())
    request = Request(address, headers={"User-Agent": "memviz", "Accept-Encoding": "identity"})
    with opener.open(request, timeout=min(_SILENCE_SECONDS, limits.seconds)) as answer:
        # One read is one arrival, so that a server which sends a byte now and then is noticed.
        while piece := answer.read1(_PIECE):
            size += len(piece)
            if size > limits.file_bytes:
                reason = f"The file exceeds the limit of {limits.file_bytes:,} bytes."
                raise TraceError(reason, remedy="If you trust the file, raise MEMVIZ_MAX_FILE_BYTES.")
            if time.monotonic() > until:
                raise TraceError(
                    f"The download timed out after {limits.seconds:g} s.",
                    remedy="Download it first, and open the file.",
                )
            file.write(piece)
        promised = answer.headers.get("Content-Length", "")
    if promised.isdigit() and int(promised) != size:
        raise TraceError(f"The download ended after {size:,} of {int(promised):,} bytes.", remedy="Try again.")
    return size


@dataclass(frozen=True, eq=False, repr=False)
class OpenTrace(Result):
    """The result of `memviz.open`. If a trace has several devices, `device` names the one that every answer is about;
    by default it is the one that ran out of memory, else the one with the highest peak."""

    trace: Trace = field(repr=False)
    device: str | None = None

    @property
    def devices(self) -> tuple[str, ...]:
        """Their names: '0', '1', and 'host0' for pinned memory."""
        return tuple(device.name for device in self.trace.devices)

    def on(self, device: int | str) -> OpenTrace:
        """The same trace, looked at on one device."""
        return OpenTrace(self.trace, choose_device(self.trace, str(device)).name)

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
        mark: str | None = None,
        by: str = "site",
        top: int | None = None,
        device: int | str | None = None,
    ) -> Live:
        """Return the live allocations after an event (-1 is before the first), or at a time in seconds: since the first
        event, or since 1970, or where the last annotation with a name ends, such as that of `memviz.mark`."""
        chosen = self._device(device)
        if mark is not None and event is None and time is None:
            event = event_of_mark(self.trace, chosen, mark)
        return live_result(self.trace, chosen, _event_of(chosen, event, time), by, top)

    def segments_at(
        self, *, event: int | None = None, time: float | None = None, device: int | str | None = None
    ) -> SegmentMapResult:
        """The allocator's segments after an event or at a time, and how each is used."""
        chosen = self._device(device)
        return segments_result(self.trace, chosen, _event_of(chosen, event, time))

    def compare(self, *others: Any, by: str = "site", device: int | str | None = None) -> Comparison:
        """From this trace's peak to those of the others, which may be open traces, files or addresses."""
        if not others:
            raise UsageError("compare takes at least one other trace.")
        opened = [self, *(other if isinstance(other, OpenTrace) else open(other) for other in others)]
        return comparison_result([(one.trace, one._device(device)) for one in opened], by)

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
        if not isinstance(settings, str | None):
            raise UsageError(f'settings must be a string, such as "expandable_segments:True", not {settings!r}.')
        overhead_bytes = OVERHEAD_BYTES if overhead is None else _parse_size("overhead", overhead)
        question = ReplayQuestion(
            settings=None if settings is None else parse_settings(settings),
            card=None if memory is None else CardMemory(_parse_size("memory", memory), overhead_bytes),
            search=search,
            overhead=overhead_bytes,
        )
        return replay_result(self.trace, self._device(device), question)

    @property
    def headline(self) -> Headline:
        summary = self.summary().headline
        return Headline(f"{self.trace.about.source or 'A trace'}: {summary.answer}", summary.reason)

    def as_json(self) -> dict[str, Any]:
        return self.summary().as_json()

    def columns(self) -> Any:
        return self.summary().columns()

    def table(self, most: int | None = None) -> Table:
        return self.summary().table(most)

    def _above_table(self) -> Html:
        return self.summary()._above_table()

    def _device(self, device: int | str | None) -> DeviceTrace:
        return choose_device(self.trace, self.device if device is None else str(device))


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
    opened = OpenTrace(_trace_of(source))
    return opened if device is None else opened.on(device)


def _trace_of(source: str | os.PathLike[str] | Trace | HasTrace) -> Trace:
    if isinstance(source, Trace):
        return source
    if isinstance(source, str) and is_address(source):
        limits = Limits.from_environment()
        with download(source, limits) as (file, size):
            return read_trace(file, file_name(source), size, limits=limits)
    if isinstance(source, str | os.PathLike):
        return load_trace(source)
    # A recording, a prediction or a replay.
    trace = getattr(source, "trace", None)
    if isinstance(trace, Trace):
        return trace
    kind = type(source).__name__
    if hasattr(source, "trace"):
        raise UsageError(f"This {kind} has no trace yet; it may still be running.")
    raise UsageError(f"Open a trace by file name or address, not from this {kind}.")


def _event_of(device: DeviceTrace, event: Any, time: Any) -> int:
    if (event is None) == (time is None):
        raise UsageError("Give the moment as an event or a time: event=1000, or time=0.5.")
    if time is not None:
        try:
            # As text it would be read too, where an event given as text is not.
            seconds = float(time + 0)
        except (TypeError, ValueError):
            raise UsageError(f"time must be a number of seconds, such as 0.5, not {time!r}.") from None
        return event_at_epoch_or_offset(device, seconds)
    try:
        # A float too where it is whole: a pandas frame makes such of its numbers where one is missing.
        return int(event) if isinstance(event, float) and event.is_integer() else index(event)
    except TypeError:
        raise UsageError(f"event must be an integer, such as 1000, not {event!r}.") from None


def _parse_size(name: str, value: int | str) -> int:
    try:
        size = parse_bytes(value) if isinstance(value, str) else int(value)
    except ValueError as error:
        raise UsageError(f"{name}: {error}") from None
    except (TypeError, OverflowError):
        raise UsageError(f'{name} must be a size, in bytes or as in "24GiB", not {value!r}.') from None
    if size < 0:
        raise UsageError(f"{name}: {value} is negative.")
    return size
