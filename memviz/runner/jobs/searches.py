"""Searches for a configuration that fits: each a process of its own, whose predictions stand in the line of all runs.

Between two of its predictions others have their turns. What nobody looks at any more ends, as orders do.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import subprocess
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

from memviz.fair_lock import FairLock
from memviz.runner.jobs.limits import MEMORY, end_tree, most_bytes
from memviz.runner.jobs.order import LastSeen
from memviz.runner.jobs.scheduler import Closing, Crowded
from memviz.runner.jobs.worker_process import start_module, takes_more, too_much
from memviz.runner.request import Request

MODULE = "memviz.runner.fit.driver"
MOST_AT_ONCE = 8
_KEPT = 64
_LOOK_SECONDS = 1.0
_NEWEST, _LEAST_TIMED = 24, 4
"""Predictions whose pace is taken: some of them come in pairs, the second of which is a replay."""
_LEAST_SECONDS = 2.0
"""Answers that were kept from before come at once, and say nothing about those to come."""


@dataclass(frozen=True)
class SearchOrder:
    request: Request
    keep: str = "outputs"
    largest: str = ""
    grid: bool = False


@dataclass(frozen=True)
class SearchStatus:
    id: str
    order: SearchOrder
    version: int = 0
    before: int = 0
    """How many turns of others come first."""
    done: int = 0
    of: int = 0
    """Ways that are predicted, and that are going to be; 0 until the search has begun."""
    ways: tuple[Mapping[str, Any], ...] = ()
    """Predictions in the form of `fit --json`, in the order in which they were made."""
    value: int | None = None
    """Value of the knob whose largest value is searched."""
    answer: Mapping[str, Any] | None = None
    """All that `fit --json` says."""
    failed: str = ""
    seconds: float = 0.0
    seconds_left: float | None = None
    """Until all are predicted, by the newest ones; None where too few are."""

    @property
    def is_over(self) -> bool:
        return self.answer is not None or bool(self.failed)


class Pace:
    """Time that is left of a search, by how fast its newest predictions came."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._newest: deque[float] = deque(maxlen=_NEWEST)

    def seconds_left(self, done: int, of: int) -> float | None:
        """Estimate the remaining time. Call this after each prediction."""
        self._newest.append(self._clock())
        took = self._newest[-1] - self._newest[0]
        if len(self._newest) < _LEAST_TIMED or took < _LEAST_SECONDS:
            return None
        return took / (len(self._newest) - 1) * (of - done)


class Searches:
    """One for a page."""

    def __init__(
        self, line: FairLock, *, seconds: float, patience: float, memory: int | None = None, most: int = MOST_AT_ONCE
    ) -> None:
        """`seconds` are for one prediction; a search that nobody asked after for those of `patience` ends."""
        self._line = line
        self._seconds = seconds
        self._patience = patience
        self._memory = memory or most_bytes()
        self._most = most
        self._lock = threading.Lock()
        self._known: dict[str, _Search] = {}
        self._is_closed = False

    def submit(self, order: SearchOrder, owner: str) -> SearchStatus:
        """Begins at once; what its owner has under way makes room for it."""
        with self._lock:
            if self._is_closed:
                raise Closing("This page is about to end, and begins nothing more.")
            under_way = [search for search in self._known.values() if not search.status.is_over]
            mine = [search for search in under_way if search.owner == owner]
            if len(under_way) - len(mine) >= self._most:
                raise Crowded(f"{self._most} others search already. Try it again in some minutes.")
            for search in mine:
                search.stop("Another search was begun instead.")
            over = [id for id, search in self._known.items() if search.status.is_over]
            for id in over[: max(0, len(self._known) - _KEPT)]:
                del self._known[id]
            search = _Search(order, owner, self._line, self._seconds, self._patience, self._memory)
            self._known[search.status.id] = search
            search.begin()
        return search.status

    def status(self, id: str, *, newer_than: int = -1, wait: float = 0.0) -> SearchStatus | None:
        search = self._known.get(id)
        return None if search is None else search.wait(newer_than, wait)

    def newest_of(self, owner: str) -> SearchStatus | None:
        """So that somebody who comes back to the page finds what they left searching."""
        theirs = [search.status for search in list(self._known.values()) if owner and search.owner == owner]
        return theirs[-1] if theirs else None

    def cancel(self, id: str) -> None:
        search = self._known.get(id)
        if search is not None:
            search.stop("Cancelled.")

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
        for search in list(self._known.values()):
            search.stop("The page ended.")
            search.join()


