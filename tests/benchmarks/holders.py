"""Time and memory to find what keeps tensors alive, in processes with many objects.

    python -m tests.benchmarks.holders [--objects 100000 1000000] [--write]

Each process holds a list of records (an object with a list, a tuple and a dictionary each) and at its end 1,000 tensors
with their graphs, so that the walk passes all objects before it finds them.
"""

import argparse
import gc
import json
import os
import platform
import resource
import subprocess
import sys
import time
from datetime import date
from statistics import median

_REPEATS = 5
_TENSORS = 1000
_IN_ONE = 4
"""Objects of one record that Python's collector tracks."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--objects", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.alone:
        print(json.dumps(_measure(args.objects[0])))
        return
    header = "| objects | CPU seconds | holders found | MiB more |\n|---|---|---|---|"
    rows = [_row(count) for count in args.objects]
    where = f"Measured on {date.today():%d %B %Y}, CPython {platform.python_version()}, {os.cpu_count()} cores, "
    table = "\n".join([f"{where}{platform.system()}. Medians of {_REPEATS} walks.", "", header, *rows])
    print(table)
    if args.write:
        from tests.benchmarks.readme import write_table

        write_table("holders", table)


def _row(count: int) -> str:
    command = [sys.executable, "-m", "tests.benchmarks.holders", "--alone", "--objects", str(count)]
    done = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return f"| {done['objects']:,} | {done['seconds']:.2f} | {done['found']:,} | {done['mib']:.0f} |"


class _Record:
    def __init__(self, number: int) -> None:
        self.name = [number]
        self.place = {"at": (number, [number])}


def _measure(count: int) -> dict[str, float]:
    import torch

    from memviz.predictor.holders import find_holders

    records = [_Record(number) for number in range(count // _IN_ONE)]
    weight = torch.ones(4, requires_grad=True)
    losses = [(weight * number).exp() for number in range(_TENSORS)]
    wanted = [loss.untyped_storage().data_ptr() for loss in losses]
    records.append(losses)  # type: ignore[arg-type]
    del losses
    gc.collect()

    def address(tensor: torch.Tensor) -> int:
        return tensor.untyped_storage().data_ptr()

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    times, found = [], {}
    for _ in range(_REPEATS):
        begun = time.process_time()
        found = find_holders(wanted, address, seconds=60)
        times.append(time.process_time() - begun)
    mib = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    return {
        "objects": len(gc.get_objects()),
        "seconds": median(times),
        "found": len(found),
        "mib": mib,
    }


if __name__ == "__main__":
    main()
