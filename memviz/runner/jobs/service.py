"""Jobs of a page with a status to poll: orders of runs, one at a time in turn between visitors, and searches."""

from __future__ import annotations

import atexit
import contextlib
import contextvars
import json
import math
import secrets
import shutil
import subprocess
import tempfile
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, Generic, Literal, TypeVar

from memviz.errors import MemvizError
from memviz.fair_lock import FairLock, Turn
from memviz.runner.jobs.limits import MEMORY, TIMEOUT_SECONDS, end_tree, lower_priority, most_bytes
from memviz.runner.jobs.worker_process import (
    RunEvent,
    Worker,
    close_streams,
    environment_of,
    send_line,
    start_module,
    takes_more,
    too_much,
)
from memviz.runner.jobs.zero_gpu import ZeroGpuWorker, is_zero_gpu
from memviz.runner.request import Request, Run

CANCELLED = "Cancelled."
UNPOLLED = "Cancelled, because the page that requested it was closed."
AnyWorker = Worker | ZeroGpuWorker
"""Executor of requests, in order: a subprocess or a lent GPU."""


Status = TypeVar("Status", bound="OrderStatus | SearchStatus")


def new_id() -> str:
    """Return an id that cannot be guessed: it grants access to the job."""
    return secrets.token_urlsafe(18)


class Job(Generic[Status]):
    """A running job: changed by its own thread, read by any."""

    def __init__(self, status: Status, owner: str) -> None:
        self.owner = owner
        self.made = time.monotonic()
        self.began: float | None = None
        self.stopped = threading.Event()
        self.why = ""
        """Why it was stopped."""
        self.thread: threading.Thread | None = None
        self._changed = threading.Condition()
        self._status = status
        self._pollers = 0
        self._polled = time.monotonic()
        self.patience = math.inf
        """Seconds without a poll after which it ends, until the next poll."""

    @property
    def status(self) -> Status:
        status = self._status
        return status if self.began is None or status.is_over else self._with_times(status)

    def wait(self, version: int, seconds: float) -> Status:
        """Return the status as soon as it is newer than `version`."""
        with self._changed:
            self._pollers += 1
            try:
                self._changed.wait_for(lambda: self._status.version > version, timeout=seconds)
            finally:
                self._pollers -= 1
                self._polled = time.monotonic()
                self.patience = math.inf
        return self.status

    def unpolled_seconds(self, now: float) -> float:
        """Time since a client last polled. A pending long poll counts, however late a busy machine wakes it."""
        with self._changed:
            return 0.0 if self._pollers else now - self._polled

    def set(self, **changes: Any) -> None:
        with self._changed:
            version = self._status.version + 1
            self._status = replace(self._with_times(self._status), version=version, **changes)
            self._changed.notify_all()

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

    def _with_times(self, status: Status) -> Status:
        return replace(status, seconds=0.0 if self.began is None else time.monotonic() - self.began)


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
    is_pinned: bool = False
    """True if it stays on the page while the form changes."""

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
        self.left_at: float | None = None
        """When its owner left it to end by itself."""

    @property
    def is_waiting(self) -> bool:
        return self.began is None and not self.stopped.is_set() and not self._status.is_over

    def interrupt(self) -> None:
        worker = self.worker
        if worker is not None:
            worker.cancel()

    def check(self) -> None:
        if self.left_at is not None and time.monotonic() - self.left_at > _LEFT_SECONDS:
            self.stop()

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
        """Save the run before the status is set to done, so that a client can load it right then."""
        done: dict[str, Any] = {"state": "done", "phase": "", "run": event.run, "file": event.file}
        variant = replace(self._status.variants[event.number], **done, amiss=event.text)
        problem = "" if self.finished is None else self.finished(variant)
        self.change(event.number, **done, amiss=" ".join(filter(None, (event.text, problem))))

    def end(self, phase: str, what: str) -> None:
        for number, variant in enumerate(self._status.variants):
            if not variant.is_over:
                self.change(number, state="failed", phase=phase, what=what)

    @property
    def bytes_on_disk(self) -> int:
        return sum(path.stat().st_size for path in self.folder.glob("*") if path.is_file())

    def forget(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


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
            message = f"Files of a run cannot be written to {parent} ({error.strerror or error})."
            raise NoRoom(f"{message} Make room there, or name another folder in TMPDIR.") from None

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
_LEFT_SECONDS = 3.0
"""Time in which a run may end whose order was left: a new process takes as long to start."""
_TICK_SECONDS = 1.0
RELOAD_SECONDS = 15.0
"""Time that a page may take until it asks again for what it had under way."""
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

    def cancel(self, id: str) -> None:
        job = self._jobs.get(id)
        if job is not None:
            job.stop()

    def release(self, id: str) -> None:
        """End a job soon whose page was closed, unless a page polls it again: closed and reloaded look alike."""
        job = self._jobs.get(id)
        if job is not None:
            job.patience = RELOAD_SECONDS

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
            if job.unpolled_seconds(now) <= min(self._patience, job.patience):
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
        # The context identifies the user; a Space counts the time of a lent GPU by it.
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
            raise Closing("This server is shutting down and starts no more runs.")

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
    if (jobs := reference()) is not None:
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
        is_background: bool = False,
    ) -> None:
        """Processes of the background yield to others, and write no trace but that of an output check."""
        super().__init__(patience)
        self._timeout = timeout
        self._memory = memory
        self._most_waiting = most_waiting
        self._is_background = is_background
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
        known: Sequence[Variant | None] = (),
    ) -> OrderStatus:
        """Queue an order and return at once. By default it replaces waiting orders of the same owner.

        Where `known` has a variant of a request, that is its result, or its figures until it has run.
        """
        made = known or [None] * len(requests)
        variants = tuple(
            Variant(request, label) if variant is None else replace(variant, request=request, label=label)
            for request, label, variant in zip(requests, labels, made, strict=True)
        )
        with self._lock:
            self._check_open()
            self._tidy(time.monotonic())
            waiting = [order for order in self._jobs.values() if order.is_waiting]
            own = [order for order in waiting if owner and order.owner == owner]
            if len(own) >= MOST_OF_ONE and not replaces:
                raise Crowded(f"{len(own)} of your runs are already waiting. Try again when some of them are done.")
            others = {order.owner or order.status.id for order in waiting} - {owner}
            if len(others) >= self._most_waiting:
                raise Crowded(f"{len(others)} other runs already wait for this device. Try again in a few minutes.")
            order = Order(variants, self._scratch.new(), finished, owner)
            if not order.status.is_over:
                # Queued here, not in its thread: orders are served as they were placed, whichever thread begins first.
                order.place = self.line.of(owner)
                self.line.enqueue(order.place)
            self._start(order, self._carry_out)
        for replaced in own if replaces else ():
            self.leave(replaced.status.id)
        return order.status

    def leave(self, id: str, *, stops: bool = True) -> None:
        """Mark an order as abandoned and notify its listeners.

        Without `stops` what runs may end, if that takes seconds only: its process then serves the next order.
        """
        order = self._jobs.get(id)
        if order is not None and not order.status.is_over:
            order.left_at = None if stops else time.monotonic()
            order.set(is_left=True)
            if stops or order.is_waiting:
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
            pending = [number for number, variant in enumerate(order.status.variants) if not variant.is_over]
            for number in pending:
                turn = order.place if number == pending[0] else self.line.of(order.owner)
                with self.line.turn(
                    lambda before: order.set(before=before), order.stopped.is_set, place=turn
                ) as entered:
                    if not entered or order.stopped.is_set() or order.left_at is not None:
                        break
                    order.began = order.began or time.monotonic()
                    order.set(before=0)
                    self._run_one(order, number)
        except (OSError, MemvizError) as error:
            phase, what = f"The run could not start: {error}", "refused"
        except Exception as error:
            phase, what = f"The run could not start: {type(error).__name__}: {error}", "exception"
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
            request = order.status.variants[number].request
            figures_only = self._is_background and request.on == "predict" and not request.numerics
            for event in worker.run([request], first=number, figures_only=figures_only):
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
        worker = Worker(folder, timeout=self._timeout, memory=self._memory, environment=environment)
        if self._is_background:
            lower_priority(worker.pid)
        return worker

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


