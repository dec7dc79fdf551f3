"""Many files on one machine: Python's own process pool, which a file that ends its process does not stop."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from itertools import islice

from memviz.ranks.places import Place
from memviz.ranks.reduce_rank import reduce_rank
from memviz.ranks.row import FailedFile, Reduced

Reduce = Callable[[Place, str | None], Reduced]
_AHEAD = 2
"""Files handed out for each process. Few, so that few are suspected where one of them ends its process."""
_KILLED = "Reading it ended its process, as the system does with one that takes too much memory."


def processes_here() -> int:
    """As many as this process may use cores."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def reduced_here(
    places: Sequence[Place], device: str | None = None, *, processes: int | None = None, reduce: Reduce = reduce_rank
) -> Iterator[Reduced]:
    """As they become ready, in any order. `reduce` is a function that another process can import."""
    count = min(processes or processes_here(), len(places))
    if count <= 1:
        yield from (reduce(place, device) for place in places)
        return
    left = list(places)
    while left:
        suspects: list[Place] = []
        waiting = iter(left)
        yield from _until_broken(waiting, device, count, reduce, suspects)
        left = list(waiting)
        for place in suspects:
            # Alone in a process: then the one at fault is known.
            alone: list[Place] = []
            yield from _until_broken(iter([place]), device, 1, reduce, alone)
            yield from (FailedFile(one.address, _KILLED, one.etag, one.size) for one in alone)


def _until_broken(
    places: Iterator[Place], device: str | None, count: int, reduce: Reduce, suspects: list[Place]
) -> Iterator[Reduced]:
    """All of them; or until a process has ended, with the files that were under way then in `suspects`."""
    pool = ProcessPoolExecutor(count, mp_context=_context(), initializer=_begin)
    running: dict[Future[Reduced], Place] = {}
    try:
        _hand_out(pool, running, islice(places, count * _AHEAD), device, reduce)
        while running:
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            ended = [future for future in done if isinstance(future.exception(), BrokenProcessPool)]
            if ended:
                for future in done - set(ended):
                    yield future.result()
                    del running[future]
                suspects += running.values()
                return
            for future in done:
                del running[future]
                yield future.result()
            _hand_out(pool, running, islice(places, len(done)), device, reduce)
    finally:
        _stop(pool)


def _hand_out(
    pool: ProcessPoolExecutor,
    running: dict[Future[Reduced], Place],
    places: Iterable[Place],
    device: str | None,
    reduce: Reduce,
) -> None:
    for place in places:
        try:
            running[pool.submit(reduce, place, device)] = place
        except BrokenProcessPool as error:
            # It broke between two looks: told as those are that were under way.
            broken: Future[Reduced] = Future()
            broken.set_exception(error)
            running[broken] = place


def _stop(pool: ProcessPoolExecutor) -> None:
    """At once, also where whoever asked went away half way through a large file.

    Not by SIGTERM: a copy of this process that has not begun yet may hear it as its parent would, and go on. It would
    wait for ever then, where one that ended had its turn at the queue.
    """
    for process in list((getattr(pool, "_processes", None) or {}).values()):
        process.kill()
    # Of an answer half written the rest is waited for as long as anybody could write it, and this process could.
    writer = getattr(getattr(pool, "_result_queue", None), "_writer", None)
    if writer is not None:
        writer.close()
    pool.shutdown(wait=True, cancel_futures=True)


def _context() -> multiprocessing.context.BaseContext:
    """A copy of this process where that is safe: it has all imports done. A process with threads is not copied."""
    can_fork = sys.platform == "linux" and threading.active_count() == 1 and "torch" not in sys.modules
    return multiprocessing.get_context("fork" if can_fork else "spawn")


def _begin() -> None:
    """Ctrl-C reaches every process of a terminal; the one that asked says so, and ends the others."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Nobody else ends what waits for files where the one that asked was killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
