"""A visitor's file becomes an open trace while it still arrives; messages go to the page that listens.

The browser is sent, in this order: `reading` (how much, and the total as far as it is known), `curve` (the whole
total), `piece` (every allocation, then the colours) and `opened`; or `refused` at any time. A message is its
header's length (4 bytes, little-endian), the header as JSON, and as many bytes as it names as `bytes`.
"""

from __future__ import annotations

import asyncio
import json
import pickle
import secrets
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

import numpy as np

from memviz.allocator.search import start_helpers
from memviz.analysis.lifetimes import has_times
from memviz.analysis.timeline import RunningTotal, timeline
from memviz.errors import TraceError
from memviz.fair_lock import Turn
from memviz.figures.raster import View, column_instants
from memviz.memory import large_blocks_kept
from memviz.ranks.places import places_of
from memviz.ranks.table import FIRST_BYTES, ranks_of_table
from memviz.trace.limits import Unwanted
from memviz.trace.load import ZIP, read_trace
from memviz.trace.model import DeviceTrace, Trace
from memviz.ui.payloads.timelines import piece
from memviz.ui.shell.session import MOST_OPEN, Context, Opened, open_trace, timeline_key
from memviz.ui.upload.arriving import Arriving
from memviz.units import bytes_text

_ALIVE_SECONDS = 15
"""Silence that a proxy may take for the end."""


class Outbox:
    def __init__(self) -> None:
        self.newest_fetched = ""
        """The kind of the message that was handed out last."""
        self._lock = threading.Lock()
        self._waiting: list[tuple[str, bytes]] = []
        self._closed = False
        self._wake: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None

    def put(self, kind: str, body: bytes = b"", **header: Any) -> None:
        """Queue a message; without a body it replaces an unfetched one of the same kind."""
        head = json.dumps({"kind": kind, "bytes": len(body), **header}).encode()
        message = len(head).to_bytes(4, "little") + head + body
        with self._lock:
            if self._closed:
                return
            if not body and self._waiting and self._waiting[-1][0] == kind:
                self._waiting.pop()
            self._waiting.append((kind, message))
        self._tell()

    def close(self) -> None:
        with self._lock:
            self._closed = True
        self._tell()

    def _tell(self) -> None:
        wake = self._wake
        if wake is not None and not wake[0].is_closed():
            wake[0].call_soon_threadsafe(wake[1].set)

    async def messages(self) -> AsyncIterator[bytes]:
        """Yield messages until the outbox is closed and empty. One listener only."""
        changed = asyncio.Event()
        self._wake = asyncio.get_running_loop(), changed
        while True:
            changed.clear()
            with self._lock:
                waiting, closed, self._waiting = self._waiting, self._closed, []
            for kind, message in waiting:
                self.newest_fetched = kind
                yield message
            if not waiting and closed:
                return
            if not waiting:
                try:
                    await asyncio.wait_for(changed.wait(), _ALIVE_SECONDS)
                except TimeoutError:
                    self.put("alive")


_COLUMNS = 1200
_PIECE = 4 << 20
_SAY_SECONDS = 0.2
_FORGET_SECONDS = 120
_UNFETCHED_SECONDS = 600
"""For what a browser has not fetched although it listens."""
_LEAST_PACE = 1024
"""Bytes a second. What comes slower has no claim on a place that another visitor needs."""
_SETTLING_SECONDS = 5
_MOST = 256
_MOST_OF_ONE = 16
OPENED = "opened"
"""The last message of a file that is open now."""


class Busy(Exception):
    """Too many files are on their way."""


class FileTooLarge(Exception):
    """The message states the limit."""


_HELPER = """
from memviz.figures.packed_timeline import thumbnail_address
from memviz.ranks.reduce_rank import answer_reads

answer_reads(thumbnail_address)
"""
_ENDED = "The process that read it was killed, as the system does when memory runs out."
_IDLE_SECONDS = 30


