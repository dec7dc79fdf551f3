"""Measure memviz against the floor and its peers, in one run on one machine, and write the table.

    python -m tests.benchmarks --files A.pickle B.pickle C.pickle [--peer "NAME=COMMAND {file} {out}"]...

Files are snapshots of growing size. A peer is any command that people have installed; `{file}` and `{out}` are
replaced. All commands run as whole processes, in turn, several times; the median is written, and the ratio to the
floor of the same run. Absolute seconds differ between machines; ratios much less.
"""

import argparse
import os
import platform
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from memviz.trace.load import load_trace
from tests.benchmarks.readme import README, write_table


@dataclass(frozen=True)
class Contender:
    name: str
    task: str
    command: str
    prints: bool = False
    """The command prints its own milliseconds; the time of its process is not used."""


@dataclass(frozen=True)
class Measured:
    seconds: float
    peak_mib: float
    output_bytes: int


OURS = (
    Contender(
        "floor: restricted pickle.load, gc off", "load", f"{sys.executable} -m tests.benchmarks.task floor {{file}}"
    ),
    Contender("memviz load + index", "load", f"{sys.executable} -m tests.benchmarks.task load {{file}}"),
    Contender("memviz summary", "summary", f"{sys.executable} -m memviz summary {{file}}"),
    Contender("memviz peak", "peak", f"{sys.executable} -m memviz peak {{file}}"),
    Contender("memviz diff (file with itself)", "diff", f"{sys.executable} -m memviz diff {{file}} {{file}}"),
    Contender("memviz report", "page", f"{sys.executable} -m memviz report {{file}} -o {{out}}"),
    Contender(
        "torch _memory_viz trace_plot",
        "page",
        f"{sys.executable} -m torch.cuda._memory_viz trace_plot {{file}} -o {{out}}",
    ),
    Contender(
        "timeline of 2,000 columns, trace indexed",
        "ms",
        f"{sys.executable} -m tests.benchmarks.task timeline_ms {{file}}",
        True,
    ),
    Contender(
        "timeline of 2,000 columns, trace only read",
        "ms",
        f"{sys.executable} -m tests.benchmarks.task first_timeline_ms {{file}}",
        True,
    ),
    Contender("peak by site, trace indexed", "ms", f"{sys.executable} -m tests.benchmarks.task peak_ms {{file}}", True),
)


def main() -> None:
    args = _arguments()
    contenders = (*OURS, *(_peer(each) for each in args.peer))
    columns = [(path, _events(path)) for path in args.files]
    rows = {
        contender: [_measure(contender, path, args.runs, args.timeout) for path, _ in columns]
        for contender in contenders
    }
    table = _table(rows, [count for _, count in columns])
    print(table)
    if args.write:
        write_table("measured", table)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__.split("\n\n")[0])
    parser.add_argument("--files", nargs="+", type=Path, required=True)
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=COMMAND")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--timeout", type=float, default=400, help="seconds for one run")
    parser.add_argument("--write", action="store_true", help=f"into {README.name}")
    return parser.parse_args()


def _peer(text: str) -> Contender:
    name, _, command = text.partition("=")
    return Contender(name, "peer", command)


def _events(path: Path) -> int:
    return load_trace(path).event_count


def _measure(contender: Contender, path: Path, runs: int, timeout: float) -> Measured | str:
    """The median of several runs after one that is not counted; slow peers run once."""
    taken: list[Measured] = []
    for number in range(runs + 1):
        one = _run(contender, path, timeout)
        if isinstance(one, str):
            return one
        if number or one.seconds > 20:
            taken.append(one)
        if one.seconds > 20:
            break
    middle = statistics.median_low([each.seconds for each in taken])
    return next(each for each in taken if each.seconds == middle)


def _run(contender: Contender, path: Path, timeout: float) -> Measured | str:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.html"
        command = [part.format(file=path, out=out) for part in shlex.split(contender.command)]
        started = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        said = process.stdout.read() if process.stdout else b""
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - started
        if status:
            return f"failed ({os.waitstatus_to_exitcode(status)})"
        if contender.prints:
            return Measured(float(said) / 1000, usage.ru_maxrss / 1024, 0)
        return Measured(seconds, usage.ru_maxrss / 1024, out.stat().st_size if out.exists() else 0)


def _table(rows: dict[Contender, list[Measured | str]], counts: Sequence[int]) -> str:
    heads = [f"{count:,} events" for count in counts]
    lines = [f"| command | {' | '.join(heads)} |", f"|---|{'---|' * len(heads)}"]
    floors = rows[OURS[0]]
    for contender, cells in rows.items():
        texts = [_cell(contender, cell, floors[i]) for i, cell in enumerate(cells)]
        lines.append(f"| {contender.name} | {' | '.join(texts)} |")
    where = (
        f"{platform.python_implementation()} {platform.python_version()}, {os.cpu_count()} cores, {platform.system()}"
    )
    units = "Seconds (times the floor) / peak MiB; size where a page is written."
    return "\n".join([f"Measured on {date.today():%-d %B %Y}, {where}. {units}", "", *lines])


def _cell(contender: Contender, cell: Measured | str, floor: Measured | str) -> str:
    if isinstance(cell, str):
        return cell
    if contender.prints:
        return f"{1000 * cell.seconds:.1f} ms"
    ratio = f" ({cell.seconds / floor.seconds:.2f}x)" if isinstance(floor, Measured) else ""
    page = f", {cell.output_bytes / 1e6:.1f} MB" if cell.output_bytes else ""
    return f"{cell.seconds:.2f}{ratio} / {cell.peak_mib:.0f}{page}"


if __name__ == "__main__":
    main()
