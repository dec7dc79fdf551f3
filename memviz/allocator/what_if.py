"""Would it have fitted? The same requests under other settings, or on another card."""

from __future__ import annotations

from dataclasses import dataclass

from memviz.allocator.as_recorded import replay_as_recorded
from memviz.allocator.other_settings import OtherSettings
from memviz.allocator.replay import source_of
from memviz.allocator.replayer import Replayed, Source
from memviz.allocator.settings import Settings
from memviz.errors import UsageError
from memviz.trace.model import DeviceTrace, Trace
from memviz.trace.rounding import MiB
from memviz.units import bytes_text

GiB = 1 << 30

OVERHEAD_BYTES = 512 * MiB
"""Taken from every card before PyTorch's allocator gets any: the context and loaded kernels, 0.3 to 0.6 GiB and
more where libraries such as NCCL keep buffers of their own. An assumption; files do not say."""

CARD_BYTES = tuple(size * GiB for size in (4, 6, 8, 10, 11, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96, 128, 141, 192, 288))
"""Sizes that cards are sold in, taken as whole GiB."""


@dataclass(frozen=True)
class Card:
    total_bytes: int
    overhead_bytes: int = OVERHEAD_BYTES

    @property
    def usable_bytes(self) -> int:
        return max(0, self.total_bytes - self.overhead_bytes)


@dataclass(frozen=True)
class WhatIf:
    recorded: Replayed
    """Under the recorded settings, to show how well the model knows this file."""
    replayed: Replayed
    card: Card | None


def what_if(
    trace: Trace, device: DeviceTrace | None = None, *, settings: Settings | None = None, card: Card | None = None
) -> WhatIf:
    """Without settings the recorded ones; without a card memory without end."""
    source = source_of(trace, device)
    recorded = replay_as_recorded(source)
    if card is None and settings in (None, source.recorded):
        return WhatIf(recorded, recorded, None)
    return WhatIf(recorded, replay_on(source, settings, card), card)


def replay_on(
    source: Source, settings: Settings | None = None, card: Card | None = None, *, afresh: bool = False
) -> Replayed:
    """`afresh`: what was live before the first event is placed anew, whatever the settings."""
    wanted = source.recorded if settings is None else settings
    if card is None:
        return OtherSettings(source, wanted, memory=None, total=None, afresh=afresh).result()
    if card.usable_bytes == 0:
        total, overhead = bytes_text(card.total_bytes), bytes_text(card.overhead_bytes)
        raise UsageError(
            f"A card of {total} has nothing left once {overhead} is set aside for the CUDA context; "
            "name a larger card, or a smaller overhead."
        )
    return OtherSettings(source, wanted, memory=card.usable_bytes, total=card.total_bytes, afresh=afresh).result()


def smallest_card(
    source: Source, settings: Settings | None = None, *, overhead_bytes: int = OVERHEAD_BYTES
) -> Card | None:
    """The smallest of the usual sizes on which it runs to its end; None where none of them does."""
    cards = [Card(size, overhead_bytes) for size in CARD_BYTES]
    at_least = replay_on(source, settings).peak_requested_bytes
    for card in cards:
        if card.usable_bytes >= at_least and replay_on(source, settings, card).oom is None:
            return card
    return None


def least_memory(source: Source, settings: Settings | None = None, *, step_bytes: int = 64 * MiB) -> int:
    """Bytes that the process needs, to within a step: with so much it runs to its end, with a step less it runs out.

    Found by halving. More memory can in principle fit worse, so this is one such boundary, not a proof.
    """
    free = replay_on(source, settings)
    enough, short = free.peak_reserved_bytes, max(0, free.peak_requested_bytes - step_bytes)
    while enough - short > step_bytes:
        middle = (enough + short) // 2
        if replay_on(source, settings, Card(middle, 0)).oom is None:
            enough = middle
        else:
            short = middle
    return enough
