"""Queues of jobs; that of runs takes one at a time, in turn between visitors, with files in a locked scratch folder.

The lock tells a folder in use from one that a killed page left, which the next page deletes.
"""

from __future__ import annotations

import atexit
import contextlib
import contextvars
import math
import shutil
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Generic, TypeVar

from memviz.errors import MemvizError
from memviz.fair_lock import FairLock
from memviz.runner.jobs.limits import TIMEOUT_SECONDS
from memviz.runner.jobs.order import UNPOLLED, Finished, Job, Order, OrderStatus, Status, Variant
from memviz.runner.jobs.worker_process import AnyWorker, Worker, environment_of
from memviz.runner.jobs.zero_gpu import ZeroGpuWorker, is_zero_gpu
from memviz.runner.request import Request

_PREFIX = "memviz-runs-"
_LOCK = "lock"


class NoRoom(MemvizError):
    """The disk for temporary files is full, or nothing can be written to it."""


class Scratch:
    """Makes folders inside one of its own, which is made with the first of them."""

    def __init__(self, parent: Path | None = None) -> None:
        self._parent = parent
        self._lock = threading.Lock()
        self._root: Path | None = None
        self._lock_file: BinaryIO | None = None

    def new(self) -> Path:
        parent = self._parent or Path(tempfile.gettempdir())
        try:
            with self._lock:
                root = self._root or self._begin(parent)
            return Path(tempfile.mkdtemp(dir=root))
        except OSError as error:
            words = f"Files of a run cannot be written to {parent} ({error.strerror or error})."
            raise NoRoom(f"{words} Make room there, or name another folder in TMPDIR.") from None

    def close(self) -> None:
        with self._lock:
            if self._lock_file is not None:
                self._lock_file.close()
            if self._root is not None:
                shutil.rmtree(self._root, ignore_errors=True)
            self._root = self._lock_file = None

    def _begin(self, parent: Path) -> Path:
        for lock in parent.glob(f"{_PREFIX}*/{_LOCK}"):
            with contextlib.suppress(OSError), lock.open("rb") as file:
                _lock(file)
                shutil.rmtree(lock.parent, ignore_errors=True)
        root = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        # Without a lock, the folder is never swept; nothing else is lost.
        with contextlib.suppress(OSError):
            self._lock_file = (root / _LOCK).open("wb")
            _lock(self._lock_file)
        self._root = root
        return root


def _lock(file: BinaryIO) -> None:
    """Raise OSError where another process has the lock, or where the system has no such locks."""
    try:
        import fcntl
    except ImportError:
        raise OSError("This system has no such locks.") from None
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


MOST_WAITING = 32
"""Owners whose orders may wait at once."""
MOST_OF_ONE = 64
"""Orders of one owner that may wait."""
_MOST_JOBS = 64
_MOST_BYTES = 4 << 30
_KEPT_SECONDS = 6 * 3600.0
_MOST_SERVED = 200
_LARGEST_SPARE = 1 << 30
"""A process that holds more after its run is ended; a fresh one holds a third of it."""
_IDLE_SECONDS = 600.0
_JOIN_SECONDS = 5.0
_TICK_SECONDS = 1.0
_TIDY_SECONDS = 30.0


class Crowded(MemvizError):
    """More people ask than can be served."""


class Closing(MemvizError):
    """The page is about to end."""


AnyJob = TypeVar("AnyJob", bound=Job[Any])


