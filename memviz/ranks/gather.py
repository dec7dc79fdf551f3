"""Summarize the snapshots of many ranks, read in local processes, on Dask workers or from a table.

Many files are read at once, and a file that ends its process does not stop the others. Dask workers need only Python
and numpy: the light parts of memviz, some 200 KB, are sent with the question unless the same version is installed
there. Places are opened where the workers are, so a folder must be visible to them too.
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
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from memviz.dask_client import by_value, dask_client
from memviz.errors import UsageError, first_line
from memviz.mesh import sizes_of
from memviz.ranks.numbers import check_room, mesh_sizes_in_folders, sizes_text
from memviz.ranks.places import Place, places_of
from memviz.ranks.reduce_rank import reduce_rank
from memviz.ranks.row import FailedFile, Reduced
from memviz.ranks.summary import RankSummary, summarize_ranks
from memviz.ranks.table import ENDING, RankTable, RowFile, read_table

Progress = Callable[[int, int], None]
"""Files read so far, of how many."""


@dataclass(frozen=True)
class Gathering:
    """A request to gather rows of ranks."""

    places: tuple[str, ...]
    """Or a single table of rows."""
    device: str | None = None
    output: Path | None = None
    processes: int | None = None
    scheduler: str | None = None
    """Address of a Dask scheduler whose workers read the files instead of this process."""
    mesh: str = ""
    """Sizes, as in `memviz/mesh.py`; without them those of a `mesh.json` beside the files."""


def gather_ranks(wanted: Gathering, *, progress: Progress | None = None) -> RankSummary:
    if len(wanted.places) == 1 and wanted.places[0].endswith(ENDING):
        table = _read_table_file(wanted)
        mesh = wanted.mesh or table.mesh
        return summarize_ranks(table.rows, sizes_of(mesh) if mesh else None)
    table_beside = next((place for place in wanted.places if place.endswith(ENDING)), None)
    if table_beside is not None:
        raise UsageError(f"{table_beside} is a table of ranks. Name it alone, or after -o to continue it.")
    sizes = sizes_of(wanted.mesh) if wanted.mesh else mesh_sizes_in_folders(wanted.places)
    row_file = None if wanted.output is None else RowFile(wanted.output, wanted.device, sizes_text(sizes))
    places = places_of(wanted.places)
    check_room([place.address for place in places], sizes)
    rows = _read(places, wanted, row_file)
    return summarize_ranks(_counted(rows if row_file is None else row_file.keeping(rows), len(places), progress), sizes)


def _read_table_file(wanted: Gathering) -> RankTable:
    table = read_table(Path(wanted.places[0]))
    if wanted.device not in (None, table.device):
        raise UsageError(f"{wanted.places[0]} holds rows of another device. Read the snapshots again for this one.")
    if wanted.output is not None:
        raise UsageError(f"{wanted.places[0]} is already a table of ranks. Name the snapshots to write another one.")
    return table


def _read(places: Sequence[Place], wanted: Gathering, row_file: RowFile | None) -> Iterator[Reduced]:
    """Yield known rows first, so that an interruption loses none of them."""
    known = [] if row_file is None else [row for place in places if (row := row_file.known(place)) is not None]
    yield from known
    read_before = {row.place for row in known}
    left = [place for place in places if place.address not in read_before]
    if wanted.scheduler is not None:
        yield from reduce_on_dask(left, wanted.scheduler, wanted.device)
    else:
        yield from reduce_here(left, wanted.device, processes=wanted.processes)


def _counted(rows: Iterator[Reduced], total: int, progress: Progress | None) -> Iterator[Reduced]:
    for done, row in enumerate(rows, start=1):
        if progress is not None:
            progress(done, total)
        yield row


Submit = Callable[[Place], "Future[Reduced]"]


def _reduce(
    open_workers: Callable[[int], AbstractContextManager[Submit]],
    places: Sequence[Place],
    *,
    at_once: int,
    killed: type[Exception],
    reason: str,
) -> Iterator[Reduced]:
    """Yield rows as they become ready, in any order. `killed` is raised where a process ended under way."""
    left = list(places)
    while left:
        suspects: list[Place] = []
        waiting = iter(left)
        with open_workers(at_once) as submit:
            yield from _until_killed(submit, waiting, at_once, killed, suspects)
        left = list(waiting)
        for place in suspects:
            # Alone in a process: then the one at fault is known.
            alone: list[Place] = []
            with open_workers(1) as submit:
                yield from _until_killed(submit, iter([place]), 1, killed, alone)
            yield from (FailedFile(one.address, reason, one.etag, one.size) for one in alone)


def _until_killed(
    submit: Submit, places: Iterator[Place], at_once: int, killed: type[Exception], suspects: list[Place]
) -> Iterator[Reduced]:
    """Yield rows until a process is killed; the files that it may have been reading are put into `suspects`."""
    running: dict[Future[Reduced], Place] = {}

    def hand_out(count: int) -> None:
        for place in islice(places, count):
            try:
                running[submit(place)] = place
            except killed:
                suspects.append(place)

    hand_out(at_once)
    while running:
        done, _ = wait(running, return_when=FIRST_COMPLETED)
        for future in done:
            place = running.pop(future)
            try:
                yield future.result()
            except killed:
                suspects.append(place)
        if not suspects:
            hand_out(len(done))


Reduce = Callable[[Place, str | None], Reduced]
_AHEAD = 2
"""Files handed out for each process. Few, so that few are suspected where one of them ends its process."""
_KILLED_PROCESS = "The process that read it was killed, probably for lack of memory."


def reduce_here(
    places: Sequence[Place], device: str | None = None, *, processes: int | None = None, reduce: Reduce = reduce_rank
) -> Iterator[Reduced]:
    """Reduce files in processes of this machine. `reduce` must be importable in another process."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    count = min(processes or cores, len(places))
    if count <= 1:
        yield from (reduce(place, device) for place in places)
        return

    @contextmanager
    def open_pool(at_once: int) -> Iterator[Submit]:
        can_fork = sys.platform == "linux" and threading.active_count() == 1 and "torch" not in sys.modules
        # A fork saves the imports, and is safe in a process without other threads.
        context = multiprocessing.get_context("fork" if can_fork else "spawn")
        pool = ProcessPoolExecutor(min(count, at_once), mp_context=context, initializer=_begin)
        try:
            yield lambda place: pool.submit(reduce, place, device)
        finally:
            _stop(pool)

    yield from _reduce(open_pool, places, at_once=count * _AHEAD, killed=BrokenProcessPool, reason=_KILLED_PROCESS)


