"""Cost of memviz's commands, replays, predictions and searches, and of other tools: tables of README.md.

    python -m tests.benchmarks commands --files A.pickle B.pickle C.pickle [--peer "NAME=COMMAND {file}"] [--write]
    python -m tests.benchmarks replay --files A.pickle B.pickle [--write]
    python -m tests.benchmarks predict | searches [--write]

Every case is a process of its own, with an empty cache. A cell has its processor time, with all its children, and its
peak memory; behind them what the case says of itself. The median of several runs is shown, or one run over 20 seconds.
Where a table begins with the floor, cells have their ratio to it; ratios differ less between machines than seconds.
With three files or more the last column is the cost of one more event between the two largest, relative to that up to
the smaller of them: 1 is linear. `python -m tests.benchmarks.task make_file OUT ALLOCATIONS STACKS DEVICES` makes one.
"""

import argparse
import json
import os
import resource
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.benchmarks.readme import README, measured_on, write_table

_SLOW_SECONDS = 20
_MEMVIZ = f"{sys.executable} -m memviz"
_TORCH = f"{sys.executable} -m torch.cuda._memory_viz"
_TASK = f"{sys.executable} -m tests.benchmarks.task"
_RUN = f"{_MEMVIZ} run {{}} --on predict --warmup 0 --no-numerics --json"
_FIT = f"{_MEMVIZ} fit {{}} --card 'RTX 4090' --json"
FLOOR = {"floor: restricted pickle.load, gc off": f"{_TASK} floor {{file}}"}
CASES: Mapping[str, Mapping[str, str]] = {
    "commands": {
        **FLOOR,
        "memviz load + index": f"{_TASK} load {{file}}",
        "memviz summary": f"{_MEMVIZ} summary {{file}}",
        "memviz peak": f"{_MEMVIZ} peak {{file}}",
        "memviz findings": f"{_MEMVIZ} findings {{file}}",
        "memviz at": f"{_MEMVIZ} at {{file}} --event 500",
        "memviz diff (file with itself)": f"{_MEMVIZ} diff {{file}} {{file}}",
        "memviz replay": f"{_MEMVIZ} replay {{file}} --settings expandable_segments:True",
        "memviz report": f"{_MEMVIZ} report {{file}} -o {{out}}.html",
        "memviz export": f"{_MEMVIZ} export {{file}} -o {{out}}.pickle",
        "torch _memory_viz trace_plot": f"{_TORCH} trace_plot {{file}} -o {{out}}.html",
        "timeline of 2,000 columns, trace indexed": f"{_TASK} timeline {{file}}",
        "timeline of 2,000 columns, trace only read": f"{_TASK} first_timeline {{file}}",
        "peak by site, trace indexed": f"{_TASK} peak {{file}}",
    },
    "replay": {
        **FLOOR,
        "memviz load": f"{_TASK} load {{file}}",
        "replay under the recorded settings": f"{_TASK} recorded {{file}}",
        "replay with expandable_segments:True": f"{_TASK} expandable {{file}}",
        "the same, only its figures, as a search does": f"{_TASK} figures {{file}}",
        "search over the settings that matter": f"{_TASK} search {{file}}",
    },
    "predict": {
        "LTX-Video, 1.9 B parameters, one training step": _RUN.format("ltx_video"),
        "the same, every block checkpointed": _RUN.format("ltx_video --with checkpointing"),
        "FLUX.1-dev, 11.9 B parameters, forward": _RUN.format("flux"),
        "the same, weights in fp8": _RUN.format("flux --with layerwise_casting"),
        "GPT-2, 124 M parameters, one training step with AdamW": _RUN.format("gpt2 --optimizer adamw"),
        "Llama 3.1 8B, one training step": _RUN.format("llama --set size=8b"),
    },
    "searches": {
        "Llama 3.2 1B, training, outputs kept": _FIT.format("llama --set mode=training"),
        "the same, nothing kept": _FIT.format("llama --set mode=training --keep nothing"),
        "FLUX.1-dev pipeline, outputs kept": _FIT.format("flux_pipeline"),
        "FLUX.1-dev pipeline, nothing kept": _FIT.format("flux_pipeline --keep nothing"),
    },
}


def _prediction(found: Any) -> str:
    run = found["run"]
    return f"predicted in {run['took_seconds']:.1f} s: {run['peak_reserved_bytes'] / 2**30:.2f} GiB reserved"