MODULE = "memviz.runner.fit.fit"
MOST_AT_ONCE = 8
TIME_LIMIT = 600.0
"""Seconds of a search on the page, waiting included, as of `fit --time-limit 10m`."""
_NEWEST, _LEAST_TIMED = 24, 4
"""Predictions whose pace counts: some of them come in pairs, the second of which is a replay."""
_LEAST_SECONDS = 2.0
"""Cached answers are immediate, so they do not count towards the pace."""


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
    time_limit: float | None = None
    """Seconds after which the search ends with what was found."""

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


class Searches(Jobs["SearchJob", SearchStatus]):
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
        """Begin at once, and cancel what its owner has running."""
        with self._lock:
            self._check_open()
            self._tidy(time.monotonic())
            running = [search for search in self._jobs.values() if not search.status.is_over]
            own = [search for search in running if search.owner == owner]
            if len(running) - len(own) >= self._most:
                raise Crowded(f"{self._most} other searches are running. Try again in a few minutes.")
            for search in own:
                search.stop("Replaced by another search.")
            search = SearchJob(order, owner, self._line, self._seconds, self._memory)
            self._start(search, SearchJob.run)
        return search.status


class SearchJob(Job[SearchStatus]):
    def __init__(self, order: SearchOrder, owner: str, line: FairLock, most_seconds: float, memory: int) -> None:
        super().__init__(SearchStatus(new_id(), order, time_limit=TIME_LIMIT), owner)
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
            failed = f"The search could not start: {error}"
        finally:
            if not self._status.is_over:
                self.set(failed=self.why or failed or "Its process ended without a result.")

    def _follow(self, process: subprocess.Popen[str], turn: ExitStack) -> None:
        assert process.stdout is not None
        order = self._status.order
        first = {"request": order.request.as_json(), "keep": order.keep, "largest": order.largest, "grid": order.grid}
        send_line(process, {**first, "seconds": self._most_seconds, "time_limit": self._status.time_limit})
        if self.stopped.is_set():
            return
        for line in process.stdout:
            with suppress(ValueError):
                message = json.loads(line)
                if message["kind"] == "turn":
                    wait = self._line.turn(
                        lambda before: self.set(before=before), self.stopped.is_set, owner=self.owner
                    )
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