class Helpers:
    """Processes that read what is one of many, as many as take a turn at once.

    Threads would share one interpreter with the page. An idle process ends after a while.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[subprocess.Popen[bytes]] = []
        self._used = 0.0

    def take(self) -> subprocess.Popen[bytes]:
        """Return an idle process or a new one."""
        with self._lock:
            if self._idle:
                return self._idle.pop()
        for helper in start_helpers(1, _HELPER):
            return helper
        raise TraceError("This machine cannot start a process to read it.", remedy="Open it by itself.")

    def put_back(self, helper: subprocess.Popen[bytes]) -> None:
        with self._lock:
            self._idle.append(helper)
            self._used = time.monotonic()

    def end_idle(self, seconds: float = _IDLE_SECONDS) -> None:
        with self._lock:
            if time.monotonic() - self._used < seconds:
                return
            idle, self._idle = self._idle, []
        for helper in idle:
            end_helper(helper)


def end_helper(helper: subprocess.Popen[bytes]) -> None:
    helper.kill()
    for stream in (helper.stdin, helper.stdout):
        with suppress(OSError):
            cast(IO[bytes], stream).close()
    helper.wait()


class Reading:
    def __init__(
        self, context: Context, name: str, arriving: Arriving, turn: Turn, helpers: Helpers, *, is_beside: bool = False
    ) -> None:
        """`helpers` read the members of an archive, and what came beside the first of many files."""
        self.name = name
        self._is_beside = is_beside
        self._helpers = helpers
        self._helper: subprocess.Popen[bytes] | None = None
        self.arriving = arriving
        self.visitor = turn.owner
        self.outbox = Outbox()
        self.next_part = 0
        self.is_receiving = False
        """A part is on its way; parts come one after the other."""
        self.has_listener = False
        """Its visitor listens."""
        self._used = time.monotonic()
        self._store = context.store
        self._tables = context.tables
        self._turn = turn
        self._total = RunningTotal()
        self._said = 0.0
        self._stored: list[str] = []
        self._table = ""
        self._cancelled = threading.Event()
        self._ended = 0.0
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Not before something comes: who only takes tickets takes no threads."""
        if self._thread is None and not self.arriving.closed:
            # A daemon, so that the page can exit without waiting for it.
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()

    def use(self) -> None:
        self._used = time.monotonic()

    def is_forgotten(self, now: float) -> bool:
        """Return True if nothing polls the upload, nothing fetches its result, or it arrives too slowly."""
        is_unfetched = bool(self._ended) and now - self._ended > _UNFETCHED_SECONDS
        is_left = not self.has_listener and now - max(self._used, self.arriving.touched) > _FORGET_SECONDS
        return is_unfetched or is_left or self.is_too_slow(now, _FORGET_SECONDS)

    def is_evictable(self, now: float) -> bool:
        """Return True if its place may be reassigned: its result is not fetched, or it is too slow."""
        is_left = self._ended and not self.has_listener and now - self._ended > _SETTLING_SECONDS
        return bool(is_left) or self.is_too_slow(now)

    def is_too_slow(self, now: float, seconds: float = _SETTLING_SECONDS) -> bool:
        return not self.arriving.ended and now - self.arriving.begun > seconds and self.pace(now) < _LEAST_PACE

    def pace(self, now: float) -> float:
        return self.arriving.arrived / max(now - self.arriving.begun, 1e-3)

    def cancel(self) -> None:
        """Cancel the upload, and drop the trace or table that it has stored."""
        self._cancelled.set()
        if (helper := self._helper) is not None:
            helper.kill()
        self.arriving.end("It was cancelled.")
        self.outbox.close()
        if self._thread is None:
            self.arriving.close()
        for key in self._stored:
            self._store.drop(key)
        self._tables.drop(self._table)

    def _run(self) -> None:
        try:
            with self._turn, large_blocks_kept():
                self._read()
        except Unwanted:
            pass
        except TraceError as error:
            self.outbox.put("refused", name=self.name, reason=f"{error.reason} {error.remedy}".strip())
        except BaseException:
            self.outbox.put("refused", name=self.name, reason="Reading it failed because of a bug in memviz.")
            raise
        finally:
            self._ended = time.monotonic()
            self.arriving.close()
            self.outbox.close()

    def _read(self) -> None:
        self._check_cancelled()
        source = cast(BinaryIO, self.arriving)
        first_bytes = source.read(len(FIRST_BYTES))
        if first_bytes == FIRST_BYTES:
            self._read_table(source)
            return
        if first_bytes == ZIP and self._read_archive(source):
            return
        if self._is_beside:
            self._read_beside(source)
            return
        source.seek(0)
        trace = read_trace(
            source,
            self.name,
            self.arriving.size,
            progress=self._report_progress,
            watch=self._total.watch,
            is_wanted=lambda: not self._cancelled.is_set(),
        )
        opened = self._open(trace)
        key = timeline_key(opened)
        device = next(device for device in trace.devices if device.name == opened.device)
        self.outbox.put("curve", key=key, **_curve(device))
        for question in ({"piece": "timeline"}, {"piece": "groups", "meaning": "category"}):
            packed = piece(trace, device, question)
            self.outbox.put("piece", packed.body, key=key, piece=question["piece"], header=packed.header)
            self._check_cancelled()
        self.outbox.put(OPENED, key=key, stored=opened.key, name=self.name, has_times=has_times(device))

    def _open(self, trace: Trace) -> Opened:
        self._check_cancelled()
        opened = open_trace(self._store, trace)
        self._stored.append(opened.key)
        # `cancel` may have run between the two, when it was not stored yet.
        if self._cancelled.is_set():
            self._store.drop(opened.key)
        self._check_cancelled()
        return opened

    def _read_beside(self, source: BinaryIO) -> None:
        """Read one of many files in a helper. The browser asks for its timeline once it is looked at."""
        with tempfile.NamedTemporaryFile() as file:
            self._copy(source, file)
            opened = self._open(self._helped(file.name, self.name))
        self.outbox.put(OPENED, key=timeline_key(opened), stored=opened.key, name=self.name, has_times=False)

    def _read_archive(self, source: BinaryIO) -> bool:
        """Open all snapshots of a zip archive, as of many ranks; return False where it holds a single one."""
        with tempfile.NamedTemporaryFile(suffix=".zip") as file:
            self._copy(source, file)
            try:
                places = places_of((file.name,))
            except TraceError as error:
                raise TraceError(error.reason, remedy=error.remedy, source=self.name) from None
            if len(places) == 1:
                return False
            if len(places) > MOST_OPEN:
                reason = f"It holds {len(places):,} snapshots; at most {MOST_OPEN} can be open here."
                raise TraceError(reason, remedy="Read them with `memviz ranks`.")
            try:
                for place in places:
                    # Its folder may be all that tells one rank from another.
                    member = place.address.partition("!/")[2]
                    try:
                        self._open(self._helped(place.address, member))
                    except TraceError as error:
                        raise TraceError(f"{member}: {error.reason}", remedy=error.remedy) from None
            except BaseException:
                for key in self._stored:
                    self._store.drop(key)
                raise
        self.outbox.put(OPENED, key="", stored=" ".join(self._stored), name=self.name, has_times=False)
        return True

    def _helped(self, address: str, name: str) -> Trace:
        """Have a helper read a file, or a member of an archive, with `answer_reads`.

        `cancel` ends the helper, and so does a file that takes its memory.
        """
        self._helper = helper = self._helpers.take()
        asks, answers = cast(IO[bytes], helper.stdin), cast(IO[bytes], helper.stdout)
        try:
            self._check_cancelled()
            pickle.dump((address, name), asks)
            asks.flush()
            answer: TraceError | Trace = pickle.load(answers)
        except (OSError, EOFError, pickle.UnpicklingError, Unwanted):
            end_helper(helper)
            self._check_cancelled()
            raise TraceError(_ENDED) from None
        finally:
            self._helper = None
        self._helpers.put_back(helper)
        if isinstance(answer, TraceError):
            raise answer
        return answer

    def _copy(self, source: BinaryIO, file: Any) -> None:
        source.seek(0)
        while piece := source.read(_PIECE):
            file.write(piece)
            self._report_progress(file.tell(), self.arriving.size)
            self._check_cancelled()
        file.flush()

    def _read_table(self, source: BinaryIO) -> None:
        """Read a table of ranks once it is complete, because Parquet is read from the end of the file."""
        with tempfile.NamedTemporaryFile(suffix=".parquet") as file:
            self._copy(source, file)
            job = ranks_of_table(Path(file.name), self.name)
        self._table = key = self._tables.add(self.name, job)
        if self._cancelled.is_set():
            self._tables.drop(key)
        self._check_cancelled()
        self.outbox.put(OPENED, key="", stored=key, name=self.name, has_times=False)

    def _check_cancelled(self) -> None:
        if self._cancelled.is_set():
            raise Unwanted("It was cancelled.")

    def _report_progress(self, done: int, _total: int) -> None:
        now = time.monotonic()
        if now - self._said < _SAY_SECONDS:
            return
        self._said = now
        self.use()
        share = done / max(self.arriving.size, 1)
        self.outbox.put("reading", share=share, live=self._total.largest(_COLUMNS).tolist(), events=self._total.events)


