"""Jobs in threads of their own, with progress and cancellation; each visitor has one at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from weakref import WeakValueDictionary

from memviz.errors import MemvizError
from memviz.fair_lock import FairLock

Task = Callable[[Callable[[int, int], None]], Any]
"""Told where to say how much is done, of how much."""


_LAST_PART_SECONDS = 10.0
"""For an answer that was stopped to end; one whose visitor is gone may never do so."""


class BackgroundStopped(MemvizError):
    """The job was cancelled."""


class BackgroundJob:
    def __init__(self, task: Task, gate: AbstractContextManager[object]) -> None:
        self.share = 0.0
        self._task = task
        self._gate = gate
        self._stopped = threading.Event()
        self._done = threading.Event()
        self._news = threading.Event()
        self._result: Any = None
        self._fault: BaseException | None = None
        # A daemon: whoever ends the page does not wait for it.
        threading.Thread(target=self._run, daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()
        self._news.set()

    @property
    def is_stopped(self) -> bool:
        return self._stopped.is_set()

    def is_done(self, patience_seconds: float) -> bool:
        """Waits so long for it, or until it is stopped."""
        self._news.wait(patience_seconds)
        return self._done.is_set()

    def result(self) -> Any:
        """Raises what the task raised, and BackgroundStopped after `stop`."""
        self._done.wait()
        if self._stopped.is_set():
            raise BackgroundStopped("Stopped.")
        if self._fault is not None:
            raise self._fault
        return self._result

    def _run(self) -> None:
        try:
            with self._gate:
                self._progress(0, 1)
                self._result = self._task(self._progress)
        except BaseException as fault:
            # Whoever asks for the result gets it.
            self._fault = fault
        finally:
            self._done.set()
            self._news.set()

    def _progress(self, done: int, total: int) -> None:
        if self._stopped.is_set():
            raise BackgroundStopped("Stopped.")
        self.share = done / max(total, 1)


class _Answers:
    """Number of the newest request of one visitor, and its lock."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.asked = 0


class BackgroundJobs:
    """Each visitor has one piece of work at a time; a new one ends the one before."""

    def __init__(self, at_once: int = 2) -> None:
        """More `at_once`, of all visitors together, would only make each of them wait longer."""
        self._turns = FairLock(at_once)
        self._lock = threading.Lock()
        self._running: dict[str, BackgroundJob] = {}
        self._answers: WeakValueDictionary[str, _Answers] = WeakValueDictionary()

    @contextmanager
    def answering(self, visitor: str) -> Iterator[Callable[[], bool]]:
        """Stop the visitor's answer before this one and wait for its end; tells whether nothing newer was asked.

        Two answers in parts that are sent side by side may arrive in any order: the last part of the older one would
        take the newer one back.
        """
        with self._lock:
            answers = self._answers.setdefault(visitor, _Answers())
            answers.asked += 1
            number = answers.asked
        self.stop(visitor)
        has_ended = answers.lock.acquire(timeout=_LAST_PART_SECONDS)
        try:
            yield lambda: answers.asked == number
        finally:
            if has_ended:
                answers.lock.release()

    def begin(self, visitor: str, task: Task, owner: str = "") -> BackgroundJob:
        """`owner`: whoever has several windows waits for all of them behind others."""
        with self._lock:
            # Its thread begins at once, and may be stopped before this one has noted it.
            work = BackgroundJob(task, self._turns.of(owner))
            before, self._running[visitor] = self._running.get(visitor), work
        if before is not None:
            before.stop()
        return work

    def stop(self, visitor: str) -> None:
        with self._lock:
            work = self._running.pop(visitor, None)
        if work is not None:
            work.stop()

    def ended(self, visitor: str, work: BackgroundJob) -> None:
        """Keeps nothing of a visitor who has what they wanted."""
        with self._lock:
            if self._running.get(visitor) is work:
                del self._running[visitor]
