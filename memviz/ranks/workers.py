"""Many files read at once: in processes of this machine, or on the workers of a Dask scheduler.

A file that ends its process does not stop the others. Dask workers need only Python and numpy: the light parts of
memviz, some 200 KB, are sent with the question unless the same version is installed there. Places are opened where
the workers are, so a folder must be visible to them too.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any

from memviz.dask_client import by_value, dask_client
from memviz.errors import UsageError, first_line
from memviz.ranks.places import Place
from memviz.ranks.reduce_rank import reduce_rank
from memviz.ranks.row import FailedFile, Reduced

Reduce = Callable[[Place, str | None], Reduced]
_AHEAD = 2
"""Files handed out for each process. Few, so that few are suspected where one of them ends its process."""
_KILLED_PROCESS = "Reading it ended its process, as the system does with one that takes too much memory."


def processes_here() -> int:
    """Return the number of CPU cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def reduced_here(
    places: Sequence[Place], device: str | None = None, *, processes: int | None = None, reduce: Reduce = reduce_rank
) -> Iterator[Reduced]:
    """Yield rows as they become ready, in any order. `reduce` must be importable in another process."""
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
            yield from (FailedFile(one.address, _KILLED_PROCESS, one.etag, one.size) for one in alone)


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
    """Exit when the parent process does: idle workers would otherwise outlive a parent that was killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


Task = Callable[[str, str, int, str | None], Reduced]
_PARTS = ("__init__.py", "memory.py", "errors.py", "units.py", "trace", "analysis", "ranks")
_AHEAD_PER_THREAD = 4
"""Files handed out for each thread of a worker: none waits for the next, and a scheduler never holds them all."""
_KILLED_WORKERS = "Reading it ended the workers that tried, one after the other."


def read_rank(address: str, etag: str, size: int, device: str | None) -> Reduced:
    """Reduce one file on a worker. The function is sent as code, since the scheduler may not have memviz."""
    from memviz.ranks.places import Place
    from memviz.ranks.reduce_rank import reduce_rank

    return reduce_rank(Place(address, etag, size), device)


def reduced_there(
    places: Sequence[Place], address: str, device: str | None = None, *, task: Task = read_rank
) -> Iterator[Reduced]:
    """Yield rows as they become ready, in any order."""
    if not places:
        return
    with dask_client(address) as client, _our_code(client):
        yield from _results_of_workers(client, places, device, by_value(task))


@contextmanager
def _our_code(client: Any) -> Iterator[None]:
    """On every worker, and on those that come later; unless they have the same already."""
    from distributed.diagnostics.plugin import UploadFile

    files = _light_files()
    digest = _digest(files)
    if all(client.run(by_value(_installed), _PARTS, digest).values()):
        yield
        return
    name = f"memviz-{digest}"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.zip"
        _pack(path, files)
        try:
            client.register_plugin(UploadFile(str(path)), name=name)
        except Exception as error:
            # Whatever a worker raises comes back as it is.
            raise UsageError(f"The workers cannot take what they need to read ({first_line(error)}).") from None
    try:
        yield
    finally:
        with suppress(Exception):
            client.unregister_worker_plugin(name)


def _installed(parts: Sequence[str], digest: str) -> bool:
    """On a worker: whether what is installed there is what would be sent. Travels as code, as `read_rank` does."""
    import hashlib
    import importlib.util
    from pathlib import Path

    spec = importlib.util.find_spec("memviz")
    if spec is None or spec.origin is None or not Path(spec.origin).is_file():
        return False
    package = Path(spec.origin).parent
    files = [path for part in parts for path in sorted([package / part, *(package / part).rglob("*.py")])]
    contents = [path.read_bytes() for path in files if path.suffix == ".py" and path.is_file()]
    return hashlib.sha256(b"".join(contents)).hexdigest()[:16] == digest


def _light_files() -> list[tuple[str, bytes]]:
    package = Path(__file__).parents[1]
    files = [path for part in _PARTS for path in sorted([package / part, *(package / part).rglob("*.py")])]
    return [(path.relative_to(package.parent).as_posix(), path.read_bytes()) for path in files if path.suffix == ".py"]


def _digest(files: Sequence[tuple[str, bytes]]) -> str:
    return hashlib.sha256(b"".join(content for _, content in files)).hexdigest()[:16]


def _pack(path: Path, files: Sequence[tuple[str, bytes]]) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, content in files:
            packed.writestr(name, content)


def _results_of_workers(client: Any, places: Sequence[Place], device: str | None, task: Any) -> Iterator[Reduced]:
    threads = max(sum(client.nthreads().values()), 1)
    suspects: list[Place] = []
    yield from _side_by_side(client, places, device, task, many=threads * _AHEAD_PER_THREAD, suspects=suspects)
    for place in suspects:
        # Alone: what a worker was given beside the one that ended it is suspected by Dask as well.
        alone: list[Place] = []
        yield from _side_by_side(client, [place], device, task, many=1, suspects=alone)
        yield from (FailedFile(one.address, _KILLED_WORKERS, one.etag, one.size) for one in alone)


def _side_by_side(
    client: Any, places: Sequence[Place], device: str | None, task: Any, *, many: int, suspects: list[Place]
) -> Iterator[Reduced]:
    """So many of them under way at a time; those with which workers died end in `suspects`."""
    from distributed import as_completed
    from distributed.scheduler import KilledWorker

    waiting = iter(places)
    place_of = {}

    def submitted(count: int) -> list[Any]:
        futures = []
        for place in islice(waiting, count):
            future = client.submit(task, place.address, place.etag, place.size, device, pure=False)
            place_of[future.key] = place
            futures.append(future)
        return futures

    under_way = as_completed(submitted(many), loop=client.loop)
    for future in under_way:
        place = place_of.pop(future.key)
        try:
            yield _result(future)
        except KilledWorker:
            suspects.append(place)
        future.release()
        for another in submitted(1):
            under_way.add(another)


def _result(future: Any) -> Reduced:
    from distributed import CancelledError

    try:
        row: Reduced = future.result()
    except CancelledError:
        raise UsageError("The scheduler has gone, or has cancelled what it was asked.") from None
    except ImportError as error:
        raise UsageError(f"The workers cannot read snapshots ({first_line(error)}); they need numpy.") from None
    return row
