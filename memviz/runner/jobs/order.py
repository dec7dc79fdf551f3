"""Jobs with a status that can be shown at any moment and waited for: frozen values. An order is a job of runs."""

from __future__ import annotations

import secrets
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, Literal, Protocol, TypeVar

from memviz.fair_lock import Turn
from memviz.runner.jobs.worker_process import AnyWorker, RunEvent
from memviz.runner.request import Request
from memviz.runner.run import Run

CANCELLED = "Cancelled."
UNPOLLED = "Cancelled, because no page was waiting for it any more."


class JobStatus(Protocol):
    @property
    def id(self) -> str: ...

    @property
    def version(self) -> int: ...

    @property
    def seconds(self) -> float: ...

    @property
    def is_over(self) -> bool: ...


Status = TypeVar("Status", bound=JobStatus)


def new_id() -> str:
    """An id that cannot be guessed: whoever has it may look at the job."""
    return secrets.token_urlsafe(18)


class Job(Generic[Status]):
    """Work under way: changed by its own thread, looked at by any."""

    def __init__(self, status: Status, owner: str) -> None:
        self.owner = owner
        self.made = time.monotonic()
        self.began: float | None = None
        self.stopped = threading.Event()
        self.why = ""
        """Why it was stopped."""
        self.may_run_unseen = False
        self.thread: threading.Thread | None = None
        self._changed = threading.Condition()
        self._status = status
        self._pollers = 0
        self._polled = time.monotonic()

    @property
    def status(self) -> Status:
        status = self._status
        return status if self.began is None or status.is_over else self._timed(status)

    def wait(self, version: int, seconds: float) -> Status:
        """Return the status as soon as it is newer than `version`."""
        with self._changed:
            self._pollers += 1
            try:
                self._changed.wait_for(lambda: self._status.version > version, timeout=seconds)
            finally:
                self._pollers -= 1
                self._polled = time.monotonic()
        return self.status

    def unpolled_seconds(self, now: float) -> float:
        """Time since a client last polled. A pending long poll counts, however late a busy machine wakes it."""
        with self._changed:
            return 0.0 if self._pollers else now - self._polled

    def set(self, **changes: Any) -> None:
        with self._changed:
            version = self._status.version + 1
            self._status = replace(self._timed(self._status), version=version, **changes)  # type: ignore[type-var]
            self._changed.notify_all()

    def set_before(self, before: int) -> None:
        self.set(before=before)

    def stop(self, why: str = CANCELLED) -> None:
        self.why = self.why or why
        self.stopped.set()
        self.interrupt()

    def interrupt(self) -> None:
        """End what is running, from any thread."""

    def check(self) -> None:
        """Called every second while the job runs, to hold it to its limits."""

    @property
    def bytes_on_disk(self) -> int:
        return 0

    def forget(self) -> None:
        """Delete the files of the job."""

    def _timed(self, status: Status) -> Status:
        seconds = 0.0 if self.began is None else time.monotonic() - self.began
        return replace(status, seconds=seconds)  # type: ignore[type-var]


@dataclass(frozen=True)
class Variant:
    request: Request
    label: str
    state: Literal["waiting", "running", "done", "failed"] = "waiting"
    phase: str = ""
    """Current activity in words, or the one that failed."""
    run: Run | None = None
    """Its figures may be there before it is done: outputs are compared last."""
    file: Path | None = None
    """Path of the trace; a failed run may have one too."""
    what: str = ""
    """Kind of failure."""
    where: str = ""
    amiss: str = ""
    """Problem besides good figures, for example that they could not be saved."""

    @property
    def is_over(self) -> bool:
        return self.state in ("done", "failed")


@dataclass(frozen=True)
class OrderStatus:
    id: str
    variants: tuple[Variant, ...]
    before: int = 0
    """How many orders of others have the device first."""
    seconds: float = 0.0
    """Since it was its turn."""
    version: int = 0
    is_left: bool = False
    """True if its owner has placed another order instead and follows that one."""

    @property
    def is_over(self) -> bool:
        return all(variant.is_over for variant in self.variants)


Finished = Callable[[Variant], str]
"""Called with each variant that is done; returns what went wrong with it then, or nothing."""


class Order(Job[OrderStatus]):
    def __init__(self, variants: tuple[Variant, ...], folder: Path, finished: Finished | None, owner: str) -> None:
        super().__init__(OrderStatus(new_id(), variants), owner)
        self.folder = folder
        self.finished = finished
        self.worker: AnyWorker | None = None
        self.place: Turn | None = None
        """Place of its first run in the queue."""

    @property
    def is_waiting(self) -> bool:
        return self.began is None and not self.stopped.is_set() and not self._status.is_over

    def begin(self) -> None:
        """Note the start of its turn, the first or another one."""
        self.began = self.began or time.monotonic()
        self.set(before=0)

    def interrupt(self) -> None:
        worker = self.worker
        if worker is not None:
            worker.cancel()

    def change(self, number: int, **changes: Any) -> None:
        variants = list(self._status.variants)
        variants[number] = replace(variants[number], **changes)
        self.set(variants=tuple(variants))

    def on_event(self, event: RunEvent) -> None:
        if event.kind == "phase":
            self.change(event.number, state="running", phase=event.phase, what="", where="")
        elif event.kind == "figures":
            self.change(event.number, run=event.run, file=event.file, amiss=event.text)
        elif event.kind == "done":
            self._finish(event)
        elif event.what == "not begun":
            self.change(event.number, what=event.what)
        else:
            phase = self.why if event.what == "cancelled" else event.text
            self.change(event.number, state="failed", phase=phase, what=event.what, where=event.where, file=event.file)

    def _finish(self, event: RunEvent) -> None:
        """Keep the run before the status says that it is done, so that a client who then looks finds it."""
        changes: dict[str, Any] = {
            "state": "done",
            "phase": "",
            "run": event.run,
            "file": event.file,
            "amiss": event.text,
        }
        if self.finished is not None:
            variant = replace(self._status.variants[event.number], **changes)
            changes["amiss"] = " ".join(filter(None, (event.text, self.finished(variant))))
        self.change(event.number, **changes)

    def end(self, phase: str, what: str) -> None:
        for number, variant in enumerate(self._status.variants):
            if not variant.is_over:
                self.change(number, state="failed", phase=phase, what=what)

    @property
    def bytes_on_disk(self) -> int:
        return sum(path.stat().st_size for path in self.folder.glob("*") if path.is_file())

    def forget(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
