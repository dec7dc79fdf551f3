"""Many ranks: CPU time and memory per rank, the time of a thousand, and the cost of Dask compared to the plain pool.

    python -m tests.benchmarks.ranks FILE [--ranks 1024] [--page] [--scheduler-file LARGE] [--write]

FILE is one rank's snapshot; every rank is a link to it, but for one that keeps 512 MiB more, which has to be detected
as the only outlier. Links share the page cache, so that no disk is measured. The pool and the cluster, two processes
each, take turns on the same files. With --page as many files (64 at most) are dropped on the page in a browser as well.
With --write the table goes into README.md.
"""

import argparse
import json
import os
import pickle
import resource
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from playwright.sync_api import sync_playwright

from memviz.ranks.gather import reduce_here, reduce_on_dask
from memviz.ranks.places import Place, places_of
from memviz.ranks.row import Reduced
from memviz.ranks.summary import summarize_ranks
from memviz.trace.load import load_trace
from tests.benchmarks.browser import ARGUMENTS, MARKS, marked
from tests.benchmarks.readme import README, measured_on, write_table
from tests.server import started
from tests.traces import MiB, alloc, frame

PLANTED_BYTES = 512 * MiB
_AT = 517 / 1024
_PROCESSES = 2


def main() -> None:
    args = _arguments()
    with tempfile.TemporaryDirectory(dir=args.file.parent) as folder:
        rows = _of_the_pool(args.file, Path(folder), args.ranks)
        if args.page:
            rows += _of_the_page(args.file, Path(folder), min(args.ranks, 64))
        if args.scheduler_file is not None:
            rows += _of_dask(args.scheduler_file, Path(folder), args.scheduler_ranks)
    lines = [measured_on(), "", "| what | figure |", "|---|---|", *(f"| {what} | {figure} |" for what, figure in rows)]
    table = "\n".join(lines)
    print(table)
    if args.write:
        write_table("ranks", table)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.ranks", description=__doc__.split("\n\n")[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--page", action="store_true", help="drop them on the page too")
    parser.add_argument("--scheduler-file", type=Path, help="larger: Dask is for those who outgrow one machine")
    parser.add_argument("--scheduler-ranks", type=int, default=64)
    parser.add_argument("--write", action="store_true", help=f"into {README.name}")
    return parser.parse_args()


def _of_the_pool(file: Path, folder: Path, count: int) -> list[tuple[str, str]]:
    places, planted = _job(file, folder / "pool", count)
    events = load_trace(file).event_count
    begun, first, rows = time.perf_counter(), 0.0, []
    for row in reduce_here(places, processes=_PROCESSES):
        first = first or time.perf_counter() - begun
        rows.append(row)
    seconds = time.perf_counter() - begun
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    begun = time.perf_counter()
    job = summarize_ranks(rows)
    grouping = time.perf_counter() - begun
    out = [one.rank for one in job.outliers]
    assert out == [planted], f"rank {planted} was planted, and {out} stand out"
    size = f"{count:,} ranks of {events:,} events, {file.stat().st_size / 1e6:.0f} MB each"
    return [
        (f"{size}, {_PROCESSES} processes", f"{seconds:.1f} s, the first after {first:.1f} s"),
        ("processor time of a rank", f"{(usage.ru_utime + usage.ru_stime) / count:.2f} s"),
        ("the largest process", f"{usage.ru_maxrss / 1024:.0f} MiB"),
        ("groups, outliers and their causes", f"{grouping:.2f} s"),
        ("the planted one", f"rank {planted}, {job.outliers[0].delta_bytes:,} B more; no other outlier"),
    ]


def _of_the_page(file: Path, folder: Path, count: int) -> list[tuple[str, str]]:
    """From the choice of the files to the first timeline, the first map of ranks, and the map of them all."""
    places, _ = _job(file, folder / "page", count)
    rank_map = "#ranks-map .mvn[data-drawn]"
    last = f'{rank_map} .mvn-plot[aria-valuemax="{count}"]'
    marks = {"timeline": ".mvt[data-total=whole], .mvt[data-drawn]", "map": rank_map, "all": last}
    with started({}) as server, sync_playwright() as engine:
        browser = engine.chromium.launch(executable_path=shutil.which("chromium"), args=ARGUMENTS)
        page = browser.new_page(viewport={"width": 1440, "height": 1000})
        page.add_init_script(f"({MARKS})({json.dumps({'marks': marks, 'since': 'choice'})})")
        page.goto(server.address)
        page.wait_for_selector(".mv-sample", timeout=60_000)
        page.wait_for_timeout(2000)
        page.set_input_files("#first-files input[type=file]", [place.address for place in places])
        drawn = marked(page, "all")
        browser.close()
    where = f"{count} files on the page"
    return [(f"{where}: {name}", f"{drawn[name] / 1000:.1f} s") for name in ("timeline", "map", "all")]


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
