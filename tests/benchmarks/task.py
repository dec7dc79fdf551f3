"""Run one task in its own process, to isolate time and memory: `python -m tests.benchmarks.task NAME FILE`."""

import gc
import pickle
import sys
import time
from collections.abc import Callable
from typing import NoReturn


class _NoClasses(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"{module}.{name}")


def floor(path: str) -> None:
    """Python's own unpickler, without classes and without garbage collection: no reader through objects is faster."""
    gc.disable()
    with open(path, "rb") as file:
        _NoClasses(file).load()


def load(path: str) -> None:
    """Load a file to the point where a view can be computed: read, match allocations, sum the timeline."""
    from memviz.analysis.timeline import timeline
    from memviz.trace.load import load_trace

    for device in load_trace(path).devices:
        timeline(device)


def timeline_ms(path: str) -> None:
    """Prints milliseconds of one timeline of 2,000 columns from an indexed trace, the median of 21."""
    from memviz.analysis.timeline import by_event, timeline
    from memviz.trace.load import load_trace

    device = load_trace(path).devices[0]
    timeline(device)
    print(_median_ms(lambda: by_event(device, 2000)))


def first_timeline_ms(path: str) -> None:
    """The same from a trace that was only read: matching and summing are in it."""
    from memviz.analysis.timeline import by_event
    from memviz.trace.load import load_trace

    device = load_trace(path).devices[0]
    started = time.perf_counter()
    by_event(device, 2000)
    print(1000 * (time.perf_counter() - started))


def peak_ms(path: str) -> None:
    """Time the table of live bytes at the peak by site, on an indexed trace."""
    from memviz.analysis.peak import peak
    from memviz.analysis.timeline import timeline
    from memviz.trace.load import load_trace

    trace = load_trace(path)
    timeline(trace.devices[0])
    print(_median_ms(lambda: peak(trace, trace.devices[0], top=20)))


def _median_ms(work: Callable[[], object], times: int = 21) -> float:
    taken = []
    for _ in range(times):
        started = time.perf_counter()
        work()
        taken.append(1000 * (time.perf_counter() - started))
    return sorted(taken)[times // 2]


TASKS = {each.__name__: each for each in (floor, load, timeline_ms, first_timeline_ms, peak_ms)}

if __name__ == "__main__":
    TASKS[sys.argv[1]](sys.argv[2])
