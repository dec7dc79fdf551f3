"""Queue of runs: one at a time on the device, in turn between visitors, with files in a locked scratch folder.

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
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import BinaryIO

from memviz.errors import MemvizError
from memviz.fair_lock import FairLock
from memviz.runner.jobs.limits import TIMEOUT_SECONDS
from memviz.runner.jobs.order import Finished, Order, OrderStatus, Variant
from memviz.runner.jobs.worker_process import AnyWorker, Worker, environment_of
from memviz.runner.jobs.zero_gpu import ZeroGpuWorker, is_zero_gpu
from memviz.runner.request import Request

_PREFIX = "memviz-runs-"
_LOCK = "lock"


class NoRoom(MemvizError):
    """The disk for temporary files is full, or nothing can be written to it."""


class Scratch:
    """Makes folders inside one of its own, which is made with the first of them."""

    def __init__(self, place: Path | None = None) -> None:
        self._place = place
        self._making = threading.Lock()
        self._root: Path | None = None
        self._held: BinaryIO | None = None

    def new(self) -> Path:
        try:
            with self._making:
                root = self._root or self._begin()
            return Path(tempfile.mkdtemp(dir=root))
        except OSError as error:
            words = f"Files of a run cannot be written to {self._where()} ({error.strerror or error})."
            raise NoRoom(f"{words} Make room there, or name another folder in TMPDIR.") from None

    def close(self) -> None:
        with self._making:
            if self._held is not None:
                self._held.close()
            if self._root is not None:
                shutil.rmtree(self._root, ignore_errors=True)
            self._root = self._held = None

    def _where(self) -> Path:
        return self._place or Path(tempfile.gettempdir())

    def _begin(self) -> Path:
        _sweep(self._where())
        root = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=self._where()))
        # What is in the way of the lock is in the way of sweeping only.
        with contextlib.suppress(OSError):
            self._held = (root / _LOCK).open("wb")
            _lock(self._held)
        self._root = root
        return root


def _sweep(place: Path) -> None:
    """Takes away what belongs to nobody any more."""
    for lock in place.glob(f"{_PREFIX}*/{_LOCK}"):
        with contextlib.suppress(OSError), lock.open("rb") as file:
            _lock(file)
            shutil.rmtree(lock.parent, ignore_errors=True)


def _lock(file: BinaryIO) -> None:
    """OSError where another process has it, or where the system has no such locks."""
    try:
        import fcntl
    except ImportError:
        raise OSError("This system has no such locks.") from None
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


MOST_WAITING = 32
"""People whose orders wait, at once."""
MOST_OF_ONE = 64
"""Orders of one of them that wait."""
_KEPT_ORDERS = 64
_KEPT_BYTES = 4 << 30
_KEPT_SECONDS = 6 * 3600.0
_MOST_SERVED = 200
_LARGEST_SPARE = 1 << 30
"""A process that holds more after its work is ended; a fresh one holds a third of it."""
_IDLE_SECONDS = 600.0
_PATIENCE_SECONDS = 5.0
_TICK_SECONDS = 1.0
_HOUSE_SECONDS = 30.0


class Crowded(MemvizError):
    """More people ask than can be served."""


class Closing(MemvizError):
    """The page is about to end."""


class Scheduler:
    """One for a page. An order is known by a key that nobody can guess."""

    def __init__(
        self,
        *,
        timeout: float = TIMEOUT_SECONDS,
        memory: int | None = None,
        most_waiting: int = MOST_WAITING,
        patience: float = math.inf,
    ) -> None:
        """An order that nobody asked after for the seconds of `patience` ends."""
        self._timeout = timeout
        self._memory = memory
        self._most_waiting = most_waiting
        self._patience = patience
        self._line = FairLock()
        self._lock = threading.Lock()
        self._orders: dict[str, Order] = {}
        self._scratch = Scratch()
        self._spare: Worker | None = None
        self._spare_since = self._tidy_at = 0.0
        self._closed = threading.Event()
        self._keeper: threading.Thread | None = None
        atexit.register(_close, weakref.ref(self))

    def submit(
        self,
        requests: Sequence[Request],
        labels: Sequence[str],
        finished: Finished | None = None,
        owner: str = "",
        *,
        beside: bool = False,
    ) -> OrderStatus:
        """Begins as soon as it is its turn; returns at once.

        What its owner has waiting makes room for it, unless it waits `beside` that.
        """
        variants = tuple(Variant(*pair) for pair in zip(requests, labels, strict=True))
        with self._lock:
            self._check_open()
            self._forget_old()
            mine = self._make_room(owner, beside)
            order = Order(variants, self._scratch.new(), finished, owner)
            self._orders[order.status.id] = order
            # The context says whose request this is; a Space counts the time of a lent GPU by it.
            context = contextvars.copy_context()
            order.thread = threading.Thread(target=context.run, args=(self._carry_out, order), daemon=True)
            # Here, and not in its thread: who asked first is first, whichever thread begins first.
            order.place = self._line.of(owner)
            self._line.stand_in(order.place)
            order.thread.start()
            self._watch()
        for replaced in mine:
            self.leave(replaced.status.id)
        return order.status

    def _make_room(self, owner: str, beside: bool) -> list[Order]:
        """Those that it takes the place of, where it may wait at all."""
        waiting = [order for order in self._orders.values() if order.is_waiting]
        mine = [order for order in waiting if owner and order.owner == owner]
        if len(mine) >= MOST_OF_ONE and beside:
            raise Crowded(f"{len(mine)} runs of yours wait already. Ask again when some of them are done.")
        others = {order.owner or order.status.id for order in waiting} - {owner}
        if len(others) >= self._most_waiting:
            raise Crowded(f"{len(others)} others wait for this device already. Try it again in some minutes.")
        return [] if beside else mine

    def _check_open(self) -> None:
        if self._closed.is_set():
            raise Closing("This page is about to end, and begins nothing more.")

    def status(self, id: str, *, newer_than: int = -1, wait: float = 0.0) -> OrderStatus | None:
        """Return the status of an order. Polling keeps it alive: orders that are not polled are ended."""
        order = self._orders.get(id)
        return None if order is None else order.wait(newer_than, wait)

    def newest_of(self, owner: str) -> OrderStatus | None:
        """So that somebody who comes back to the page finds what they left running."""
        theirs = [order for order in list(self._orders.values()) if owner and order.owner == owner]
        return theirs[-1].status if theirs else None

    @property
    def line(self) -> FairLock:
        """In which whoever else uses this machine's time stands too."""
        return self._line

    @property
    def is_busy(self) -> bool:
        return any(not order.status.is_over for order in list(self._orders.values()))

    def cancel(self, id: str) -> None:
        order = self._orders.get(id)
        if order is not None:
            _stop(order)

    def leave(self, id: str, *, stops: bool = True) -> None:
        """Mark an order as abandoned and notify its listeners. Without `stops` it may still run to its end."""
        order = self._orders.get(id)
        if order is not None:
            order.may_run_unseen = not stops
            order.set(is_left=True)
            if stops:
                _stop(order)

    def stop_all(self) -> None:
        for id in list(self._orders):
            self.cancel(id)

    def warm_up(self) -> None:
        """Starts a process ahead: importing PyTorch takes seconds that nobody then waits for."""
        with self._lock:
            if self._closed.is_set() or (self._spare is not None and self._spare.is_alive):
                return
            self._drop_spare()
            self._spare = self._new_worker(Path(tempfile.gettempdir()))
            self._spare_since = time.monotonic()
            self._spare.warm_up()
            self._watch()

    def close(self) -> None:
        """Ends every process and takes every file away."""
        with self._lock:
            self._closed.set()
        self.stop_all()
        orders = list(self._orders.values())
        for worker in [order.worker for order in orders]:
            if worker is not None:
                worker.kill()
        for thread in [*(order.thread for order in orders), self._keeper]:
            if thread is not None:
                thread.join(_PATIENCE_SECONDS)
        with self._lock:
            self._drop_spare()
            self._scratch.close()

    # -- what goes on by itself

    def _watch(self) -> None:
        """Holds nothing of this scheduler between two ticks, so that one which is forgotten goes."""
        if self._keeper is None:
            self._keeper = threading.Thread(target=_keep_house, args=(weakref.ref(self), self._closed), daemon=True)
            self._keeper.start()

    def tick(self, now: float) -> None:
        """Ends what nobody waits for, and gives back what nobody uses. `now` is of the monotonic clock."""
        for order in list(self._orders.values()):
            is_wanted = order.may_run_unseen or order.attention.missing(now) <= self._patience
            if not order.status.is_over and not is_wanted:
                order.unwanted = True
                _stop(order)
        if now < self._tidy_at:
            return
        self._tidy_at = now + _HOUSE_SECONDS
        with self._lock:
            self._forget_old(now)
            if self._spare is not None and now - self._spare_since > _IDLE_SECONDS:
                self._drop_spare()

    def _carry_out(self, order: Order) -> None:
        words, what = "Cancelled.", "cancelled"
        try:
            for number in range(len(order.status.variants)):
                turn = self._line.of(order.owner) if number else order.place
                with self._line.turn(partial(_wait_for, order), order.stopped.is_set, place=turn) as mine:
                    if not mine or order.stopped.is_set():
                        break
                    order.begin()
                    self._run_one(order, number)
        except (OSError, MemvizError) as error:
            words, what = f"It could not be run here: {error}", "refused"
        except Exception as error:
            # Whoever waits is told, whatever it is.
            words, what = f"It could not be run here: {type(error).__name__}: {error}", "exception"
            raise
        finally:
            order.end(words, what)

    def _run_one(self, order: Order, number: int) -> None:
        """A measured run has a process of its own, with its settings set before CUDA starts; predictions share one."""
        request = order.status.variants[number].request
        alone = request.on != "predict"
        order.change(number, state="running", phase="starting")
        worker = self._worker(order, request, alone)
        if not self._follow(order, number, worker, keep=not alone, again=not alone):
            self._follow(order, number, self._new_worker(order.folder), keep=not alone)

    def _follow(self, order: Order, number: int, worker: AnyWorker, *, keep: bool, again: bool = False) -> bool:
        """False where there shall be another try: the process, waiting since its last work, died before it began."""
        try:
            order.worker = worker
            if order.stopped.is_set():
                worker.cancel()
            for event in worker.run([order.status.variants[number].request], first=number):
                if event.what == "killed" and again:
                    return False
                again = False
                order.on_event(event)
        finally:
            order.worker = None
            self._give_back(worker, keep=keep and not order.stopped.is_set())
        return True

    def _worker(self, order: Order, request: Request, alone: bool) -> AnyWorker:
        if alone and is_zero_gpu():
            return ZeroGpuWorker(order.folder)
        if alone:
            return self._new_worker(order.folder, environment_of(request))
        with self._lock:
            self._check_open()
            if self._spare is not None and not self._spare.is_alive:
                self._drop_spare()
            spare, self._spare = self._spare, None
        if spare is None:
            return self._new_worker(order.folder)
        spare.folder = order.folder
        return spare

    def _new_worker(self, folder: Path, environment: Mapping[str, str] | None = None) -> Worker:
        return Worker(folder, timeout=self._timeout, memory=self._memory, environment=environment)

    def _drop_spare(self) -> None:
        if self._spare is not None:
            self._spare.close()
            self._spare = None

    def _give_back(self, worker: AnyWorker, *, keep: bool) -> None:
        """A process that predicted serves the next prediction too, up to a number; it keeps what it imported."""
        worker.served += 1
        keep = keep and worker.is_alive and worker.served < _MOST_SERVED
        if keep and isinstance(worker, Worker) and worker.is_free and worker.resident_bytes <= _LARGEST_SPARE:
            with self._lock:
                if not self._closed.is_set() and self._spare is None:
                    self._spare, self._spare_since = worker, time.monotonic()
                    return
        worker.close()

    def _forget_old(self, now: float | None = None) -> None:
        """The oldest of those that are over, beyond their number, their bytes or their time."""
        over = sorted((order for order in self._orders.values() if order.status.is_over), key=lambda order: order.made)
        held = sum(order.bytes_on_disk for order in over)
        old = (time.monotonic() if now is None else now) - _KEPT_SECONDS
        for order in over:
            if order.made >= old and len(self._orders) < _KEPT_ORDERS and held <= _KEPT_BYTES:
                break
            held -= order.bytes_on_disk
            del self._orders[order.status.id]
            order.forget()


def _wait_for(order: Order, before: int) -> None:
    order.set(before=before)


def _stop(order: Order) -> None:
    order.stopped.set()
    worker = order.worker
    if worker is not None:
        worker.cancel()


def _close(reference: weakref.ref[Scheduler]) -> None:
    scheduler = reference()
    if scheduler is not None:
        scheduler.close()


def _keep_house(reference: weakref.ref[Scheduler], closed: threading.Event) -> None:
    while not closed.wait(_TICK_SECONDS):
        scheduler = reference()
        if scheduler is None:
            return
        scheduler.tick(time.monotonic())
        del scheduler