class Readings:
    """The uploads of all visitors. Each is reached by a ticket that only the browser that began it knows."""

    def __init__(self, context: Context, most_bytes: int | None = None) -> None:
        self.most_bytes = most_bytes
        self._context = context
        self._lines = context.reading
        self._helpers = Helpers()
        self._lock = threading.Lock()
        self._under_way: dict[str, Reading] = {}

    def begin(self, name: str, size: int, *, packed: bool, visitor: str = "", is_beside: bool = False) -> str:
        if self.most_bytes is not None and size > self.most_bytes:
            raise FileTooLarge(
                f"It has {bytes_text(size)}; the limit here is {bytes_text(self.most_bytes)}. On your own machine "
                "(python app.py) there is no limit."
            )
        ticket = secrets.token_urlsafe(18)
        self.forget()
        with self._lock:
            out = self._make_room(visitor)
            turn = self._lines.of(visitor)
            arriving = Arriving(size, packed=packed, gate=turn)
            reading = Reading(self._context, name, arriving, turn, self._helpers, is_beside=is_beside)
            self._under_way[ticket] = reading
        for reading in out:
            reading.cancel()
        return ticket

    def get(self, ticket: str) -> Reading | None:
        with self._lock:
            return self._under_way.get(ticket)

    def drop(self, ticket: str, *, is_delivered: bool = False) -> None:
        """Remove an upload, and cancel it unless its last message `is_delivered`."""
        with self._lock:
            reading = self._under_way.pop(ticket, None)
        if reading is not None and not is_delivered:
            reading.cancel()

    def forget(self) -> None:
        """Drop uploads that were not polled for a while."""
        now = time.monotonic()
        with self._lock:
            old = [ticket for ticket, reading in self._under_way.items() if reading.is_forgotten(now)]
        for ticket in old:
            self.drop(ticket)
        self._helpers.end_idle()

    def _make_room(self, visitor: str) -> list[Reading]:
        """Evict the slowest upload of the visitor with the most; Busy if none is evictable."""
        own = [ticket for ticket, reading in self._under_way.items() if reading.visitor == visitor]
        if len(own) < _MOST_OF_ONE and len(self._under_way) < _MOST:
            return []
        tickets = own if len(own) >= _MOST_OF_ONE else list(self._under_way)
        now, having = time.monotonic(), Counter(reading.visitor for reading in self._under_way.values())
        idle = [ticket for ticket in tickets if self._under_way[ticket].is_evictable(now)]
        if not idle:
            raise Busy

        def claim(ticket: str) -> tuple[int, float]:
            reading = self._under_way[ticket]
            return -having[reading.visitor], 0 if reading.arriving.ended else reading.pace(now)

        return [self._under_way.pop(min(idle, key=claim))]


def _curve(device: DeviceTrace) -> dict[str, Any]:
    """The total, exactly, in as many columns as a screen has: of each its largest, so that no peak is lost."""
    line = timeline(device)
    instants = column_instants(line.live, View(0, len(line.live), min(_COLUMNS, len(line.live)), 1, 1))
    return {
        "live": line.live[instants].tolist(),
        "reserved": line.reserved[instants].tolist(),
        "events": len(line.live) - 1,
        "peak_bytes": line.peak_bytes,
        "reserved_bytes": int(np.max(line.reserved)),
    }