class Jobs(Generic[AnyJob, Status]):
    """Jobs of one kind, each known by an id that cannot be guessed. One that no client polls for `patience` ends."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._lock = threading.Lock()
        self._jobs: dict[str, AnyJob] = {}
        self._tidy_at = 0.0
        self._closed = threading.Event()
        self._keeper: threading.Thread | None = None
        atexit.register(_close, weakref.ref(self))

    def status(self, id: str, *, newer_than: int = -1, wait: float = 0.0) -> Status | None:
        """Return the status of a job. Polling keeps the job alive."""
        job = self._jobs.get(id)
        status: Status | None = None if job is None else job.wait(newer_than, wait)
        return status

    def newest_of(self, owner: str) -> Status | None:
        """Return the status of an owner's newest job, for a page that is opened again."""
        jobs = [job for job in list(self._jobs.values()) if owner and job.owner == owner]
        status: Status | None = jobs[-1].status if jobs else None
        return status

    @property
    def is_busy(self) -> bool:
        return any(not job.status.is_over for job in list(self._jobs.values()))

    def cancel(self, id: str) -> None:
        job = self._jobs.get(id)
        if job is not None:
            job.stop()

    def stop_all(self) -> None:
        for job in list(self._jobs.values()):
            job.stop()

    def close(self) -> None:
        """End every job and delete its files."""
        with self._lock:
            self._closed.set()
        self.stop_all()
        for thread in [*(job.thread for job in list(self._jobs.values())), self._keeper]:
            if thread is not None:
                thread.join(_JOIN_SECONDS)

    def tick(self, now: float) -> None:
        """End jobs that no client polls, and forget old ones. `now` is of the monotonic clock."""
        for job in list(self._jobs.values()):
            if job.status.is_over:
                continue
            if job.may_run_unseen or job.unpolled_seconds(now) <= self._patience:
                job.check()
            else:
                job.stop(UNPOLLED)
        if now >= self._tidy_at:
            self._tidy_at = now + _TIDY_SECONDS
            with self._lock:
                self._tidy(now)

    def _start(self, job: AnyJob, run: Callable[[AnyJob], None]) -> None:
        """Start a job in a thread of its own. The lock is held."""
        self._jobs[job.status.id] = job
        # The context says whose request this is; a Space counts the time of a lent GPU by it.
        context = contextvars.copy_context()
        job.thread = threading.Thread(target=context.run, args=(run, job), daemon=True)
        job.thread.start()
        self._watch()

    def _watch(self) -> None:
        # The thread holds no reference between two ticks, so that an object without other references goes.
        if self._keeper is None:
            self._keeper = threading.Thread(target=_keep_house, args=(weakref.ref(self), self._closed), daemon=True)
            self._keeper.start()

    def _check_open(self) -> None:
        if self._closed.is_set():
            raise Closing("This page is about to end, and begins nothing more.")

    def _tidy(self, now: float) -> None:
        """Forget the oldest jobs that are over, beyond their number, their bytes or their time."""
        over = sorted((job for job in self._jobs.values() if job.status.is_over), key=lambda job: job.made)
        on_disk = sum(job.bytes_on_disk for job in over)
        for job in over:
            is_young = job.made >= now - _KEPT_SECONDS
            if is_young and len(self._jobs) < _MOST_JOBS and on_disk <= _MOST_BYTES:
                break
            on_disk -= job.bytes_on_disk
            del self._jobs[job.status.id]
            job.forget()


def _close(reference: weakref.ref[Jobs[Any, Any]]) -> None:
    jobs = reference()
    if jobs is not None:
        jobs.close()


def _keep_house(reference: weakref.ref[Jobs[Any, Any]], closed: threading.Event) -> None:
    while not closed.wait(_TICK_SECONDS):
        jobs = reference()
        if jobs is None:
            return
        jobs.tick(time.monotonic())
        del jobs


