"""Would it have fitted? The same requests under other settings, or on another card."""

from __future__ import annotations

from dataclasses import dataclass, replace

from memviz.allocator.as_recorded import replay_as_recorded
from memviz.allocator.other_settings import OtherSettings
from memviz.allocator.replay import source_of
from memviz.allocator.replayer import Figures, Progress, Replayed, Source, part_of
from memviz.allocator.settings import Settings
from memviz.errors import UsageError
from memviz.trace.model import DeviceTrace, Trace
from memviz.trace.rounding import MiB
from memviz.units import bytes_text

GiB = 1 << 30

OVERHEAD_BYTES = 512 * MiB
"""Taken from every card before PyTorch's allocator gets any: the context and loaded kernels, and more where libraries
such as NCCL keep buffers of their own. An assumption; files do not say. What is known stands in `context.py`."""

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
    smallest_card: Card | None = None
    """Of the usual sizes, the smallest on which `replayed` would have run to its end; None where none is large
    enough, or nobody asked."""


def what_if(
    trace: Trace,
    device: DeviceTrace | None = None,
    *,
    settings: Settings | None = None,
    card: Card | None = None,
    overhead_bytes: int | None = None,
    progress: Progress | None = None,
) -> WhatIf:
    """Without settings the recorded ones; without a card memory without end.

    `overhead_bytes` are taken from the cards of the usual sizes; without it as much as from `card`.
    """
    source = source_of(trace, device)
    wanted = source.recorded if settings is None else settings
    if wanted != source.recorded:
        check_share(wanted, card)
    recorded = replay_as_recorded(source, part_of(progress, 0, 4))
    base = recorded if card is None else replay_on(source, None, card, progress=part_of(progress, 1, 4))
    ours = base if wanted == source.recorded else replay_on(source, wanted, card, progress=part_of(progress, 2, 4))
    if overhead_bytes is None:
        overhead_bytes = card.overhead_bytes if card else OVERHEAD_BYTES
    return WhatIf(recorded, base, ours, card, smallest_for(source, ours, overhead_bytes, part_of(progress, 3, 4)))


def smallest_for(
    source: Source, replayed: Replayed, overhead_bytes: int = OVERHEAD_BYTES, progress: Progress | None = None
) -> Card | None:
    """The smallest card for settings that were replayed already."""
    was_free = replayed.memory is None and replayed.agreement is None
    free = replayed if was_free or never_short(replayed) else None
    return smallest_card(source, replayed.settings, overhead_bytes=overhead_bytes, free=free, progress=progress)


def never_short(on_card: Figures) -> bool:
    """Then more memory would have changed nothing. Two kinds of settings give memory back without a retry."""
    settings = on_card.settings
    gives_back = settings.max_split_size is not None or settings.garbage_collection_threshold > 0
    return on_card.oom is None and on_card.retries == 0 and not gives_back


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
    return _replay_of(source, settings, card, afresh).result(progress)


def figures_on(
    source: Source,
    settings: Settings | None = None,
    card: Card | None = None,
    *,
    afresh: bool = False,
    progress: Progress | None = None,
) -> Figures:
    """What `replay_on` comes to, in half the time."""
    return _replay_of(source, settings, card, afresh).only_figures(progress)


def _replay_of(source: Source, settings: Settings | None, card: Card | None, afresh: bool) -> OtherSettings:
    wanted = source.recorded if settings is None else settings
    if card is None:
        # Of memory without end there is no share.
        endless = replace(wanted, per_process_memory_fraction=1.0)
        return OtherSettings(source, endless, memory=None, total=None, afresh=afresh)
    if card.usable_bytes == 0:
        total, overhead = bytes_text(card.total_bytes), bytes_text(card.overhead_bytes)
        raise UsageError(
            f"A card of {total} has nothing left once {overhead} is set aside for the CUDA context; "
            "name a larger card, or a smaller overhead."
        )
    return OtherSettings(source, wanted, memory=card.usable_bytes, total=card.total_bytes, afresh=afresh)


def smallest_card(
    source: Source,
    settings: Settings | None = None,
    *,
    overhead_bytes: int = OVERHEAD_BYTES,
    afresh: bool = False,
    free: Figures | None = None,
    progress: Progress | None = None,
) -> Card | None:
    """The smallest of the usual sizes on which it runs to its end; None where none of them does.

    `free` is the same with memory without end, for whoever has it already.
    """
    tell = progress

    def is_going_on(done: int, total: int) -> None:
        """How many cards will have to be tried is not known."""
        if tell:
            tell(total, 2 * total)

    endless = figures_on(source, settings, afresh=afresh, progress=part_of(tell, 0, 2)) if free is None else free
    for card in (Card(size, overhead_bytes) for size in CARD_BYTES):
        if card.usable_bytes < endless.peak_requested_bytes:
            continue
        if card.usable_bytes >= endless.peak_reserved_bytes and not _is_limited(source, settings):
            return card
        if figures_on(source, settings, card, afresh=afresh, progress=is_going_on).oom is None:
            return card
    return None


def _is_limited(source: Source, settings: Settings | None) -> bool:
    return (source.recorded if settings is None else settings).per_process_memory_fraction < 1


def least_memory(source: Source, settings: Settings | None = None, *, step_bytes: int = 64 * MiB) -> int:
    """Bytes that the process needs, to within a step: with so much it runs to its end, with a step less it runs out.

    Found by halving. More memory can in principle fit worse, so this is one such boundary, not a proof.
    """
    free = figures_on(source, settings)
    enough, short = free.peak_reserved_bytes, max(0, free.peak_requested_bytes - step_bytes)
    while enough - short > step_bytes:
        middle = (enough + short) // 2
        if figures_on(source, settings, Card(middle, 0)).oom is None:
            enough = middle
        else:
            short = middle
    return enough
