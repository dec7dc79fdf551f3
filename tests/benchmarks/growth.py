"""The growth of every command's cost with events, with different stacks, and with devices.

    python -m tests.benchmarks.growth --files A.pickle B.pickle C.pickle [--only summary ...] [--write]

Seconds are CPU time of whole processes, the minimum of several runs. The time for a nearly empty file is subtracted
before two sizes are compared: a growth of 1.00 is linear, and more is worse. Files for stacks and devices are
generated here.
"""

import argparse
import json
import multiprocessing
import os
import pickle
import platform
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from tests.benchmarks.readme import README, write_table
from tests.traces import alloc, frame, free

COMMANDS = {
    "summary": "summary {file}",
    "peak": "peak {file}",
    "findings": "findings {file}",
    "at": "at {file} --event 500",
    "diff": "diff {file} {file}",
    "replay": "replay {file} --settings expandable_segments:True",
    "report": "report {file} -o {out}",
    "export": "export {file} -o {out}",
}
LINEAR = 1.15
_ALLOCATIONS = 200_000
_STACKS = (1, 100, 10_000, 1_000_000)
_DEVICES = (1, 4, 16, 64)
_SLOW_SECONDS = 15


@dataclass(frozen=True)
class Cost:
    seconds: float
    peak_mib: float


def main() -> None:
    args = _arguments()
    parts = {"events": _by_events, "stacks": _by_stacks, "devices": _by_devices}
    for name in args.by:
        table = f"{_where()}\n\n{parts[name](args)}"
        print(table, flush=True)
        if args.write:
            write_table(f"growth by {name}", table)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.growth", description=__doc__.split("\n\n")[0])
    parser.add_argument("--files", nargs="+", type=Path, default=[], help="snapshots of growing size")
    parser.add_argument("--by", nargs="+", choices=("events", "stacks", "devices"), default=["stacks", "devices"])
    parser.add_argument("--only", nargs="+", choices=COMMANDS, default=list(COMMANDS))
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--write", action="store_true", help=f"into {README.name}")
    return parser.parse_args()


def _where() -> str:
    return (
        f"Measured on {date.today():%-d %B %Y}, CPython {platform.python_version()}, {os.cpu_count()} cores, "
        f"{platform.system()}. Seconds of processor time / peak MiB."
    )


def _by_events(args: argparse.Namespace) -> str:
    counts = [_events(path) for path in args.files]
    heads = [f"{count:,} events" for count in counts]
    if len(counts) < 3:
        raise SystemExit("Name at least three files: the smallest says what a command takes for nearly nothing.")
    last = f"growth per event, {counts[-2]:,} to {counts[-1]:,}"
    rows = []
    for name in args.only:
        costs = [cost(name, path, args.runs) for path in args.files]
        rows.append([f"memviz {name}", *map(_cell, costs), _growth(counts, costs)])
        print(rows[-1], file=sys.stderr, flush=True)
    return _table(["command", *heads, last], rows)


def _events(path: Path) -> int:
    """Count events in a child process: memory of this one would count in the peaks of its children."""
    said = subprocess.run([sys.executable, "-m", "memviz", "summary", "--json", path], capture_output=True, check=True)
    return sum(device["events"] for device in json.loads(said.stdout)["devices"])


def _growth(counts: Sequence[int], costs: Sequence[Cost | None]) -> str:
    """Format the cost per event over the last interval of sizes, relative to the cost up to there."""
    if None in (costs[0], costs[-2], costs[-1]):
        return "–"
    least, before, last = (each.seconds for each in (costs[0], costs[-2], costs[-1]) if each is not None)
    ratio = growth((counts[0], least), (counts[-2], before), (counts[-1], last))
    return f"{ratio:.2f}" if ratio <= LINEAR else f"**{ratio:.2f}**"


def growth(nothing: tuple[int, float], small: tuple[int, float], large: tuple[int, float]) -> float:
    """Return the ratio of the cost per event between the second interval of sizes and the first."""
    first = (small[1] - nothing[1]) / (small[0] - nothing[0])
    second = (large[1] - small[1]) / (large[0] - small[0])
    return second / max(first, 1e-12)


def _by_stacks(args: argparse.Namespace) -> str:
    heads = ["1 stack", *(f"{count:,}" for count in _STACKS[1:])]
    return _compared(args, heads, [(max(_STACKS), count, 1) for count in _STACKS])


def _by_devices(args: argparse.Namespace) -> str:
    heads = ["1 device", *(f"{count}" for count in _DEVICES[1:])]
    return _compared(args, heads, [(_ALLOCATIONS, 200, count) for count in _DEVICES])


def _compared(args: argparse.Namespace, heads: list[str], kinds: list[tuple[int, int, int]]) -> str:
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{number}.pickle" for number in range(len(kinds))]
        for path, kind in zip(paths, kinds, strict=True):
            maker = multiprocessing.get_context("spawn").Process(target=make_file, args=(path, *kind))
            maker.start()
            maker.join()
        rows = []
        for name in args.only:
            rows.append([f"memviz {name}", *(_cell(cost(name, path, args.runs)) for path in paths)])
            print(rows[-1], file=sys.stderr, flush=True)
    return _table(["command", *heads], rows)


def make_file(path: Path, allocations: int, stacks: int, devices: int) -> None:
    """Write a snapshot of short-lived allocations from `stacks` stacks, spread over the devices."""
    frames = [frame(f"layer_{i}", f"model_{i % 5}.py", i + 1) for i in range(1000)]
    all_stacks = [[frames[i % 1000], frames[i // 1000], frames[0]] for i in range(stacks)]
    own: list[list[dict[str, Any]]] = [[] for _ in range(devices)]
    for i in range(allocations):
        address, size, stack = (1 + i % 1000) << 21, 512 * (1 + i % 200), all_stacks[i % stacks]
        own[i % devices].append(alloc(address, size, frames=stack, time_us=3 * i))
        own[i % devices] += free(address, size, frames=stack, time_us=3 * i + 1)
    with path.open("wb") as file:
        pickle.dump({"segments": [], "device_traces": own}, file)


def cost(name: str, path: Path, runs: int) -> Cost | None:
    """None where the command refuses the file."""
    taken: list[Cost] = []
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / ("out.html" if name == "report" else "out.pickle")
        words = shlex.split(COMMANDS[name].format(file=shlex.quote(str(path)), out=shlex.quote(str(out))))
        while len(taken) < runs and (not taken or taken[0].seconds < _SLOW_SECONDS):
            process = subprocess.Popen(
                [sys.executable, "-m", "memviz", *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            if process.returncode:
                return None
            out.unlink(missing_ok=True)
            taken.append(Cost(usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024))
    return min(taken, key=lambda each: each.seconds)


def _cell(measured: Cost | None) -> str:
    return "refused" if measured is None else f"{measured.seconds:.2f} / {measured.peak_mib:,.0f}"


def _table(heads: list[str], rows: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (heads, ["---"] * len(heads), *rows))


if __name__ == "__main__":
    main()