class Scheduler(Jobs[Order, OrderStatus]):
    """Orders of runs on this machine; one for a page."""

    def __init__(
        self,
        *,
        timeout: float = TIMEOUT_SECONDS,
        memory: int | None = None,
        most_waiting: int = MOST_WAITING,
        patience: float = math.inf,
    ) -> None:
        super().__init__(patience)
        self._timeout = timeout
        self._memory = memory
        self._most_waiting = most_waiting
        self.line = FairLock()
        """The queue for this machine's time, in which searches wait as well."""
        self._scratch = Scratch()
        self._spare: Worker | None = None
        self._spare_since = 0.0

    def submit(
        self,
        requests: Sequence[Request],
        labels: Sequence[str],
        finished: Finished | None = None,
        owner: str = "",
        *,
        replaces: bool = True,
    ) -> OrderStatus:
        """Queue an order and return at once. It replaces what its owner has waiting, unless told otherwise."""
        variants = tuple(Variant(*pair) for pair in zip(requests, labels, strict=True))
        with self._lock:
            self._check_open()
            self._tidy(time.monotonic())
            waiting = [order for order in self._jobs.values() if order.is_waiting]
            own = [order for order in waiting if owner and order.owner == owner]
            if len(own) >= MOST_OF_ONE and not replaces:
                raise Crowded(f"{len(own)} runs of yours wait already. Ask again when some of them are done.")
            others = {order.owner or order.status.id for order in waiting} - {owner}
            if len(others) >= self._most_waiting:
                raise Crowded(f"{len(others)} others wait for this device already. Try it again in some minutes.")
            order = Order(variants, self._scratch.new(), finished, owner)
            # Queued here, not in its thread: orders are served as they were placed, whichever thread begins first.
            order.place = self.line.of(owner)
            self.line.stand_in(order.place)
            self._start(order, self._carry_out)
        for replaced in own if replaces else ():
            self.leave(replaced.status.id)
        return order.status

    def leave(self, id: str, *, stops: bool = True) -> None:
        """Mark an order as abandoned and notify its listeners. Without `stops` it may still run to its end."""
        order = self._jobs.get(id)
        if order is not None:
            order.may_run_unseen = not stops
            order.set(is_left=True)
            if stops:
                order.stop()

    def warm_up(self) -> None:
        """Start a process ahead, since importing PyTorch takes seconds."""
        with self._lock:
            if self._closed.is_set() or (self._spare is not None and self._spare.is_alive):
                return
            self._drop_spare()
            self._spare = self._new_worker(Path(tempfile.gettempdir()))
            self._spare_since = time.monotonic()
            self._spare.warm_up()
            self._watch()

    def close(self) -> None:
        """End every process and delete every file."""
        with self._lock:
            self._closed.set()
        self.stop_all()
        for worker in [order.worker for order in list(self._jobs.values())]:
            if worker is not None:
                worker.kill()
        super().close()
        with self._lock:
            self._drop_spare()
            self._scratch.close()

    def _tidy(self, now: float) -> None:
        super()._tidy(now)
        if self._spare is not None and now - self._spare_since > _IDLE_SECONDS:
            self._drop_spare()

    def _carry_out(self, order: Order) -> None:
        phase, what = "", "cancelled"
        try:
            for number in range(len(order.status.variants)):
                turn = self.line.of(order.owner) if number else order.place
                with self.line.turn(
                    lambda before: order.set(before=before), order.stopped.is_set, place=turn
                ) as entered:
                    if not entered or order.stopped.is_set():
                        break
                    order.begin()
                    self._run_one(order, number)
        except (OSError, MemvizError) as error:
            phase, what = f"It could not be run here: {error}", "refused"
        except Exception as error:
            phase, what = f"It could not be run here: {type(error).__name__}: {error}", "exception"
            raise
        finally:
            order.end(phase or order.why, what)

    def _run_one(self, order: Order, number: int) -> None:
        """A measured run has a process of its own, with its settings set before CUDA starts; predictions share one."""
        request = order.status.variants[number].request
        order.change(number, state="running", phase="starting")
        if request.on == "predict":
            if not self._follow(order, number, self._take_spare(order.folder), keep=True, retry=True):
                self._follow(order, number, self._new_worker(order.folder), keep=True)
        elif is_zero_gpu():
            self._follow(order, number, ZeroGpuWorker(order.folder))
        else:
            self._follow(order, number, self._new_worker(order.folder, environment_of(request)))

    def _follow(self, order: Order, number: int, worker: AnyWorker, *, keep: bool = False, retry: bool = False) -> bool:
        """Return False for another try: the process, waiting since its last run, died before it began."""
        try:
            order.worker = worker
            if order.stopped.is_set():
                worker.cancel()
            for event in worker.run([order.status.variants[number].request], first=number):
                if event.what == "killed" and retry:
                    return False
                retry = False
                order.on_event(event)
        finally:
            order.worker = None
            self._give_back(worker, keep=keep and not order.stopped.is_set())
        return True

    def _take_spare(self, folder: Path) -> Worker:
        with self._lock:
            self._check_open()
            if self._spare is not None and not self._spare.is_alive:
                self._drop_spare()
            spare, self._spare = self._spare, None
        if spare is None:
            return self._new_worker(folder)
        spare.folder = folder
        return spare

    def _new_worker(self, folder: Path, environment: Mapping[str, str] | None = None) -> Worker:
        return Worker(folder, timeout=self._timeout, memory=self._memory, environment=environment)

    def _drop_spare(self) -> None:
        if self._spare is not None:
            self._spare.close()
            self._spare = None

    def _give_back(self, worker: AnyWorker, *, keep: bool) -> None:
        """Keep a process that predicted for the next prediction, up to a number: it has its imports."""
        if keep and isinstance(worker, Worker):
            worker.served += 1
            is_fit = worker.is_alive and worker.is_free and worker.served < _MOST_SERVED
            if is_fit and worker.resident_bytes <= _LARGEST_SPARE:
                with self._lock:
                    if not self._closed.is_set() and self._spare is None:
                        self._spare, self._spare_since = worker, time.monotonic()
                        return
        worker.close()
