"""Measures searches for a configuration that fits, whole commands with an empty cache.

    python -m tests.benchmarks.searches [--write]

The issue of these figures: Llama 3.2 1B in 45 seconds and the FLUX.1-dev pipeline in 120, on two quiet cores.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from datetime import date

from tests.benchmarks.readme import README, write_table

CASES = (
    ("Llama 3.2 1B, training, outputs kept", "llama --set mode=training"),
    ("the same, nothing kept", "llama --set mode=training --keep nothing"),
    ("FLUX.1-dev pipeline, outputs kept", "flux_pipeline"),
    ("the same, nothing kept", "flux_pipeline --keep nothing"),
)
_CARD = "RTX 4090"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.searches", description=__doc__.split("\n\n")[0])
    parser.add_argument("--write", action="store_true", help=f"into {README.name}")
    args = parser.parse_args()
    rows = []
    for name, words in CASES:
        rows.append(f"| {name} | {_row(words)} |")
        print(rows[-1], flush=True)
    if args.write:
        where = f"Python {sys.version.split()[0]}, {os.cpu_count()} cores, {sys.platform}"
        head = f"Measured on {date.today():%-d %B %Y}, {where}, for an {_CARD}."
        titles = "| search | seconds | of processors | tried | configurations | cheapest that fits |"
        write_table("searches", "\n".join([head, "", titles, "|---|---|---|---|---|---|", *rows]))


def _row(words: str) -> str:
    command = [sys.executable, "-m", "memviz", "fit", *words.split(), "--card", _CARD, "--json"]
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    with tempfile.TemporaryDirectory() as cache:
        done = subprocess.run(command, stdout=subprocess.PIPE, env={**os.environ, "XDG_CACHE_HOME": cache}, check=True)
    seconds, after = time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    found = json.loads(done.stdout)
    chosen = "none" if found["chosen"] is None else found["chosen"]["label"]
    return f"{seconds:.0f} | {used:.0f} | {found['tried']} | {found['of']} | {chosen}"


if __name__ == "__main__":
    main()
