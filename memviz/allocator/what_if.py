"""The same requests under other settings, on another card, or edited: figures, and if they fit.

`fit_word` answers "close" where the CUDA context or a prediction's own error decides.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from memviz.allocator.context import OVERHEAD_BYTES, CudaContext, context_on
from memviz.allocator.recorded_replay import replay_as_recorded
from memviz.allocator.replay import PLACED_ANEW, OtherSettings, SameRequests, source_of, why_diverged
from memviz.allocator.replay_result import Figures, Replayed
from memviz.allocator.replayer import Progress, Source, part_of, rest_of
from memviz.allocator.settings import Settings
from memviz.errors import UsageError
from memviz.trace.model import ESTIMATE_CODE, DeviceTrace, Note, Trace, is_reserved_known, reserved_after
from memviz.units import bytes_text

GiB = 1 << 30

CARD_BYTES = tuple(size * GiB for size in (4, 6, 8, 10, 11, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96, 128, 141, 192, 288))
"""Sizes that cards are sold in, taken as whole GiB."""


FitWord = Literal["yes", "no", "close"]


@dataclass(frozen=True)
class CardMemory:
    total_bytes: int
    overhead_bytes: int = OVERHEAD_BYTES

    @property
    def usable_bytes(self) -> int:
        return max(0, self.total_bytes - self.overhead_bytes)

    @property
    def name(self) -> str:
        """Marketed size: '8 GiB', where a number of bytes would read '8,192 MiB'."""
        return bytes_text(self.total_bytes) if self.total_bytes % GiB else f"{self.total_bytes // GiB} GiB"


@dataclass(frozen=True)
class WhatIf:
    """One frozen answer: every sentence, line, row and figure of a what-if is taken from it."""

    recorded: Replayed
    """Under the recorded settings, guided by the file, to show how well the model knows it."""
    base: Replayed
    """The recorded settings in the memory asked for, from where memory lay; `recorded` where that comes to the same."""
    rival: Replayed
    """Counterpart of `replayed`: the recorded settings in the same memory and from the same start."""
    replayed: Replayed
    card: CardMemory | None
    recorded_peak_bytes: int
    """Peak reserved by the file itself; 0 where it does not tell."""
    parted: str
    """Why `base` does not do what is recorded, in words that go on after a colon; empty where it does."""
    device: str = "0"
    events: int = 0
    """Number of recorded events."""
    devices: int = 1
    """How many the trace has: where there are several, whatever is said of one names it."""
    smallest_card: CardMemory | None = None
    """Smallest of the usual sizes on which `replayed` would have run to its end; None where none is large enough, or it
    was not searched."""
    fit: FitWord | None = None
    """Fit of `replayed`, where CUDA memory outside the allocator is an interval; None without a card."""
    context: CudaContext | None = None
    """CUDA memory outside the allocator; None where there is none."""

    @property
    def knows_recorded_peak(self) -> bool:
        return is_reserved_known(self.recorded.peak_requested_bytes, self.recorded_peak_bytes)

    @property
    def why_not_as_recorded(self) -> str:
        """Why what `replayed` is compared with is not the recording itself; empty where it is."""
        reasons = [self.parted] if self.rival is self.base else [self.parted, PLACED_ANEW]
        return "; ".join(dict.fromkeys(reason for reason in reasons if reason))

    @property
    def change_bytes(self) -> int:
        """Change of peak reserved against the recorded settings."""
        return self.replayed.peak_reserved_bytes - self.rival.peak_reserved_bytes


ReplayOn = Callable[[Settings, CardMemory | None, bool, Progress | None], Replayed]
"""Under these settings, on this card, and whether what was live before the first event is placed anew."""


def what_if(
    trace: Trace,
    device: DeviceTrace | None = None,
    *,
    settings: Settings | None = None,
    card: CardMemory | None = None,
    overhead_bytes: int | None = None,
    progress: Progress | None = None,
    source: Source | None = None,
) -> WhatIf:
    """Without settings the recorded ones; without a card memory without end.

    `overhead_bytes` are taken from the cards of the usual sizes; without it as much as from `card`.
    """
    source = source or source_of(trace, device)
    wanted = source.recorded if settings is None else settings
    if wanted != source.recorded:
        check_share(wanted, card)
    recorded = replay_as_recorded(source, part_of(progress, 0, 5))

    def replay(settings: Settings, card: CardMemory | None, afresh: bool, progress: Progress | None) -> Replayed:
        return replay_on(source, settings, card, afresh=afresh, progress=progress)

    outcome = build_what_if(source, recorded, wanted, card, replay=replay, progress=rest_of(progress, 1, 5))
    if overhead_bytes is None:
        overhead_bytes = card.overhead_bytes if card else OVERHEAD_BYTES
    smallest = smallest_for(source, outcome.replayed, overhead_bytes, part_of(progress, 4, 5))
    return replace(outcome, smallest_card=smallest)


def build_what_if(
    source: Source,
    recorded: Replayed,
    wanted: Settings,
    card: CardMemory | None,
    *,
    replay: ReplayOn,
    progress: Progress | None = None,
) -> WhatIf:
    """Like is compared with like. Without the smallest card, which may take several replays."""
    starts_late = bool(source.layout.segments)
    does_the_same = card is None and recorded.exact and not source.freed.was_short
    base = recorded if does_the_same else replay(source.recorded, card, False, part_of(progress, 0, 4))
    ours = rival = base
    if wanted != source.recorded:
        ours = replay(wanted, card, starts_late, part_of(progress, 1, 4))
        if ours.is_placed_anew and not base.is_placed_anew:
            rival = replay(source.recorded, card, True, part_of(progress, 2, 4))
    total = card.total_bytes if card else None
    return WhatIf(
        recorded=recorded,
        base=base,
        rival=rival,
        replayed=ours,
        card=card,
        recorded_peak_bytes=int(reserved_after(source.device).max()),
        parted="" if does_the_same else why_diverged(source, recorded, base, total),
        device=source.device.name,
        events=len(source.device.events),
        devices=len(source.trace.devices),
    )


def smallest_for(
    source: Source, replayed: Replayed, overhead_bytes: int = OVERHEAD_BYTES, progress: Progress | None = None
) -> CardMemory | None:
    """The smallest card for settings that were replayed already."""
    was_free = replayed.memory is None and replayed.agreement is None
    free = replayed if was_free or always_had_room(replayed) else None
    anew = replayed.is_placed_anew
    return smallest_card(
        source, replayed.settings, overhead_bytes=overhead_bytes, afresh=anew, free=free, progress=progress
    )


def always_had_room(on_card: Figures) -> bool:
    """Then more memory would have changed nothing. Two kinds of settings give memory back without a retry."""
    settings = on_card.settings
    gives_back = settings.max_split_size is not None or settings.garbage_collection_threshold > 0
    return on_card.oom is None and on_card.retries == 0 and not gives_back


def check_share(settings: Settings, card: CardMemory | None) -> None:
    if card is None and settings.per_process_memory_fraction < 1:
        raise UsageError("per_process_memory_fraction is a share of the card's memory: say how large the card is.")


def check_room(card: CardMemory) -> None:
    if card.usable_bytes == 0:
        total, overhead = bytes_text(card.total_bytes), bytes_text(card.overhead_bytes)
        raise UsageError(
            f"A card of {total} has nothing left once {overhead} is set aside for the CUDA context; "
            "name a larger card, or a smaller overhead."
        )


def replay_on(
    source: Source,
    settings: Settings | None = None,
    card: CardMemory | None = None,
    *,
    afresh: bool = False,
    progress: Progress | None = None,
) -> Replayed:
    """`afresh`: what was live before the first event is placed anew, whatever the settings."""
    return _replay_of(source, settings, card, afresh).result(progress)


def figures_on(
    source: Source,
    settings: Settings | None = None,
    card: CardMemory | None = None,
    *,
    afresh: bool = False,
    progress: Progress | None = None,
) -> Figures:
    """Return the figures of `replay_on`, in half the time."""
    return _replay_of(source, settings, card, afresh).only_figures(progress)


def _replay_of(source: Source, settings: Settings | None, card: CardMemory | None, afresh: bool) -> OtherSettings:
    kind = OtherSettings if source.said is None else SameRequests
    wanted = source.recorded if settings is None else settings
    if card is None:
        # Of memory without end there is no share.
        endless = replace(wanted, per_process_memory_fraction=1.0)
        return kind(source, endless, memory=None, total=None, afresh=afresh)
    check_room(card)
    return kind(source, wanted, memory=card.usable_bytes, total=card.total_bytes, afresh=afresh)


def smallest_card(
    source: Source,
    settings: Settings | None = None,
    *,
    overhead_bytes: int = OVERHEAD_BYTES,
    afresh: bool = False,
    free: Figures | None = None,
    progress: Progress | None = None,
) -> CardMemory | None:
    """The smallest of the usual sizes on which it runs to its end; None where none of them does.

    `free` is the same without a memory limit, if the caller has it already.
    """
    tell = progress

    def is_going_on(done: int, total: int) -> None:
        """How many cards will have to be tried is not known."""
        if tell:
            tell(total, 2 * total)

    endless = figures_on(source, settings, afresh=afresh, progress=part_of(tell, 0, 2)) if free is None else free
    for card in (CardMemory(size, overhead_bytes) for size in CARD_BYTES):
        if card.usable_bytes < endless.peak_requested_bytes:
            continue
        if card.usable_bytes >= endless.peak_reserved_bytes and not _is_limited(source, settings):
            return card
        if figures_on(source, settings, card, afresh=afresh, progress=is_going_on).oom is None:
            return card
    return None


def _is_limited(source: Source, settings: Settings | None) -> bool:
    return (source.recorded if settings is None else settings).per_process_memory_fraction < 1


@dataclass(frozen=True)
class Doubt:
    """Uncertainty of a run on a card."""

    context: CudaContext
    more: float = 0.0
    """Share by which the run may need more than predicted; `less` is the share for less."""
    less: float = 0.0
    more_bytes: int = 0
    """Bytes that the prediction does not count, at most; `more` holds as well."""

    def surely_usable(self, card_bytes: int) -> int:
        """Return the usable memory at worst, in bytes of the prediction."""
        left = card_bytes - self.context.most_bytes
        return max(0, int(min(left / (1 + self.more), (left - self.more_bytes) / (1 + self.less))))

    def perhaps_usable(self, card_bytes: int) -> int:
        """Return the usable memory at best, in bytes of the prediction."""
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
    if not ends and (_within(limit, surely) or known.peak_reserved_bytes <= surely and always_had_room(known)):
        return "yes"
    if known.peak_requested_bytes > perhaps or ends and not _within(limit, perhaps - 1):
        return "no"
    if not (ends and not _within(limit, surely - 1)) and _runs(source, settings, surely, part_of(progress, 0, 2)):
        return "yes"
    if not ends and _within(limit, perhaps):
        return "close"
    return "close" if _runs(source, settings, perhaps, part_of(progress, 1, 2)) else "no"


def context_beside(source: Source, card: CardMemory) -> CudaContext:
    """Return the CUDA memory outside the allocator: as given, or else as measured on the card that the trace names."""
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


ESTIMATE = "an estimate from the trace"


@dataclass(frozen=True)
class ReplayedEstimate:
    """Both in memory without end, under the recorded settings but for what was changed."""

    before: Figures
    after: Figures

    @property
    def live_change(self) -> int:
        """Change of peak requested."""
        return self.after.peak_requested_bytes - self.before.peak_requested_bytes

    @property
    def reserved_change(self) -> int:
        """Change of peak reserved."""
        return self.after.peak_reserved_bytes - self.before.peak_reserved_bytes


def unchanged(source: Source) -> Figures:
    """Return the baseline of every estimate of this source."""
    return figures_on(source, afresh=_estimate_terms(source, expandable=False)[1])


def estimate(
    source: Source, changed: Trace | None = None, *, expandable: bool = False, before: Figures | None = None
) -> ReplayedEstimate:
    """Replay `changed`, requests of the same device, or else those of the source. `before` is the result of
    `unchanged`, if the caller has it already."""
    settings, afresh = _estimate_terms(source, expandable)
    after = figures_on(_estimate_source(source, changed), settings, afresh=afresh)
    return ReplayedEstimate(unchanged(source) if before is None else before, after)


def estimated_trace(
    source: Source, changed: Trace | None, name: str, assumptions: tuple[str, ...], *, expandable: bool = False
) -> Trace:
    """The history that comes of it, which says of itself what it is."""
    settings, afresh = _estimate_terms(source, expandable)
    return _named(replay_on(_estimate_source(source, changed), settings, afresh=afresh), name, assumptions)


def _estimate_terms(source: Source, expandable: bool) -> tuple[Settings | None, bool]:
    """Return the settings, and whether blocks from before the first event are placed anew on both sides: memory
    reserved for them says nothing of what would have been."""
    settings = replace(source.recorded, expandable_segments=True) if expandable else None
    return settings, bool(source.layout.segments)


def _estimate_source(source: Source, changed: Trace | None) -> Source:
    return source if changed is None else source_of(changed)


def _named(replayed: Replayed, name: str, assumptions: tuple[str, ...]) -> Trace:
    about = replayed.trace.about
    text = f"It is {ESTIMATE}, not a recording. It assumes: {' '.join(assumptions)}"
    note = Note(ESTIMATE_CODE, text, level="warning", device=replayed.trace.devices[0].name)
    return replace(replayed.trace, about=replace(about, on=f"{name}, {ESTIMATE}"), notes=(note, *replayed.trace.notes))
