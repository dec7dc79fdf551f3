"""How an order of runs stands: frozen values that can be shown at any moment, and whoever waits hears of new ones."""

from __future__ import annotations

import secrets
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from memviz.runner.jobs.worker_process import Happened, Runs
from memviz.runner.request import Request
from memviz.runner.run import Run

_UNWANTED = "Nobody waited for it any more, so it was ended."


@dataclass(frozen=True)
class Variant:
    request: Request
    label: str
    state: Literal["waiting", "running", "done", "failed"] = "waiting"
    phase: str = ""
    """What it is doing, in words; or what failed."""
    run: Run | None = None
    """Its figures may be there before it is done: outputs are compared last."""
    file: Path | None = None
    """Of its trace; a failed one may have recorded something too."""
    what: str = ""
    """Of a failure."""
    where: str = ""
    amiss: str = ""
    """What went wrong beside good figures: that they could not be kept, for example."""

    @property
    def is_over(self) -> bool:
        return self.state in ("done", "failed")


@dataclass(frozen=True)
class Standing:
    id: str
    variants: tuple[Variant, ...]
    before: int = 0
    """How many orders of others have the device first."""
    seconds: float = 0.0
    """Since it was its turn."""
    version: int = 0
    is_left: bool = False
    """Whoever ordered it has ordered something else instead and looks at that."""

    @property
    def is_over(self) -> bool:
        return all(each.is_over for each in self.variants)


Finished = Callable[[Variant], str]
"""Called with each variant that is done; says what went wrong with it then, or nothing."""


class Order:
    """One on its way. It is changed by the desk's thread and looked at by any."""

    def __init__(self, variants: tuple[Variant, ...], folder: Path, finished: Finished | None, owner: str) -> None:
        self.folder = folder
        self.finished = finished
        self.owner = owner
        self.made = self.asked_after = time.monotonic()
        self.may_run_unseen = False
        self.unwanted = False
        self.began: float | None = None
        self.stopped = threading.Event()
        self.worker: Runs | None = None
        self.thread: threading.Thread | None = None
        self._changed = threading.Condition()
        self._standing = Standing(secrets.token_urlsafe(18), variants)

    @property
    def standing(self) -> Standing:
        now = self._standing
        return now if self.began is None or now.is_over else replace(now, seconds=time.monotonic() - self.began)

    @property
    def is_waiting(self) -> bool:
        return self.began is None and not self.stopped.is_set() and not self._standing.is_over

    def wait(self, version: int, seconds: float) -> Standing:
        """The standing as soon as it is a newer one than `version`."""
        self.asked_after = time.monotonic()
        with self._changed:
            self._changed.wait_for(lambda: self._standing.version > version, timeout=seconds)
        self.asked_after = time.monotonic()
        return self.standing

    def begin(self) -> None:
        """Its turn has come, the first or another one."""
        self.began = self.began or time.monotonic()
        self.set(before=0)

    def change(self, number: int, **changes: object) -> None:
        variants = list(self._standing.variants)
        variants[number] = replace(variants[number], **changes)  # type: ignore[arg-type]
        self.set(variants=tuple(variants))

    def set(self, **changes: object) -> None:
        with self._changed:
            seconds = 0.0 if self.began is None else time.monotonic() - self.began
            version = self._standing.version + 1
            self._standing = replace(self._standing, seconds=seconds, version=version, **changes)  # type: ignore[arg-type]
            self._changed.notify_all()

    def heard(self, each: Happened) -> None:
        if each.kind == "phase":
            self.change(each.number, state="running", phase=each.phase, what="", where="")
        elif each.kind == "figures":
            self.change(each.number, run=each.run, file=each.file, amiss=each.text)
        elif each.kind == "done":
            self._done(each)
        elif each.what == "not begun":
            self.change(each.number, what=each.what)
        else:
            words = _UNWANTED if self.unwanted and each.what == "cancelled" else each.text
            self.change(each.number, state="failed", phase=words, what=each.what, where=each.where, file=each.file)

    def _done(self, each: Happened) -> None:
        """It is kept before anybody hears that it is done, so that whoever then looks finds it."""
        known = {"state": "done", "phase": "", "run": each.run, "file": each.file, "amiss": each.text}
        if self.finished is not None:
            made = replace(self._standing.variants[each.number], **known)  # type: ignore[arg-type]
            known["amiss"] = " ".join(filter(None, (each.text, self.finished(made))))
        self.change(each.number, **known)

    def end(self, words: str, what: str) -> None:
        words = _UNWANTED if self.unwanted and what == "cancelled" else words
        for number, each in enumerate(self._standing.variants):
            if not each.is_over:
                self.change(number, state="failed", phase=words, what=what)

    @property
    def bytes_on_disk(self) -> int:
        return sum(path.stat().st_size for path in self.folder.glob("*") if path.is_file())

    def forget(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
