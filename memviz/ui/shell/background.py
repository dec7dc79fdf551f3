"""Work that takes its time: in a thread of its own, with a share done that can be shown, and an end on demand."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from memviz.errors import MemvizError
from memviz.fair_lock import FairLock

Task = Callable[[Callable[[int, int], None]], Any]
"""Told where to say how much is done, of how much."""


class BackgroundStopped(MemvizError):
    """Nobody wants the answer any more."""


class BackgroundWork:
    def __init__(self, task: Task, gate: AbstractContextManager[object]) -> None:
        self.share = 0.0
        self._task = task
        self._gate = gate
        self._stopped = threading.Event()
        self._done = threading.Event()
        self._result: Any = None
        self._fault: BaseException | None = None
        # A daemon: whoever ends the page does not wait for it.
        threading.Thread(target=self._run, daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()

    @property
    def is_stopped(self) -> bool:
        return self._stopped.is_set()

    def is_done(self, patience_seconds: float) -> bool:
        return self._done.wait(patience_seconds)

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

    def _progress(self, done: int, total: int) -> None:
        if self._stopped.is_set():
            raise BackgroundStopped("Stopped.")
        self.share = done / max(total, 1)


class Workshop:
    """Each visitor has one piece of work at a time; a new one ends the one before."""

    def __init__(self, at_once: int = 2) -> None:
        """More `at_once`, of all visitors together, would only make each of them wait longer."""
        self._turns = FairLock(at_once)
        self._lock = threading.Lock()
        self._running: dict[str, BackgroundWork] = {}

    def begin(self, visitor: str, task: Task, owner: str = "") -> BackgroundWork:
        """`owner`: whoever has several windows waits for all of them behind others."""
        with self._lock:
            # Its thread begins at once, and may be stopped before this one has noted it.
            work = BackgroundWork(task, self._turns.of(owner))
            before, self._running[visitor] = self._running.get(visitor), work
        if before is not None:
            before.stop()
        return work

    def stop(self, visitor: str) -> None:
        with self._lock:
            work = self._running.pop(visitor, None)
        if work is not None:
            work.stop()

    def ended(self, visitor: str, work: BackgroundWork) -> None:
        """Keeps nothing of a visitor who has what they wanted."""
        with self._lock:
            if self._running.get(visitor) is work:
                del self._running[visitor]