def _stop(pool: ProcessPoolExecutor) -> None:
    """End the processes at once, even in the middle of a large file.

    Not by SIGTERM: a copy of this process that has not begun yet may hear it as its parent would, and go on. It would
    wait for ever then, where one that ended had its turn at the queue.
    """
    for process in list((getattr(pool, "_processes", None) or {}).values()):
        process.kill()
    # Of an answer half written the rest is waited for as long as any process could write it, and this one could.
    writer = getattr(getattr(pool, "_result_queue", None), "_writer", None)
    if writer is not None:
        writer.close()
    pool.shutdown(wait=True, cancel_futures=True)


def _begin() -> None:
    """Initialize a worker: Ctrl-C reaches all processes of a terminal, and the parent handles it for them."""
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
_KILLED_WORKERS = "Every worker that read it was killed."


def read_rank(address: str, etag: str, size: int, device: str | None) -> Reduced:
    """Reduce one file on a worker. The function is sent as code, since the scheduler may not have memviz."""
    from memviz.ranks.places import Place
    from memviz.ranks.reduce_rank import reduce_rank

    return reduce_rank(Place(address, etag, size), device)


def reduce_on_dask(
    places: Sequence[Place], address: str, device: str | None = None, *, task: Task = read_rank
) -> Iterator[Reduced]:
    if not places:
        return
    with dask_client(address) as client, _memviz_on_workers(client):
        from distributed.scheduler import KilledWorker

        executor, there = client.get_executor(pure=False), by_value(task)

        @contextmanager
        def open_workers(_: int) -> Iterator[Submit]:
            yield lambda place: executor.submit(there, place.address, place.etag, place.size, device)

        at_once = max(sum(client.nthreads().values()), 1) * _AHEAD_PER_THREAD
        try:
            yield from _reduce(open_workers, places, at_once=at_once, killed=KilledWorker, reason=_KILLED_WORKERS)
        except CancelledError:
            raise UsageError("The scheduler is gone or cancelled the request.") from None
        except ImportError as error:
            raise UsageError(f"The workers cannot read snapshots ({first_line(error)}); they need numpy.") from None


@contextmanager
def _memviz_on_workers(client: Any) -> Iterator[None]:
    """Send the parts without heavy dependencies to current and later workers, unless all have the same code."""
    from distributed.diagnostics.plugin import UploadFile

    files = _light_files()
    digest = hashlib.sha256(b"".join(content for _, content in files)).hexdigest()[:16]
    if all(client.run(by_value(_has_same_code), _PARTS, digest).values()):
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
            raise UsageError(f"The workers cannot load the reader ({first_line(error)}).") from None
    try:
        yield
    finally:
        with suppress(Exception):
            client.unregister_worker_plugin(name)


def _pack(path: Path, files: Sequence[tuple[str, bytes]]) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, content in files:
            packed.writestr(name, content)


def _has_same_code(parts: Sequence[str], digest: str) -> bool:
    """Return, on a worker, whether its installed memviz equals the one to send. Sent as code, like `read_rank`."""
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
