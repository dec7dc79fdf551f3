"""Measures how long predictions take, whole commands and the prediction inside them, and writes the table.

    python -m tests.benchmarks.predict [--write]

The issue of these figures: one training step of LTX-Video in 5 seconds and 1 GiB, a forward pass of Flux in 8.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from memviz.runner.jobs.worker_process import Worker
from memviz.runner.request import Run
from tests.benchmarks.readme import README, write_table

CASES = (
    ("LTX-Video, 1.9 B parameters, one training step", "ltx_video"),
    ("the same, every block checkpointed", "ltx_video --with checkpointing"),
    ("FLUX.1-dev, 11.9 B parameters, forward", "flux"),
    ("the same, weights in fp8", "flux --with layerwise_casting"),
    ("GPT-2, 124 M parameters, one training step with AdamW", "gpt2 --optimizer adamw"),
    ("Llama 3.1 8B, one training step", "llama --set size=8b"),
)


@dataclass(frozen=True)
class Taken:
    first_seconds: float
    """Seconds of a prediction in a fresh process, with the import of the model's library."""
    seconds: float
    """Seconds of the second prediction in the same process."""
    command_seconds: float
    peak_mib: float
    reserved_gib: float


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.predict", description=__doc__.split("\n\n")[0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--write", action="store_true", help=f"into {README.name}")
    args = parser.parse_args()
    table = _table([(name, _median([_run(words) for _ in range(args.runs)])) for name, words in CASES])
    print(table)
    if args.write:
        write_table("predict", table)


def _run(words: str) -> Taken:
    command = [sys.executable, "-m", "memviz", "run", *words.split(), "--on", "predict", "--warmup", "0"]
    begun = time.perf_counter()
    process = subprocess.Popen([*command, "--no-numerics", "--json"], stdout=subprocess.PIPE)
    assert process.stdout is not None
    said = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - begun
    if status:
        raise SystemExit(f"{' '.join(command)} failed")
    found = Run.from_json(json.loads(said)["run"])
    with tempfile.TemporaryDirectory() as folder, Worker(Path(folder)) as worker:
        twice = [each.run for each in worker.run([found.request, found.request]) if each.kind == "done"]
    assert twice[1] is not None
    # The largest of the command and the process in which it predicts.
    peak_mib = usage.ru_maxrss / 1024
    return Taken(found.took_seconds, twice[1].took_seconds, seconds, peak_mib, found.peak_reserved_bytes / 2**30)


def _median(taken: list[Taken]) -> Taken:
    middle = statistics.median_low([each.seconds for each in taken])
    return next(each for each in taken if each.seconds == middle)


def _table(rows: list[tuple[str, Taken]]) -> str:
    where = (
        f"{platform.python_implementation()} {platform.python_version()}, {os.cpu_count()} cores, {platform.system()}"
    )
    lines = [
        f"Measured on {date.today():%-d %B %Y}, {where}. Medians.",
        "",
        "| predicted | prediction, s | and imports, s | whole command, s | peak memory, MiB | reserved, GiB |",
        "|---|---|---|---|---|---|",
    ]
    for name, each in rows:
        seconds = (f"{one:.1f}" for one in (each.seconds, each.first_seconds, each.command_seconds))
        cells = (*seconds, f"{each.peak_mib:,.0f}", f"{each.reserved_gib:.2f}")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
