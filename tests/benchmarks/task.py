"""Tasks that run in a process of their own, to isolate time and memory: `python -m tests.benchmarks.task NAME FILE`."""

import gc
import os
import pickle
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

_EXPANDABLE = "expandable_segments:True"


class _NoClasses(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"{module}.{name}")


def floor(path: str) -> None:
    """Python's own unpickler, without classes and without garbage collection: no reader through objects is faster."""
    gc.disable()
    with open(path, "rb") as file:
        _NoClasses(file).load()


def load(path: str) -> Any:
    """Load a file to the point where a view can be computed: read, match allocations, sum the timeline."""
    from memviz.analysis.timeline import timeline
    from memviz.trace.load import load_trace

    trace = load_trace(path)
    for device in trace.devices:
        timeline(device)
    return trace


def timeline(path: str) -> None:
    from memviz.analysis.timeline import by_event

    device = load(path).devices[0]
    _print_ms(lambda: by_event(device, 2000))


def first_timeline(path: str) -> None:
    """Time a timeline from a trace that was only read: matching and summing are in it."""
    from memviz.analysis.timeline import by_event
    from memviz.trace.load import load_trace

    device = load_trace(path).devices[0]
    _print_ms(lambda: by_event(device, 2000), times=1)


def peak(path: str) -> None:
    from memviz.analysis.peak import peak

    trace = load(path)
    _print_ms(lambda: peak(trace, trace.devices[0], top=20))


def recorded(path: str) -> None:
    replayer = _replayer(path)
    replay: Any = _timed(replayer.as_recorded)
    print(f"{replay.agreement.address_mismatches} addresses off")


def expandable(path: str) -> None:
    from memviz.allocator.settings import parse_settings

    replayer, settings = _replayer(path), parse_settings(_EXPANDABLE)
    _timed(lambda: replayer.replay(settings))


def figures(path: str) -> None:
    from memviz.allocator.settings import parse_settings

    replayer, settings = _replayer(path), parse_settings(_EXPANDABLE)
    _timed(lambda: replayer.figures(settings))


def search(path: str) -> None:
    from memviz.allocator.search import search

    replayer = _replayer(path)
    print(f"{len(_timed(lambda: search(replayer)).tried)} settings")


def make_file(path: str | Path, allocations: int, stacks: int, devices: int) -> None:
    """Write a snapshot of short-lived allocations from `stacks` stacks, spread over the devices."""
    from tests.traces import alloc, frame, free

    frames = [frame(f"layer_{i}", f"model_{i % 5}.py", i + 1) for i in range(1000)]
    all_stacks = [[frames[i % 1000], frames[i // 1000], frames[0]] for i in range(stacks)]
    own: list[list[dict[str, Any]]] = [[] for _ in range(devices)]
    for i in range(allocations):
        address, size, stack = (1 + i % 1000) << 21, 512 * (1 + i % 200), all_stacks[i % stacks]
        own[i % devices].append(alloc(address, size, frames=stack, time_us=3 * i))
        own[i % devices] += free(address, size, frames=stack, time_us=3 * i + 1)
    with open(path, "wb") as file:
        pickle.dump({"segments": [], "device_traces": own}, file)


def _replayer(path: str) -> Any:
    from memviz.allocator.replayer import Replayer
    from memviz.trace.load import load_trace

    return Replayer(load_trace(path))


def _timed(work: Callable[[], Any]) -> Any:
    """Run the work and print its processor time, with its children's, and the time by the clock."""
    used, begun = sum(os.times()[:4]), time.monotonic()
    result = work()
    print(f"{sum(os.times()[:4]) - used:.2f} s itself, {time.monotonic() - begun:.1f} s by the clock", end=" ")
    return result


def _print_ms(work: Callable[[], object], times: int = 21) -> None:
    taken = []
    for _ in range(times):
        started = time.perf_counter()
        work()
        taken.append(1000 * (time.perf_counter() - started))
    print(f"{sorted(taken)[times // 2]:.1f} ms itself")


TASKS = {
    task.__name__: task for task in (floor, load, timeline, first_timeline, peak, recorded, expandable, figures, search)
}

if __name__ == "__main__":
    name, file, *counts = sys.argv[1:]
    make_file(file, *map(int, counts)) if name == "make_file" else TASKS[name](file)
