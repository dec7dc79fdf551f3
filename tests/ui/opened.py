"""Traces for the tests of tabs, open in a page that is not there."""

from memviz.allocator.replayer import CardMemory
from memviz.allocator.settings import parse_settings
from memviz.analysis.comparing.changes import Changes, changes
from memviz.trace.model import Trace
from memviz.ui.compare.state import Side, side_of
from memviz.ui.shell.session import Context, Opened, Session, open_trace
from memviz.ui.shell.store import TraceStore
from memviz.ui.what_if.replays import Terms
from tests.allocator.recording import Recorder
from tests.traces import MiB, alloc, block, event, frame, pairs_of, segment, trace_of


def opened(*traces: Trace, context: Context | None = None) -> tuple[Context, Session]:
    """Return a context and a session in which these traces are open."""
    context = context or Context(TraceStore())
    session = Session()
    for trace in traces:
        session = session.with_opened(open_trace(context.store, trace))
    return context, session


EXPANDABLE = parse_settings("expandable_segments:True")
SMALL = Terms(CardMemory(120 * MiB, 0))


def growing() -> Trace:
    """Sizes that grow; then three are held. Segments that expand need 100 MiB, fixed ones 156."""
    run = Recorder()
    for size in (30, 31, 32, 33):
        run.cached(size * MiB)
    for size in (4, 33, 60):
        run.malloc(size * MiB)
    return run.trace()


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
