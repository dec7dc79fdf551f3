"""How well the model knows a file, which is how far its other answers can be trusted."""

from __future__ import annotations

from memviz.allocator.replayed import Replayed
from memviz.trace.model import Action
from memviz.units import count_text


def exactness(recorded: Replayed) -> str:
    first = recorded.agreement.first_mismatch if recorded.agreement else None
    if first is not None:
        return f"replay of the recording exact up to event {count_text(first.event)}. {first.why}"
    return f"replay of the recording exact, 0 of {count_text(addresses(recorded))} addresses differ"


def addresses(recorded: Replayed) -> int:
    """How many there are to land on."""
    return int((recorded.trace.devices[0].events.action == Action.ALLOC).sum())
