"""One of many settings: what it would have needed, and whether it had run to its end."""

from __future__ import annotations

from dataclasses import dataclass

from memviz.allocator.as_recorded import known
from memviz.allocator.replayed import Figures, RanOut
from memviz.allocator.replayer import Progress, Source, part_of
from memviz.allocator.settings import Settings
from memviz.allocator.what_if import CardMemory, figures_on, never_short, smallest_card


@dataclass(frozen=True)
class Tried:
    settings: Settings
    text: str
    """To paste behind `PYTORCH_CUDA_ALLOC_CONF=`; empty for PyTorch's defaults."""
    is_recorded: bool
    """These are the settings of the recording."""
    is_as_recorded: bool
    """And replayed like this they do what is recorded, to the address."""
    peak_requested_bytes: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    """With memory without end."""
    retries: int
    """On the card, where there is one; so are the next two."""
    oom: RanOut | None
    reserved_on_card_bytes: int
    smallest_card: CardMemory | None
    """Of the usual sizes; None where none is large enough."""

    @property
    def fits(self) -> bool:
        return self.oom is None


def tried_with(
    source: Source, settings: Settings, card: CardMemory | None, overhead_bytes: int, progress: Progress | None
) -> Tried:
    """What these settings come to, on the card and without one."""
    # All of them start from a fresh layout, so that no one is charged with a cache that the others do not have.
    on_card = figures_on(source, settings, card, afresh=True, progress=part_of(progress, 0, 3))
    free = (
        on_card
        if card is None or never_short(on_card)
        else figures_on(source, settings, afresh=True, progress=part_of(progress, 1, 3))
    )
    smallest = smallest_card(
        source, settings, overhead_bytes=overhead_bytes, afresh=True, free=free, progress=part_of(progress, 2, 3)
    )
    return Tried(
        settings=settings,
        text=settings.to_text(),
        is_recorded=settings == source.recorded,
        is_as_recorded=settings == source.recorded and _does_the_same(source, on_card),
        peak_requested_bytes=free.peak_requested_bytes,
        peak_allocated_bytes=free.peak_allocated_bytes,
        peak_reserved_bytes=free.peak_reserved_bytes,
        retries=on_card.retries,
        oom=on_card.oom,
        reserved_on_card_bytes=on_card.peak_reserved_bytes,
        smallest_card=smallest,
    )


def _does_the_same(source: Source, on_card: Figures) -> bool:
    """Neither start nor end of memory makes a difference to what is recorded."""
    is_known = bool(known(source).is_exact) and not source.layout.segments
    return is_known and not source.freed.was_short and (on_card.memory is None or never_short(on_card))