@dataclass
class _Search:
    order: SearchOrder
    owner: str
    line: FairLock
    most_seconds: float
    patience: float
    memory: int
    status: SearchStatus = field(init=False)

    def __post_init__(self) -> None:
        self.status = SearchStatus(secrets.token_urlsafe(18), self.order)
        self._changed = threading.Condition()
        self._stopped = threading.Event()
        self._why = ""
        self._began = time.monotonic()
        self._attention = LastSeen()
        self._pace = Pace()
        self._process: subprocess.Popen[str] | None = None
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._follow, self._watch)]

    def begin(self) -> None:
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        for thread in self._threads:
            thread.join(5.0)

    def wait(self, version: int, seconds: float) -> SearchStatus:
        with self._attention.paid(), self._changed:
            self._changed.wait_for(lambda: self.status.version > version, timeout=seconds)
        return self.status

    def stop(self, why: str) -> None:
        self._why = self._why or why
        self._stopped.set()
        if self._process is not None:
            end_tree(self._process)

    def _set(self, **changes: Any) -> None:
        with self._changed:
            seconds = time.monotonic() - self._began
            self.status = replace(self.status, version=self.status.version + 1, seconds=seconds, **changes)
            self._changed.notify_all()

    def _watch(self) -> None:
        while not self._stopped.wait(_LOOK_SECONDS) and not self.status.is_over:
            process = self._process
            if self._attention.missing(time.monotonic()) > self.patience:
                self.stop("Nobody waited for it any more, so it was ended.")
            elif process is not None and takes_more(process.pid, self.memory):
                self.stop(too_much(self.memory))

    def _follow(self) -> None:
        words = ""
        try:
            with tempfile.TemporaryFile() as errors, ExitStack() as turn:
                self._process = start_module(MODULE, errors, {MEMORY: str(self.memory)})
                try:
                    self._hear(self._process, turn)
                finally:
                    end_tree(self._process)
                    self._close(self._process)
        except OSError as error:
            words = f"It could not be searched here: {error}"
        finally:
            if not self.status.is_over:
                self._set(failed=self._why or words or "Its process ended without an answer.")

    def _hear(self, process: subprocess.Popen[str], turn: ExitStack) -> None:
        assert process.stdout is not None
        order = self.order
        first = {"request": order.request.as_json(), "keep": order.keep, "largest": order.largest, "grid": order.grid}
        self._say(process, {**first, "seconds": self.most_seconds})
        if self._stopped.is_set():
            return
        for line in process.stdout:
            with contextlib.suppress(ValueError):
                message = json.loads(line)
                if message["kind"] == "turn":
                    if not turn.enter_context(self._turn()):
                        return
                    self._set(before=0)
                    self._say(process, {})
                elif message["kind"] == "over":
                    turn.close()
                else:
                    self._take(message)

    def _turn(self) -> Any:
        def tell(before: int) -> None:
            self._set(before=before)

        return self.line.turn(tell, self._stopped.is_set, owner=self.owner)

    def _take(self, message: Mapping[str, Any]) -> None:
        kind = message["kind"]
        if kind == "way":
            more = () if message["way"] is None else (message["way"],)
            left = self._pace.seconds_left(message["done"], message["of"])
            self._set(ways=(*self.status.ways, *more), done=message["done"], of=message["of"], seconds_left=left)
        elif kind == "value":
            self._set(value=message["value"])
        elif kind == "answer":
            self._set(answer=message["answer"], value=None)
        elif kind == "failed":
            self._set(failed=message["text"])

    def _say(self, process: subprocess.Popen[str], message: Mapping[str, Any]) -> None:
        # A process that is gone is noticed where its answer stays out.
        with contextlib.suppress(OSError, ValueError):
            assert process.stdin is not None
            process.stdin.write(json.dumps(message) + "\n")
            process.stdin.flush()

    def _close(self, process: subprocess.Popen[str]) -> None:
        for stream in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):
                if stream is not None:
                    stream.close()
