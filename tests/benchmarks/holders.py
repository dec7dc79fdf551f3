"""Time and memory to find what keeps tensors alive, and what holders and host memory cost a program.

    python -m tests.benchmarks.holders [--objects 100000 1000000] [--write]
    python -m tests.benchmarks.holders --overhead [--write]

Each process holds a list of records (an object with a list, a tuple and a dictionary each) and at its end 1,000 tensors
with their graphs, so that the walk passes all objects before it finds them.

The overhead is that of 5 training steps of a small transformer: predicted, and recorded on the CPU as if on a GPU.
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
    parser.add_argument("--overhead", action="store_true", help="measure predict and record with and without")
    parser.add_argument("--case", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.case:
        print(json.dumps(_seconds_of(*args.case)))
        return
    if args.overhead:
        _show("overhead", _overhead(), write=args.write)
        return
    if args.alone:
        print(json.dumps(_measure(args.objects[0])))
        return
    header = "| objects | CPU seconds | holders found | MiB more |\n|---|---|---|---|"
    rows = [_row(count) for count in args.objects]
    _show("holders", [f"Medians of {_REPEATS} walks.", "", header, *rows], write=args.write)


def _show(name: str, lines: list[str], *, write: bool) -> None:
    where = f"Measured on {date.today():%d %B %Y}, CPython {platform.python_version()}, {os.cpu_count()} cores, "
    table = "\n".join([f"{where}{platform.system()}. {lines[0]}", *lines[1:]])
    print(table)
    if write:
        from tests.benchmarks.readme import write_table

        write_table(name, table)


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


_STEPS = 5
_PROCESSES = 3
_OPTIONS = {
    "neither": "neither holders nor host memory",
    "host": "host memory, as always",
    "holders": "host memory and holders",
}


def _overhead() -> list[str]:
    header = "| | " + " | ".join(f"CPU seconds, {text}" for text in _OPTIONS.values()) + " |"
    rows = []
    for way in ("predict", "record"):
        seconds: dict[str, list[float]] = {option: [] for option in _OPTIONS}
        # In turn, since a machine is quicker at times.
        for _ in range(_PROCESSES):
            for option, found in seconds.items():
                command = [sys.executable, "-m", "tests.benchmarks.holders", "--case", way, option]
                found.append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
        rows.append(f"| {way} | " + " | ".join(f"{median(found):.2f}" for found in seconds.values()) + " |")
    return [f"Medians of {_PROCESSES} processes, {_STEPS} steps each.", "", header, "|---|---|---|---|", *rows]


def _seconds_of(way: str, option: str) -> float:
    import torch

    import memviz
    from memviz.predictor.host import HostMemory
    from memviz.runner.record.memory_history import HostSampler
    from tests.runner.fake_gpu import FakeGpu
    from tests.runner.torch_storages import watching_torch

    torch.set_num_threads(1)
    if option == "neither":
        HostMemory.see = lambda *_: None  # type: ignore[method-assign]
        HostSampler.start = lambda _: None  # type: ignore[method-assign]
    has_holders = option == "holders"
    if way == "predict":
        with memviz.predicting("A100 80GB", holders=has_holders):
            _train(1, "cuda")
            begun = time.process_time()
            _train(_STEPS, "cuda")
            return time.process_time() - begun
    gpu = FakeGpu()
    with memviz.recording(accelerator=gpu.accelerator, holders=has_holders), watching_torch(gpu):
        _train(1, "cpu")
        begun = time.process_time()
        _train(_STEPS, "cpu")
        return time.process_time() - begun


def _train(steps: int, device: str) -> None:
    import torch

    import memviz

    layer = torch.nn.TransformerEncoderLayer(128, 4, 256, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 4).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(steps):
        batch = torch.randn(4, 64, 128).to(device)
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        memviz.mark(f"step {step}")


if __name__ == "__main__":
    main()
