"""Jobs in threads of their own, with progress and cancellation; each visitor has one at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future, InvalidStateError
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakValueDictionary

from memviz.errors import MemvizError
from memviz.fair_lock import FairLock

Task = Callable[[Callable[[int, int], None]], Any]
"""Called with a function that takes how much is done, of how much."""

_LAST_PART_SECONDS = 10.0
"""For an answer that was stopped to end; one whose visitor is gone may never do so."""


class BackgroundStopped(MemvizError):
    """The job was cancelled."""


class BackgroundJob:
    def __init__(self, task: Task, gate: AbstractContextManager[object]) -> None:
        self.share = 0.0
        self._task = task
        self._gate = gate
        self._future: Future[Any] = Future()
        # A daemon: the end of the page does not wait for it.
        threading.Thread(target=self._run, daemon=True).start()

    def stop(self) -> None:
        self._future.cancel()

    @property
    def is_stopped(self) -> bool:
        return self._future.cancelled()

    def is_done(self, patience_seconds: float) -> bool:
        """Wait for its end, or until it is stopped; return whether it has ended by itself."""
        with suppress(TimeoutError, CancelledError):
            self._future.exception(patience_seconds)
        return self._future.done() and not self.is_stopped

    def result(self) -> Any:
        """Raises what the task raised, and BackgroundStopped after `stop`."""
        try:
            return self._future.result()
        except CancelledError:
            raise BackgroundStopped("Stopped.") from None

    def _run(self) -> None:
        # A stopped future takes no result any more.
        try:
            with self._gate:
                self._progress(0, 1)
                result = self._task(self._progress)
            with suppress(InvalidStateError):
                self._future.set_result(result)
        except BaseException as error:
            with suppress(InvalidStateError):
                self._future.set_exception(error)

    def _progress(self, done: int, total: int) -> None:
        if self.is_stopped:
            raise BackgroundStopped("Stopped.")
        self.share = done / max(total, 1)


@dataclass(eq=False)
class _Answers:
    """Number of the newest request of one visitor, and its lock."""

    asked: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


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
        """Jobs of one `owner`, which may have several windows, share its turn."""
        with self._lock:
            # Its thread begins at once, and may be stopped before this one has noted it.
            job = BackgroundJob(task, self._turns.of(owner))
            before, self._running[visitor] = self._running.get(visitor), job
        if before is not None:
            before.stop()
        return job

    def stop(self, visitor: str) -> None:
        with self._lock:
            job = self._running.pop(visitor, None)
        if job is not None:
            job.stop()

    def ended(self, visitor: str, job: BackgroundJob) -> None:
        """Drop a finished job."""
        with self._lock:
            if self._running.get(visitor) is job:
                del self._running[visitor]
