"""Whether it fits, where neither what lies beside the allocator nor the prediction itself is known to the byte."""

from __future__ import annotations

from dataclasses import dataclass, replace

from memviz.allocator.context import OVERHEAD_BYTES, CudaContext, context_on
from memviz.allocator.replayed import Figures
from memviz.allocator.replayer import Progress, Source, part_of
from memviz.allocator.settings import Settings
from memviz.allocator.what_if import CardMemory, FitWord, WhatIf, figures_on, never_short


@dataclass(frozen=True)
class Doubt:
    """What is not known of a run on a card."""

    context: CudaContext
    more: float = 0.0
    """By which share the run may need more than is predicted, and less."""
    less: float = 0.0
    more_bytes: int = 0
    """Bytes that the prediction does not count, at most; `more` holds as well."""

    def surely_usable(self, card_bytes: int) -> int:
        """What is left at worst, in bytes of the prediction."""
        left = card_bytes - self.context.most_bytes
        return max(0, int(min(left / (1 + self.more), (left - self.more_bytes) / (1 + self.less))))

    def perhaps_usable(self, card_bytes: int) -> int:
        """What is left at best."""
        return max(0, int((card_bytes - self.context.least_bytes) / (1 - self.less)))


def fit_word(
    source: Source,
    settings: Settings | None,
    card_bytes: int,
    doubt: Doubt,
    *,
    known: Figures,
    progress: Progress | None = None,
) -> FitWord:
    """`known` is the same in some memory or without a limit: often it says enough, and nothing is replayed again."""
    surely, perhaps = doubt.surely_usable(card_bytes), doubt.perhaps_usable(card_bytes)
    limit, ends = known.memory, known.oom is not None
    if not ends and (_within(limit, surely) or known.peak_reserved_bytes <= surely and never_short(known)):
        return "yes"
    if known.peak_requested_bytes > perhaps or ends and not _within(limit, perhaps - 1):
        return "no"
    if not (ends and not _within(limit, surely - 1)) and _runs(source, settings, surely, part_of(progress, 0, 2)):
        return "yes"
    if not ends and _within(limit, perhaps):
        return "close"
    return "close" if _runs(source, settings, perhaps, part_of(progress, 1, 2)) else "no"


def context_beside(source: Source, card: CardMemory) -> CudaContext:
    """What lies beside the allocator: what was said, or else what was seen on the card that the trace names."""
    if card.overhead_bytes == OVERHEAD_BYTES:
        return context_on(source.trace.about.on)
    return CudaContext("this card", card.overhead_bytes, card.overhead_bytes, "as you said")


def with_fit(source: Source, outcome: WhatIf, progress: Progress | None = None) -> WhatIf:
    """Memory of which nothing is set aside is all the allocator's, and leaves nothing open."""
    ours, card = outcome.replayed, outcome.card
    if card is None:
        return outcome
    if not card.overhead_bytes:
        return replace(outcome, fit="yes" if ours.oom is None else "no")
    context = context_beside(source, card)
    live = max(ours.peak_requested_bytes, outcome.recorded.peak_requested_bytes)
    known = replace(ours, peak_requested_bytes=live)
    word = fit_word(source, ours.settings, card.total_bytes, Doubt(context), known=known, progress=progress)
    return replace(outcome, fit=word, context=context)


def _within(limit: int | None, usable: int) -> bool:
    return limit is not None and limit <= usable


def _runs(source: Source, settings: Settings | None, usable: int, progress: Progress | None) -> bool:
    if not usable:
        return False
    return figures_on(source, settings, CardMemory(usable, 0), progress=progress).oom is None