def _search(found: Any) -> str:
    chosen = "none" if found["chosen"] is None else found["chosen"]["label"]
    return f"{found['tried']} of {found['of']} tried, cheapest that fits: {chosen}"


_READ: Mapping[str, Callable[[Any], str]] = {"predict": _prediction, "searches": _search}


@dataclass(frozen=True)
class Cost:
    seconds: float
    peak_mib: float
    says: str


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__.split("\n\n")[0])
    parser.add_argument("table", choices=CASES)
    parser.add_argument("--files", nargs="+", type=Path, default=[], help="snapshots of growing size")
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=COMMAND")
    parser.add_argument("--only", help="cases that have this in their name, and the floor")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--write", action="store_true", help=f"into {README.name}")
    args = parser.parse_args()
    peers = dict(peer.split("=", 1) for peer in args.peer)
    cases = {
        name: command
        for name, command in {**CASES[args.table], **peers}.items()
        if not args.only or args.only in name or name in FLOOR
    }
    files, rows = args.files or [Path()], []
    floor: list[Cost | None] = [None] * len(files)
    events = [_events(path) for path in args.files]
    for name, command in cases.items():
        costs = [_cost(command, path, _READ.get(args.table, str.strip), args.runs) for path in files]
        floor = costs if name in FLOOR else floor
        rows.append([name, *map(_cell, costs, floor)])
        if len(files) > 2:
            rows[-1].append("–" if None in costs else f"{_growth(events, costs):.2f}")
        print(*rows[-1], sep=" | ", flush=True)
    heads = [f"{path.stem}: {count:,} events" for path, count in zip(args.files, events, strict=True)]
    heads = [args.table, *(heads or ["cost"]), *["growth per event"] * (len(files) > 2)]
    units = "Processor seconds (times the floor) / peak MiB, and what the case says of itself."
    lines = [f"| {' | '.join(row)} |" for row in (heads, ["---"] * len(heads), *rows)]
    if args.write:
        write_table(args.table, "\n".join([f"{measured_on()} {units}", "", *lines]))


def _events(path: Path) -> int:
    """Count events in a child process: memory of this one would count in the peaks of its children."""
    said = subprocess.run([sys.executable, "-m", "memviz", "summary", "--json", path], capture_output=True, check=True)
    return sum(device["events"] for device in json.loads(said.stdout)["devices"])


def _cost(command: str, path: Path, read: Callable[[Any], str], runs: int) -> Cost | None:
    """Return the median of several runs, or None where the command refuses the file."""
    taken: list[Cost] = []
    while len(taken) < runs and (not taken or taken[0].seconds < _SLOW_SECONDS):
        with tempfile.TemporaryDirectory() as folder:
            words = shlex.split(command.format(file=shlex.quote(str(path)), out=f"{folder}/out"))
            environment = {**os.environ, "XDG_CACHE_HOME": folder}
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            process = subprocess.Popen(
                words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment, text=True
            )
            said = process.stdout.read() if process.stdout else ""
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            if process.returncode:
                return None
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            seconds = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
            says = (
                read(json.loads(said)) if "--json" in words else read(said) if "tests.benchmarks.task" in words else ""
            )
            pages = [f"{page.stat().st_size / 1e6:.1f} MB" for page in Path(folder).glob("out.html")]
            taken.append(Cost(seconds, usage.ru_maxrss / 1024, ", ".join(filter(None, [says, *pages]))))
    middle = statistics.median_low([cost.seconds for cost in taken])
    return next(cost for cost in taken if cost.seconds == middle)


def _growth(events: Sequence[int], costs: Sequence[Any]) -> float:
    first, before, last = ((events[place], costs[place].seconds) for place in (0, -2, -1))
    return ((last[1] - before[1]) / (last[0] - before[0])) / max((before[1] - first[1]) / (before[0] - first[0]), 1e-12)


def _cell(cost: Cost | None, floor: Cost | None) -> str:
    if cost is None:
        return "refused"
    ratio = f" ({cost.seconds / floor.seconds:.2f}x)" if floor and floor.seconds else ""
    return f"{cost.seconds:.2f}{ratio} / {cost.peak_mib:,.0f}" + (f", {cost.says}" if cost.says else "")


if __name__ == "__main__":
    main()
