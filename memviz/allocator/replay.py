"""A recording's requests, put to the model of the allocator.

Under the recorded settings the model has to land on every recorded address: that is how well it is known. It
gets the addresses of new segments from the file, because the driver chooses those, and gives back what the file
gives back, because the file does not say how full the card was. Everything else it decides itself.

Under other settings, or with another amount of memory, it decides everything. Frees keep their places in the
history, and so do the moments at which other streams were done.
"""

from __future__ import annotations

from memviz.allocator.as_recorded import replay_as_recorded
from memviz.allocator.other_settings import OtherSettings
from memviz.allocator.replayed import Replayed
from memviz.allocator.replayer import Source
from memviz.allocator.settings import Settings
from memviz.errors import UsageError
from memviz.trace.model import Blocks, DeviceTrace, Segments, Trace


def source_of(trace: Trace, device: DeviceTrace | None = None) -> Source:
    """What every replay of this device starts from; several replays can share it."""
    chosen = trace.devices[0] if device is None else device
    if chosen.kind != "gpu":
        raise UsageError("Pinned memory has another allocator; only a GPU's history can be replayed.")
    if _reach_past_the_end(chosen.segments) or _reach_past_the_end(chosen.blocks):
        raise UsageError("Its segments reach past the last address that there is: no allocator could lay them out.")
    return Source(trace, chosen)


def _reach_past_the_end(lying: Segments | Blocks) -> bool:
    """The upper half of addresses is kept as negative numbers."""
    return bool(((lying.address < 0) & (lying.address + lying.size > 0)).any())


def replay(
    trace: Trace,
    device: DeviceTrace | None = None,
    *,
    settings: Settings | None = None,
    memory: int | None = None,
    total: int | None = None,
) -> Replayed:
    """`memory` is what the process can have of a card, `total` the whole card, of which fractions are counted."""
    source = source_of(trace, device)
    wanted = source.recorded if settings is None else settings
    if wanted == source.recorded and memory is None and total is None:
        return replay_as_recorded(source)
    return OtherSettings(source, wanted, memory=memory, total=memory if total is None else total).result()
