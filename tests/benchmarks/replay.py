"""The allocator's replay compared to the floor, each task in its own process, as a table.

    python -m tests.benchmarks.replay --files A.pickle B.pickle [--once C.pickle] [--write]

Seconds are CPU time of the task itself, in one thread, after the file is read. Memory is the whole process's peak.
Files named with `--once` are run once, without the search, because they take long.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from tests.benchmarks.readme import README, write_table
from tests.benchmarks.task import floor

_EXPANDABLE = "expandable_segments:True"


def _floor(path: str) -> Callable[[], Any]:
    return lambda: floor(path)


def _load(path: str) -> Callable[[], Any]:
    from memviz.trace.load import load_trace

    return lambda: load_trace(path)


def _source(path: str) -> Any:
    from memviz.allocator.replayer import Replayer
    from memviz.trace.load import load_trace

    return Replayer(load_trace(path))


def _recorded(path: str) -> Callable[[], Any]:

    source = _source(path)
    return lambda: f"{source.as_recorded().agreement.address_mismatches} addresses off"  # type: ignore[union-attr]


def _expandable(path: str) -> Callable[[], Any]:
    from memviz.allocator.settings import parse_settings

    source, settings = _source(path), parse_settings(_EXPANDABLE)
    return lambda: source.replay(settings)


def _figures(path: str) -> Callable[[], Any]:
    from memviz.allocator.settings import parse_settings

    source, settings = _source(path), parse_settings(_EXPANDABLE)
    return lambda: source.figures(settings)


def _search(path: str) -> Callable[[], Any]:
    from memviz.allocator.search import search

    source = _source(path)
    return lambda: f"{len(search(source).tried)} settings"


@dataclass(frozen=True)
class Task:
    name: str
    prepare: Callable[[str], Callable[[], Any]]
    is_long: bool = False


TASKS = {
    "floor": Task("floor: restricted pickle.load, gc off", _floor),
    "load": Task("memviz load", _load),
    "recorded": Task("replay under the recorded settings", _recorded),
    "expandable": Task(f"replay with {_EXPANDABLE}", _expandable),
    "figures": Task("the same, only its figures, as a search does", _figures),
    "search": Task("search over the settings that matter", _search, is_long=True),
}


@dataclass(frozen=True)
class Measured:
    seconds: float
    peak_mib: float
    said: str


def main() -> None:
    args = _arguments()
    if args.task:
        _do(TASKS[args.task], args.files[0])
        return
    columns = [*((path, args.runs) for path in args.files), *((path, 1) for path in args.once)]
    rows = {key: [_measure(key, path, runs) for path, runs in columns] for key in TASKS}
    table = _table(rows, [_events(path) for path, _ in columns])
    print(table)
    if args.write:
        write_table("replay", table)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.replay", description=__doc__.split("\n\n")[0])
    parser.add_argument("--files", nargs="*", type=Path, default=[])
    parser.add_argument("--once", nargs="*", type=Path, default=[], help="long files: one run each, and no search")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--write", action="store_true", help=f"into {README.name}")
    parser.add_argument("--task", choices=TASKS, help=argparse.SUPPRESS)
    return parser.parse_args()


def _do(task: Task, path: Path) -> None:
    """Run a task in this process and print its CPU time, including its helpers'."""
    work = task.prepare(str(path))
    started, begun = sum(os.times()[:4]), time.monotonic()
    said = work()
    seconds, clock = sum(os.times()[:4]) - started, time.monotonic() - begun
    words = said if isinstance(said, str) else ""
    print(json.dumps({"seconds": seconds, "said": f"{words}, {clock:.1f} s by the clock" if task.is_long else words}))


def _measure(key: str, path: Path, runs: int) -> Measured | None:
    if TASKS[key].is_long and runs == 1:
        return None
    taken = [_run(key, path) for _ in range(1 if TASKS[key].is_long else runs)]
    middle = statistics.median_low([each.seconds for each in taken])
    return next(each for each in taken if each.seconds == middle)


def _run(key: str, path: Path) -> Measured:
    command = [sys.executable, "-m", "tests.benchmarks.replay", "--task", key, "--files", str(path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    said = process.stdout.read() if process.stdout else b""
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{key} failed on {path.name}")
    answer = json.loads(said)
    return Measured(answer["seconds"], usage.ru_maxrss / 1024, answer["said"])


def _events(path: Path) -> int:
    from memviz.trace.load import load_trace

    return load_trace(path).event_count


def _table(rows: dict[str, list[Measured | None]], counts: list[int]) -> str:
    python = f"{platform.python_implementation()} {platform.python_version()}"
    where = f"{date.today():%-d %B %Y}, {python}, {os.cpu_count()} cores, {platform.system()}"
    heads = " | ".join(f"{count:,} events" for count in counts)
    lines = [f"Measured on {where}. Seconds of processor time (times the floor) / peak MiB of the process.", ""]
    lines += [f"| task | {heads} |", f"|---|{'---|' * len(counts)}"]
    for key, cells in rows.items():
        texts = [_cell(cell, floor) for cell, floor in zip(cells, rows["floor"], strict=True)]
        lines.append(f"| {TASKS[key].name} | {' | '.join(texts)} |")
    return "\n".join(lines)


def _cell(cell: Measured | None, floor: Measured | None) -> str:
    if cell is None:
        return "–"
    ratio = f" ({cell.seconds / floor.seconds:.2f}x)" if floor else ""
    said = f", {cell.said}" if cell.said else ""
    return f"{cell.seconds:.2f}{ratio} / {cell.peak_mib:,.0f}{said}"


if __name__ == "__main__":
    main()
