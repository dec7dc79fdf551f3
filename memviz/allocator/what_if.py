"""Would it have fitted? The same requests under other settings, or on another card."""

from __future__ import annotations

from dataclasses import dataclass, replace

from memviz.allocator.as_recorded import replay_as_recorded
from memviz.allocator.other_settings import OtherSettings
from memviz.allocator.replay import source_of
from memviz.allocator.replayer import Progress, Replayed, Source, part_of
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

    @property
    def name(self) -> str:
        """As it is sold: '8 GiB', where a number of bytes would read '8,192 MiB'."""
        return bytes_text(self.total_bytes) if self.total_bytes % GiB else f"{self.total_bytes // GiB} GiB"


@dataclass(frozen=True)
class WhatIf:
    recorded: Replayed
    """Under the recorded settings, to show how well the model knows this file."""
    base: Replayed
    """The recorded settings on the card."""
    replayed: Replayed
    card: Card | None


def what_if(
    trace: Trace,
    device: DeviceTrace | None = None,
    *,
    settings: Settings | None = None,
    card: Card | None = None,
    progress: Progress | None = None,
) -> WhatIf:
    """Without settings the recorded ones; without a card memory without end."""
    source = source_of(trace, device)
    wanted = source.recorded if settings is None else settings
    if wanted != source.recorded:
        check_share(wanted, card)
    recorded = replay_as_recorded(source, part_of(progress, 0, 3))
    base = recorded if card is None else replay_on(source, None, card, progress=part_of(progress, 1, 3))
    if wanted == source.recorded:
        return WhatIf(recorded, base, base, card)
    return WhatIf(recorded, base, replay_on(source, wanted, card, progress=part_of(progress, 2, 3)), card)


def check_share(settings: Settings, card: Card | None) -> None:
    if card is None and settings.per_process_memory_fraction < 1:
        raise UsageError("per_process_memory_fraction is a share of the card's memory: say how large the card is.")


def replay_on(
    source: Source,
    settings: Settings | None = None,
    card: Card | None = None,
    *,
    afresh: bool = False,
    progress: Progress | None = None,
) -> Replayed:
    """`afresh`: what was live before the first event is placed anew, whatever the settings."""
    wanted = source.recorded if settings is None else settings
    if card is None:
        # Of memory without end there is no share.
        endless = replace(wanted, per_process_memory_fraction=1.0)
        return OtherSettings(source, endless, memory=None, total=None, afresh=afresh).result(progress)
    if card.usable_bytes == 0:
        total, overhead = bytes_text(card.total_bytes), bytes_text(card.overhead_bytes)
        raise UsageError(
            f"A card of {total} has nothing left once {overhead} is set aside for the CUDA context; "
            "name a larger card, or a smaller overhead."
        )
    memory, total_bytes = card.usable_bytes, card.total_bytes
    return OtherSettings(source, wanted, memory=memory, total=total_bytes, afresh=afresh).result(progress)


def smallest_card(
    source: Source,
    settings: Settings | None = None,
    *,
    overhead_bytes: int = OVERHEAD_BYTES,
    afresh: bool = False,
    free: Replayed | None = None,
) -> Card | None:
    """The smallest of the usual sizes on which it runs to its end; None where none of them does.

    `free` is the same with memory without end, for whoever has it already.
    """
    endless = replay_on(source, settings, afresh=afresh) if free is None else free
    for card in (Card(size, overhead_bytes) for size in CARD_BYTES):
        if card.usable_bytes < endless.peak_requested_bytes:
            continue
        if card.usable_bytes >= endless.peak_reserved_bytes and not _is_limited(source, settings):
            return card
        if replay_on(source, settings, card, afresh=afresh).oom is None:
            return card
    return None


def _is_limited(source: Source, settings: Settings | None) -> bool:
    return (source.recorded if settings is None else settings).per_process_memory_fraction < 1


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
