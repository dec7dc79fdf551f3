"""Takes orders for runs and says how they stand: one at a time on the device, whoever asks, in the order asked.

An order is a baseline and its variants. Its runs happen in a process of their own; a thread here listens to it and
keeps the newest `Standing`. However many orders somebody gives, one of theirs waits at most.
"""

from __future__ import annotations

import atexit
import contextvars
import tempfile
import threading
import time
import weakref
from collections.abc import Sequence
from pathlib import Path

from memviz.errors import MemvizError
from memviz.runner.lent import LentGpu
from memviz.runner.line import Line
from memviz.runner.process import TIMEOUT_SECONDS, Runs, Worker, environment_of
from memviz.runner.request import Request
from memviz.runner.scratch import Scratch
from memviz.runner.standing import Finished, Order, Standing, Variant
from memviz.runner.zero_gpu import is_zero_gpu

MOST_WAITING = 32
"""Orders, of all visitors together."""
_KEPT_ORDERS = 64
_KEPT_BYTES = 4 << 30
_KEPT_SECONDS = 6 * 3600.0
_MOST_SERVED = 50
_PATIENCE_SECONDS = 5.0


class Crowded(MemvizError):
    """More people ask than can be served."""


class Desk:
    """One for a page. An order is known by a key that nobody can guess."""

    def __init__(self, *, timeout: float = TIMEOUT_SECONDS, most_waiting: int = MOST_WAITING) -> None:
        self._timeout = timeout
        self._most_waiting = most_waiting
        self._line = Line()
        self._lock = threading.Lock()
        self._orders: dict[str, Order] = {}
        self._scratch = Scratch()
        self._spare: Worker | None = None
        atexit.register(_close, weakref.ref(self))

    def order(
        self, requests: Sequence[Request], labels: Sequence[str], finished: Finished | None = None, owner: str = ""
    ) -> Standing:
        """Begins as soon as the device is free; returns at once. What its owner has waiting makes room for it."""
        variants = tuple(Variant(*each) for each in zip(requests, labels, strict=True))
        with self._lock:
            self._forget_old()
            waiting = [each for each in self._orders.values() if each.is_waiting]
            mine = [each for each in waiting if owner and each.owner == owner]
            if len(waiting) - len(mine) >= self._most_waiting:
                raise Crowded(f"{len(waiting)} others wait for this device already. Try it again in some minutes.")
            order = Order(variants, self._scratch.new(), finished, owner)
            self._orders[order.standing.id] = order
        for each in mine:
            self.leave(each.standing.id)
        # The context says whose request this is; a Space counts the time of a lent GPU by it.
        context = contextvars.copy_context()
        order.thread = threading.Thread(target=context.run, args=(self._carry_out, order), daemon=True)
        order.thread.start()
        return order.standing

    def standing(self, id: str, *, newer_than: int = -1, wait: float = 0.0) -> Standing | None:
        order = self._orders.get(id)
        return None if order is None else order.wait(newer_than, wait)

    def newest_of(self, owner: str) -> Standing | None:
        """So that somebody who comes back to the page finds what they left running."""
        theirs = [each for each in list(self._orders.values()) if owner and each.owner == owner]
        return theirs[-1].standing if theirs else None

    @property
    def is_busy(self) -> bool:
        return any(not each.standing.is_over for each in list(self._orders.values()))

    def cancel(self, id: str) -> None:
        order = self._orders.get(id)
        if order is not None:
            _stop(order)

    def leave(self, id: str, *, stops: bool = True) -> None:
        """Nobody looks at it any more; whoever listens is told so. It may still run to its end."""
        order = self._orders.get(id)
        if order is not None:
            order.set(is_left=True)
            if stops:
                _stop(order)

    def stop_all(self) -> None:
        for id in list(self._orders):
            self.cancel(id)

    def warm_up(self) -> None:
        """Starts a process ahead: importing PyTorch takes seconds that nobody then waits for."""
        with self._lock:
            if self._spare is None or not self._spare.is_alive:
                self._drop_spare()
                self._spare = Worker(Path(tempfile.gettempdir()), timeout=self._timeout)
                self._spare.warm_up()

    def close(self) -> None:
        """Ends every process and takes every file away."""
        self.stop_all()
        orders = list(self._orders.values())
        for worker in [each.worker for each in orders]:
            if worker is not None:
                worker.kill()
        for thread in [each.thread for each in orders]:
            if thread is not None:
                thread.join(_PATIENCE_SECONDS)
        with self._lock:
            self._drop_spare()
            self._scratch.close()

    def _carry_out(self, order: Order) -> None:
        words, what = "Cancelled.", "cancelled"
        try:
            with self._line.turn(lambda count: order.set(before=count), order.stopped.is_set) as mine:
                if mine:
                    order.begin()
                    self._run_all(order)
        except (OSError, MemvizError) as error:
            words, what = f"It could not be run here: {error}", "refused"
        finally:
            order.end(words, what)

    def _run_all(self, order: Order) -> None:
        """Predictions share a process. A measured run has one of its own, with its settings set before CUDA starts."""
        number = 0
        requests = [each.request for each in order.standing.variants]
        while number < len(requests) and not order.stopped.is_set():
            alone = requests[number].on != "predict"
            batch = requests[number : number + 1] if alone else requests[number:]
            if not alone:
                batch = batch[: next((at for at, each in enumerate(batch) if each.on != "predict"), len(batch))]
            order.change(number, state="running", phase="starting")
            worker = self._worker(order, batch[0], alone)
            try:
                order.worker = worker
                if order.stopped.is_set():
                    worker.cancel()
                for each in worker.run(batch, first=number):
                    order.heard(each)
            finally:
                order.worker = None
                self._give_back(worker, keep=not alone and not order.stopped.is_set())
            number = self._next(order, number + len(batch))

    @staticmethod
    def _next(order: Order, after: int) -> int:
        """A process that died took those behind it along; they get another one."""
        left = [at for at, each in enumerate(order.standing.variants[:after]) if each.what == "not begun"]
        for number in left:
            order.change(number, what="")
        return left[0] if left else after

    def _worker(self, order: Order, request: Request, alone: bool) -> Runs:
        if alone and is_zero_gpu():
            return LentGpu(order.folder)
        if alone:
            return Worker(order.folder, timeout=self._timeout, environment=environment_of(request))
        with self._lock:
            if self._spare is not None and not self._spare.is_alive:
                self._drop_spare()
            spare, self._spare = self._spare, None
        if spare is None:
            return Worker(order.folder, timeout=self._timeout)
        spare.folder = order.folder
        return spare

    def _drop_spare(self) -> None:
        if self._spare is not None:
            self._spare.close()
            self._spare = None

    def _give_back(self, worker: Runs, *, keep: bool) -> None:
        """A process that predicted serves the next prediction too, up to a number; it keeps what it imported."""
        worker.served += 1
        with self._lock:
            if keep and isinstance(worker, Worker) and worker.is_alive and worker.served < _MOST_SERVED:
                older, self._spare = self._spare, worker
                if older is None:
                    return
                worker = older
        worker.close()

    def _forget_old(self) -> None:
        """The oldest of those that are over, beyond their number, their bytes or their time."""
        over = sorted((each for each in self._orders.values() if each.standing.is_over), key=lambda each: each.made)
        held = sum(each.bytes_on_disk for each in over)
        old = time.monotonic() - _KEPT_SECONDS
        for each in over:
            if each.made >= old and len(self._orders) < _KEPT_ORDERS and held <= _KEPT_BYTES:
                break
            held -= each.bytes_on_disk
            del self._orders[each.standing.id]
            each.forget()


def _stop(order: Order) -> None:
    order.stopped.set()
    worker = order.worker
    if worker is not None:
        worker.cancel()


def _close(desk: weakref.ref[Desk]) -> None:
    found = desk()
    if found is not None:
        found.close()
