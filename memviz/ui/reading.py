"""A visitor's file becomes an open trace while it is still on its way, and is drawn before it is understood.

What the visitor's browser is told, in this order: `reading` (how much, and the total as far as it is known), `curve`
(the whole total), `piece` (every allocation, then the colours) and `opened`; or `refused` at any time. The browser
draws each as it comes.
"""

from __future__ import annotations

import secrets
import threading
import time
from contextlib import suppress
from typing import Any, BinaryIO, cast

import numpy as np

from memviz.analysis.live import has_times
from memviz.analysis.running_total import RunningTotal
from memviz.analysis.timeline import timeline
from memviz.errors import TraceError
from memviz.figures.raster import View, column_instants
from memviz.trace.load import read_trace
from memviz.trace.model import DeviceTrace, Trace
from memviz.ui.arriving import Arriving
from memviz.ui.components.memory_timeline import piece
from memviz.ui.context import timeline_key
from memviz.ui.opening import opened
from memviz.ui.outbox import Outbox
from memviz.ui.store import TraceStore
from memviz.units import bytes_text

_COLUMNS = 1200
_SAY_SECONDS = 0.2
_FORGET_SECONDS = 120
_AT_ONCE = 2
"""More, of all visitors together, would only make each of them wait longer."""
_MOST = 48


class Busy(Exception):
    """Too many files are on their way."""


class TooLarge(Exception):
    """With the sentence that says so."""


class Reading:
    def __init__(self, store: TraceStore, name: str, arriving: Arriving, gate: threading.Semaphore) -> None:
        self.name = name
        self.arriving = arriving
        self.outbox = Outbox()
        self._used = time.monotonic()
        self.next_part = 0
        self._store = store
        self._gate = gate
        self._total = RunningTotal()
        self._said = 0.0
        self._stored = ""
        self._cancelled = threading.Event()
        # A daemon: whoever ends the page does not wait for it.
        threading.Thread(target=self._run, daemon=True).start()

    def use(self) -> None:
        self._used = time.monotonic()

    @property
    def used(self) -> float:
        """When somebody last had to do with it."""
        return max(self._used, self.arriving.touched)

    def cancel(self) -> None:
        """Nobody waits for it any more."""
        self._cancelled.set()
        self.arriving.end("It was cancelled.")
        self.outbox.close()
        if self._stored:
            self._store.drop(self._stored)

    def _run(self) -> None:
        try:
            with self._gate:
                self._read()
        except TraceError as error:
            self._refuse(f"{error.reason} {error.remedy}".strip())
        except BaseException:
            self._refuse("Reading it failed, and the fault is ours.")
            raise
        finally:
            self.arriving.close()
            self.outbox.close()

    def _refuse(self, reason: str) -> None:
        self.outbox.put("refused", name=self.name, reason=reason)

    def _read(self) -> None:
        source = cast(BinaryIO, self.arriving)
        trace = read_trace(source, self.name, self.arriving.size, progress=self._say, watch=self._total.watch)
        if self._cancelled.is_set():
            return
        found = opened(self._store, trace)
        self._stored = found.key
        # `cancel` may have come between the two, and found nothing to take away.
        if self._cancelled.is_set():
            self._store.drop(found.key)
            return
        key = timeline_key(found)
        device = next(each for each in trace.devices if each.name == found.device)
        self.outbox.put("curve", key=key, **_curve(device))
        for asked in ({"piece": "timeline"}, {"piece": "groups", "meaning": "category"}):
            self._send(trace, device, key, asked)
        self.outbox.put("opened", key=key, stored=found.key, name=self.name, has_times=has_times(device))

    def _send(self, trace: Trace, device: DeviceTrace, key: str, asked: dict[str, Any]) -> None:
        packed = piece(trace, device, asked)
        self.outbox.put("piece", packed.body, key=key, piece=asked["piece"], header=packed.header)

    def _say(self, done: int, _total: int) -> None:
        now = time.monotonic()
        if now - self._said < _SAY_SECONDS:
            return
        self._said = now
        self.use()
        share = done / max(self.arriving.size, 1)
        self.outbox.put("reading", share=share, live=self._total.largest(_COLUMNS).tolist(), events=self._total.events)


class Readings:
    """Of all visitors; a reading is reached by a ticket that only the browser that began it knows."""

    def __init__(self, store: TraceStore, most_bytes: int | None = None) -> None:
        self.most_bytes = most_bytes
        self._store = store
        self._gate = threading.Semaphore(_AT_ONCE)
        self._lock = threading.Lock()
        self._under_way: dict[str, Reading] = {}

    def begin(self, name: str, size: int, *, packed: bool) -> str:
        if self.most_bytes is not None and size > self.most_bytes:
            raise TooLarge(
                f"It has {bytes_text(size)}; this page takes {bytes_text(self.most_bytes)}. On your own machine there "
                "is no limit: python app.py."
            )
        ticket = secrets.token_urlsafe(18)
        with self._lock:
            self._forget()
            if len(self._under_way) >= _MOST:
                raise Busy
            arriving = Arriving(size, packed=packed, gate=self._gate)
            self._under_way[ticket] = Reading(self._store, name, arriving, self._gate)
        return ticket

    def get(self, ticket: str) -> Reading | None:
        with self._lock:
            reading = self._under_way.get(ticket)
            if reading is not None:
                reading.use()
            return reading

    def drop(self, ticket: str, *, heard: bool = False) -> None:
        """`heard`: its visitor has been told all of it."""
        with self._lock:
            reading = self._under_way.pop(ticket, None)
        if reading is not None and not heard:
            reading.cancel()

    def _forget(self) -> None:
        """What nobody has asked after for a while."""
        old = time.monotonic() - _FORGET_SECONDS
        for ticket in [ticket for ticket, each in self._under_way.items() if each.used < old]:
            with suppress(KeyError):
                self._under_way.pop(ticket).cancel()


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
