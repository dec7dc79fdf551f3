"""Does it fit? The run's own requests, replayed on the card with the memory that a process gets there."""

from __future__ import annotations

from memviz.allocator.context import overhead_on
from memviz.allocator.replay import source_of
from memviz.allocator.what_if import Card, replay_on
from memviz.runner.predict import cards
from memviz.runner.run import Fit
from memviz.trace.model import Trace


def fit_on(trace: Trace, named: cards.Card, peak_reserved_bytes: int) -> Fit:
    """`peak_reserved_bytes` is what the run reserves where nothing limits it."""
    card = Card(named.memory_bytes, overhead_on(named.name))
    usable = card.usable_bytes
    replayed = replay_on(source_of(trace, trace.devices[0]), None, card)
    out = replayed.oom
    return Fit(
        usable_bytes=usable,
        fits=out is None,
        peak_reserved_bytes=replayed.peak_reserved_bytes,
        event=None if out is None else out.event,
        requested_bytes=None if out is None else out.requested_bytes,
        allocated_bytes=None if out is None else out.allocated_bytes,
        too_much_bytes=peak_reserved_bytes - usable,
        overhead_bytes=card.overhead_bytes,
    )
