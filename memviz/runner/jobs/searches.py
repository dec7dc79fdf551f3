"""Searches for a configuration that fits: each a process of its own, whose predictions wait in the queue of all runs.

Between two of its predictions others have their turns.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any

from memviz.fair_lock import FairLock
from memviz.runner.jobs.limits import MEMORY, end_tree, most_bytes
from memviz.runner.jobs.order import Job, new_id
from memviz.runner.jobs.scheduler import Crowded, Jobs
from memviz.runner.jobs.worker_process import close_streams, send_line, start_module, takes_more, too_much
from memviz.runner.request import Request

MODULE = "memviz.runner.fit.driver"
MOST_AT_ONCE = 8
_NEWEST, _LEAST_TIMED = 24, 4
"""Predictions whose pace counts: some of them come in pairs, the second of which is a replay."""
_LEAST_SECONDS = 2.0
"""Cached answers come at once, and say nothing about those to come."""


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
    """Configurations predicted, and to be predicted; 0 until the search has begun."""
    ways: tuple[Mapping[str, Any], ...] = ()
    """Predictions in the form of `fit --json`, in the order in which they were made."""
    value: int | None = None
    """Value of the knob whose largest value is searched."""
    answer: Mapping[str, Any] | None = None
    """All that `fit --json` says."""
    failed: str = ""
    seconds: float = 0.0
    seconds_left: float | None = None
    """Until all are predicted, by the pace of the newest; None where too few are."""

    @property
    def is_over(self) -> bool:
        return self.answer is not None or bool(self.failed)


class Pace:
    """Time left of a search, by the pace of its newest predictions."""

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


class Searches(Jobs["Search", SearchStatus]):
    """One for a page."""

    def __init__(
        self, line: FairLock, *, seconds: float, patience: float, memory: int | None = None, most: int = MOST_AT_ONCE
    ) -> None:
        """`seconds` are the limit of one prediction."""
        super().__init__(patience)
        self._line = line
        self._seconds = seconds
        self._memory = memory or most_bytes()
        self._most = most

    def submit(self, order: SearchOrder, owner: str) -> SearchStatus:
        """Begin at once, in place of what its owner has under way."""
        with self._lock:
            self._check_open()
            self._tidy(time.monotonic())
            under_way = [search for search in self._jobs.values() if not search.status.is_over]
            own = [search for search in under_way if search.owner == owner]
            if len(under_way) - len(own) >= self._most:
                raise Crowded(f"{self._most} others search already. Try it again in some minutes.")
            for search in own:
                search.stop("Another search was begun instead.")
            search = Search(order, owner, self._line, self._seconds, self._memory)
            self._start(search, Search.run)
        return search.status


class Search(Job[SearchStatus]):
    def __init__(self, order: SearchOrder, owner: str, line: FairLock, most_seconds: float, memory: int) -> None:
        super().__init__(SearchStatus(new_id(), order), owner)
        self.began = time.monotonic()
        self._line = line
        self._most_seconds = most_seconds
        self._memory = memory
        self._pace = Pace()
        self._process: subprocess.Popen[str] | None = None

    def interrupt(self) -> None:
        if self._process is not None:
            end_tree(self._process)

    def check(self) -> None:
        if self._process is not None and takes_more(self._process.pid, self._memory):
            self.stop(too_much(self._memory))

    def run(self) -> None:
        failed = ""
        try:
            with tempfile.TemporaryFile() as errors, ExitStack() as turn:
                self._process = process = start_module(MODULE, errors, {MEMORY: str(self._memory)})
                try:
                    self._follow(process, turn)
                finally:
                    end_tree(process)
                    close_streams(process.stdin, process.stdout)
        except OSError as error:
            failed = f"It could not be searched here: {error}"
        finally:
            if not self._status.is_over:
                self.set(failed=self.why or failed or "Its process ended without an answer.")

    def _follow(self, process: subprocess.Popen[str], turn: ExitStack) -> None:
        assert process.stdout is not None
        order = self._status.order
        first = {"request": order.request.as_json(), "keep": order.keep, "largest": order.largest, "grid": order.grid}
        send_line(process, {**first, "seconds": self._most_seconds})
        if self.stopped.is_set():
            return
        for line in process.stdout:
            with suppress(ValueError):
                message = json.loads(line)
                if message["kind"] == "turn":
                    wait = self._line.turn(self.set_before, self.stopped.is_set, owner=self.owner)
                    if not turn.enter_context(wait):
                        return
                    self.set(before=0)
                    send_line(process, {})
                elif message["kind"] == "over":
                    turn.close()
                else:
                    self._take(message)

    def _take(self, message: Mapping[str, Any]) -> None:
        kind = message["kind"]
        if kind == "way":
            more = () if message["way"] is None else (message["way"],)
            left = self._pace.seconds_left(message["done"], message["of"])
            self.set(ways=(*self._status.ways, *more), done=message["done"], of=message["of"], seconds_left=left)
        elif kind == "value":
            self.set(value=message["value"])
        elif kind == "answer":
            self.set(answer=message["answer"], value=None)
        elif kind == "failed":
            self.set(failed=message["text"])
