"""An order of runs and its status: frozen values that can be shown at any moment and waited for.

Orders that no client has polled for a while end.
"""

from __future__ import annotations

import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from memviz.fair_lock import Turn
from memviz.runner.jobs.worker_process import AnyWorker, RunEvent
from memviz.runner.request import Request
from memviz.runner.run import Run


class LastSeen:
    """Time since a client last polled. A pending long poll counts, however late a busy machine lets it poll again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._looking = 0
        self._last = time.monotonic()

    @contextmanager
    def paid(self) -> Iterator[None]:
        with self._lock:
            self._looking += 1
        try:
            yield
        finally:
            with self._lock:
                self._looking -= 1
                self._last = time.monotonic()

    def missing(self, now: float) -> float:
        """Seconds for which nobody has looked. `now` is of the monotonic clock."""
        with self._lock:
            return 0.0 if self._looking else now - self._last


_UNWANTED = "Nobody waited for it any more, so it was ended."


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
"""Called with each variant that is done; says what went wrong with it then, or nothing."""


class Order:
    """One on its way. It is changed by the scheduler's thread and looked at by any."""

    def __init__(self, variants: tuple[Variant, ...], folder: Path, finished: Finished | None, owner: str) -> None:
        self.folder = folder
        self.finished = finished
        self.owner = owner
        self.made = time.monotonic()
        self.attention = LastSeen()
        self.may_run_unseen = False
        self.unwanted = False
        self.began: float | None = None
        self.stopped = threading.Event()
        self.worker: AnyWorker | None = None
        self.thread: threading.Thread | None = None
        self.place: Turn | None = None
        """Place of its first run in the queue."""
        self._changed = threading.Condition()
        self._status = OrderStatus(secrets.token_urlsafe(18), variants)

    @property
    def status(self) -> OrderStatus:
        now = self._status
        return now if self.began is None or now.is_over else replace(now, seconds=time.monotonic() - self.began)

    @property
    def is_waiting(self) -> bool:
        return self.began is None and not self.stopped.is_set() and not self._status.is_over

    def wait(self, version: int, seconds: float) -> OrderStatus:
        """The status as soon as it is a newer one than `version`."""
        with self.attention.paid(), self._changed:
            self._changed.wait_for(lambda: self._status.version > version, timeout=seconds)
        return self.status

    def begin(self) -> None:
        """Its turn has come, the first or another one."""
        self.began = self.began or time.monotonic()
        self.set(before=0)

    def change(self, number: int, **changes: object) -> None:
        variants = list(self._status.variants)
        variants[number] = replace(variants[number], **changes)  # type: ignore[arg-type]
        self.set(variants=tuple(variants))

    def set(self, **changes: object) -> None:
        with self._changed:
            seconds = 0.0 if self.began is None else time.monotonic() - self.began
            version = self._status.version + 1
            self._status = replace(self._status, seconds=seconds, version=version, **changes)  # type: ignore[arg-type]
            self._changed.notify_all()

    def on_event(self, event: RunEvent) -> None:
        if event.kind == "phase":
            self.change(event.number, state="running", phase=event.phase, what="", where="")
        elif event.kind == "figures":
            self.change(event.number, run=event.run, file=event.file, amiss=event.text)
        elif event.kind == "done":
            self._done(event)
        elif event.what == "not begun":
            self.change(event.number, what=event.what)
        else:
            words = _UNWANTED if self.unwanted and event.what == "cancelled" else event.text
            self.change(event.number, state="failed", phase=words, what=event.what, where=event.where, file=event.file)

    def _done(self, event: RunEvent) -> None:
        """It is kept before anybody hears that it is done, so that whoever then looks finds it."""
        known = {"state": "done", "phase": "", "run": event.run, "file": event.file, "amiss": event.text}
        if self.finished is not None:
            variant = replace(self._status.variants[event.number], **known)  # type: ignore[arg-type]
            known["amiss"] = " ".join(filter(None, (event.text, self.finished(variant))))
        self.change(event.number, **known)

    def end(self, words: str, what: str) -> None:
        words = _UNWANTED if self.unwanted and what == "cancelled" else words
        for number, variant in enumerate(self._status.variants):
            if not variant.is_over:
                self.change(number, state="failed", phase=words, what=what)

    @property
    def bytes_on_disk(self) -> int:
        return sum(path.stat().st_size for path in self.folder.glob("*") if path.is_file())

    def forget(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
