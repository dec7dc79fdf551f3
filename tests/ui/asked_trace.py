"""A trace for the What if tab, and two questions about it."""

from memviz.allocator.replayer import CardMemory
from memviz.allocator.settings import parse_settings
from memviz.trace.model import Trace
from memviz.ui.what_if.replays import Terms
from tests.allocator.driver import MiB
from tests.allocator.recording import Recorder

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
