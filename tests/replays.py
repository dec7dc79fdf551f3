"""Replays as tests ask for them."""

from memviz.allocator.replay_result import Replayed
from memviz.allocator.replayer import CardMemory, Replayer
from memviz.allocator.settings import Settings
from memviz.trace.model import DeviceTrace, Trace


def replay(
    trace: Trace,
    device: DeviceTrace | None = None,
    *,
    settings: Settings | None = None,
    memory: int | None = None,
    total: int | None = None,
) -> Replayed:
    """As recorded, where nothing is asked for; `memory` is what the process has of a card of `total` bytes."""
    replayer = Replayer(trace, device)
    total = memory if total is None else total
    if total is None:
        return replayer.as_recorded() if settings in (None, replayer.recorded) else replayer.replay(settings)
    return replayer.replay(settings, CardMemory(total, 0 if memory is None else total - memory))
