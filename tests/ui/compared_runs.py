"""Small runs to compare, and their inputs to the views."""

from memviz.analysis.comparing.changes import Changes, changes
from memviz.trace.model import Trace
from memviz.ui.compare.state import Side, side_of
from memviz.ui.shell.session import Opened
from tests.traces import MiB, alloc, block, event, frame, pairs_of, segment, trace_of


def run(*sizes: int, operator: str = "mm", reserved: int = 0) -> Trace:
    """Return a trace with an allocation of so many MiB on each line, each in its own function."""
    native = frame(f"at::_ops::{operator}::call()", "??", 0)
    events: list = [event("segment_alloc", 0, reserved * MiB, time_us=1)] if reserved else []
    for line, size in enumerate(sizes):
        if size:
            frames = [native, frame(f"f{line}", "model.py", line)]
            events.append(alloc(line * 2**40, size * MiB, time_us=1_000 * (line + 2), frames=frames))
    blocks = [block(0, reserved * MiB, sizes[0] * MiB)] if reserved else []
    return trace_of(events, [segment(0, reserved * MiB, blocks)] if reserved else [])


def found(*traces: Trace, by: str = "site") -> Changes:
    return changes(pairs_of(*traces), by)


def sides(*traces: Trace) -> tuple[Side, ...]:
    named = [Opened(f"key{i}", f"run-{i}", "0", ("0",)) for i in range(len(traces))]
    return tuple(
        side_of("ABCDEFGH"[i], each, trace, trace.devices[0])
        for i, (each, trace) in enumerate(zip(named, traces, strict=True))
    )
