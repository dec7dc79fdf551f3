"""Many ranks: CPU time and memory per rank, the time of a thousand, and the cost of Dask compared to the plain pool.

    python -m tests.benchmarks.ranks FILE [--ranks 1024] [--scheduler-file LARGE] [--scheduler-ranks 64] [--write]

FILE is one rank's snapshot; every rank is a link to it, but for one that keeps 512 MiB more, which has to be detected
as the only outlier. Links share the page cache, so that no disk is measured. The pool and the cluster, two processes
each, take turns on the same files. With --write the table goes into README.md.
"""

import argparse
import os
import pickle
import platform
import resource
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path

from memviz.ranks.gather import reduce_here, reduce_on_dask
from memviz.ranks.places import Place, places_of
from memviz.ranks.row import Reduced
from memviz.ranks.summary import summarize_ranks
from memviz.trace.load import load_trace
from tests.benchmarks.readme import README, write_table
from tests.traces import MiB, alloc, frame

PLANTED_BYTES = 512 * MiB
_AT = 517 / 1024
_PROCESSES = 2


def main() -> None:
    args = _arguments()
    with tempfile.TemporaryDirectory(dir=args.file.parent) as folder:
        rows = _of_the_pool(args.file, Path(folder), args.ranks)
        if args.scheduler_file is not None:
            rows += _of_dask(args.scheduler_file, Path(folder), args.scheduler_ranks)
    where = f"{platform.python_implementation()} {platform.python_version()}, {os.cpu_count()} cores"
    heads = [
        f"Measured on {date.today():%-d %B %Y}, {where}, {platform.system()}.",
        "",
        "| what | figure |",
        "|---|---|",
    ]
    table = "\n".join([*heads, *(f"| {what} | {figure} |" for what, figure in rows)])
    print(table)
    if args.write:
        write_table("ranks", table)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.ranks", description=__doc__.split("\n\n")[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--scheduler-file", type=Path, help="larger: Dask is for those who outgrow one machine")
    parser.add_argument("--scheduler-ranks", type=int, default=64)
    parser.add_argument("--write", action="store_true", help=f"into {README.name}")
    return parser.parse_args()


def _of_the_pool(file: Path, folder: Path, count: int) -> list[tuple[str, str]]:
    places, planted = _job(file, folder / "pool", count)
    events = load_trace(file).event_count
    rows, seconds = _timed(lambda: list(reduce_here(places, processes=_PROCESSES)))
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    begun = time.perf_counter()
    job = summarize_ranks(rows)
    grouping = time.perf_counter() - begun
    out = [one.rank for one in job.outliers]
    assert out == [planted], f"rank {planted} was planted, and {out} stand out"
    size = f"{count:,} ranks of {events:,} events, {file.stat().st_size / 1e6:.0f} MB each"
    return [
        (f"{size}, {_PROCESSES} processes", f"{seconds:.0f} s"),
        ("processor time of a rank", f"{(usage.ru_utime + usage.ru_stime) / count:.2f} s"),
        ("the largest process", f"{usage.ru_maxrss / 1024:.0f} MiB"),
        ("groups, outliers and their causes", f"{grouping:.2f} s"),
        ("the planted one", f"rank {planted}, {job.outliers[0].delta_bytes:,} B more; nobody else stands out"),
    ]


def _of_dask(file: Path, folder: Path, count: int) -> list[tuple[str, str]]:
    """Time pool and Dask in turns, after an uncounted warm-up. CPU time of all processes is the least sensitive to
    other load on the machine."""
    from distributed import Client, LocalCluster

    places, _ = _job(file, folder / "dask", count)
    events = load_trace(file).event_count
    pool, dask = [], []
    with (
        LocalCluster(n_workers=_PROCESSES, threads_per_worker=1, dashboard_address="127.0.0.1:0") as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        list(reduce_on_dask(places[:_PROCESSES], cluster.scheduler_address))
        for _ in range(2):
            begun = _processor_seconds()
            seconds = _timed(lambda: list(reduce_here(places, processes=_PROCESSES)))[1]
            pool.append((_processor_seconds() - begun, seconds))
            begun = time.process_time() + sum(client.run(time.process_time).values())
            seconds = _timed(lambda: list(reduce_on_dask(places, cluster.scheduler_address)))[1]
            dask.append((time.process_time() + sum(client.run(time.process_time).values()) - begun, seconds))
    (plain, plain_wall), (there, there_wall) = min(pool), min(dask)
    return [
        (f"{count} files of {events:,} events: the pool", f"{plain:.1f} s of processors, {plain_wall:.1f} s"),
        ("the same by two of Dask's workers", f"{there:.1f} s of processors, {there_wall:.1f} s"),
        ("what Dask costs, in processor time", f"{100 * (there / plain - 1):+.0f} %"),
    ]


def _processor_seconds() -> float:
    """Return the CPU seconds of this process and of its finished children."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def _job(file: Path, folder: Path, count: int) -> tuple[Sequence[Place], int]:
    folder.mkdir()
    planted = int(count * _AT)
    for number in range(count):
        if number != planted:
            os.link(file, folder / f"run.rank{number}.pickle")
    snapshot = pickle.loads(file.read_bytes())
    events = next(events for events in snapshot["device_traces"] if events)
    at = len(events) // 2
    more = alloc(1 << 60, PLANTED_BYTES, frames=[frame("cache", "/job/train.py", 99)])
    events.insert(at, {**events[at], **more})
    (folder / f"run.rank{planted}.pickle").write_bytes(pickle.dumps(snapshot))
    return places_of([str(folder)]), planted


def _timed(work: Callable[[], list[Reduced]]) -> tuple[list[Reduced], float]:
    begun = time.perf_counter()
    rows = work()
    return rows, time.perf_counter() - begun


if __name__ == "__main__":
    main()
