"""Replays of one recording: as it was, under other settings, on another card, or of edited requests.

Under the recorded settings the model must land on every recorded address. It takes the addresses of new segments from
the file, because the driver chooses them, and releases what the file releases, because the file does not say how full
the card was. Under other settings, or in another amount of memory, the model decides everything; frees and the
completions of other streams keep their places in the history. `divergence` finds where such a replay leaves the
recording.

`Replayer.fits` answers "close" where the CUDA context or a prediction's own error decides.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from memviz.allocator.blocks import AllocationFailed, DeviceMemory, PoolId, Record, address_space, unrecorded
from memviz.allocator.caching import CachingAllocator, Tally, release_cached
from memviz.allocator.context import OVERHEAD_BYTES, CudaContext, communicators_of, context_on, nccl_bytes
from memviz.allocator.event_replay import Progress, RequestReplay, part_of, rest_of
from memviz.allocator.recorded_replay import Entry, RecordedDevice, ensure_replayed, replay_as_recorded
from memviz.allocator.recorded_requests import ReplayStep, Source
from memviz.allocator.replay_result import Figures, RanOut, Replayed, reserved_after_events
from memviz.allocator.settings import Settings, changes_layout
from memviz.allocator.start_layout import lay_out_afresh, lay_out_as_recorded, unsigned
from memviz.errors import UsageError
from memviz.trace.model import ESTIMATE_CODE, Action, Note, Trace, is_reserved_known, reserved_after
from memviz.units import bytes_text, count_text

GiB = 1 << 30

CARD_BYTES = tuple(size * GiB for size in (4, 6, 8, 10, 11, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96, 128, 141, 192, 288))
"""Sizes that cards are sold in, taken as whole GiB."""


FitWord = Literal["yes", "no", "close"]


@dataclass(frozen=True)
class CardMemory:
    total_bytes: int
    overhead_bytes: int = OVERHEAD_BYTES
    """Set aside for the CUDA context."""
    label: str = ""
    """A name by the user, where its size is not enough of one."""

    @property
    def usable_bytes(self) -> int:
        return max(0, self.total_bytes - self.overhead_bytes)

    @property
    def name(self) -> str:
        """Its label, or marketed size: '8 GiB', where a number of bytes would read '8,192 MiB'."""
        if self.label:
            return self.label
        return bytes_text(self.total_bytes) if self.total_bytes % GiB else f"{self.total_bytes // GiB} GiB"


class OtherSettings(RequestReplay):
    def __init__(
        self, source: Source, settings: Settings, *, memory: int | None, total: int | None, afresh: bool = False
    ) -> None:
        """`afresh` even where the settings would allow the recorded layout: to compare with some that do not."""
        device = DeviceMemory(memory, total=total, addresses=address_space(source.platform))
        super().__init__(source, settings, device)
        if source.steps.before_mallocs:
            # A replay as recorded shows which of these releases were the program's own.
            ensure_replayed(source)
        self.emptied = source.releases.emptied
        self.starts_afresh = afresh or changes_layout(source.recorded, settings)

    def result(self, progress: Progress | None = None) -> Replayed:
        self._run_to_its_end(progress, self.history.add)
        return self.finished(None, self.allocator.statistics.num_alloc_retries)

    def only_figures(self, progress: Progress | None = None) -> Figures:
        """Without the history, in half the time."""
        self._run_to_its_end(progress, unrecorded)
        return self.figures(self.allocator.statistics.num_alloc_retries)

    def _run_to_its_end(self, progress: Progress | None, record: Record) -> None:
        self.progress = progress
        try:
            if not self.starts_afresh:
                self._start_as_recorded()
            if self.starts_afresh:
                self.live = lay_out_afresh(self.allocator, self.source.layout)
            self.allocator.statistics.reset_peak()
            self.allocator.statistics.reset_accumulated()
            self.allocator.record = record
            self.run()
        except AllocationFailed as error:
            figures = (error.requested, error.asked_of_device, error.allocated, error.reserved)
            self.oom = RanOut(self.history.now, *figures)

    def _start_as_recorded(self) -> None:
        memory, self.device.memory = self.device.memory, None
        self.device.exclude_segments([(segment.address, segment.size) for segment in self.source.layout.segments])
        self.live = lay_out_as_recorded(self.allocator, self.source.layout, self.source.spaces)
        self.device.memory = memory
        if self._holds_too_much():
            # On such a card it would have been given back before.
            release_cached(self.allocator)
        if self._holds_too_much():
            # What was live lay too far apart for this card, so there it cannot have lain like that.
            self.starts_afresh = True
            self.device.in_use = 0
            self.allocator = CachingAllocator(self.settings, self.device, statistics=Tally())

    def _holds_too_much(self) -> bool:
        limits = [limit for limit in (self.device.memory, self.allocator.limit) if limit is not None]
        return bool(limits) and self.allocator.statistics.reserved > min(limits)

    def malloc(self, event: int, address: int, size: int, stream: int, pool: PoolId) -> None:
        if address in self.live:
            self.free_what_is_there(address)
        block = self.allocator.malloc(size, stream, pool)
        block.cause = event
        self.live[address] = block

    def release(self, event: int, address: int, size: int, stream: int, pool: PoolId) -> None:
        emptied = self.emptied.get(event)
        if emptied is None:
            return
        private = [
            self.allocator.private_pools[pool_id] for pool_id in emptied if pool_id in self.allocator.private_pools
        ]
        for pair in private:
            # The pool gave memory back, so no graph used it any more.
            pair.use_count = 0
        release_cached(self.allocator)
        for pair in private:
            pair.use_count = 1

    def grow(self, event: int, address: int, size: int, stream: int, pool: PoolId) -> None:
        """Its own affair, under these settings."""

    def out_of_memory(self, event: int, address: int, size: int, stream: int, pool: PoolId) -> None:
        """Repeat the request. If it succeeds here, free it at once: the file has no further events of it."""
        block = self.allocator.malloc(size, stream, pool)
        block.cause = event
        self.allocator.request_free(block)
        self.allocator.complete_free(block)


class SameRequests(OtherSettings):
    """Replay of a program whose every allocator call is known, and not only their effects under its own settings."""

    def run(self) -> None:
        calls, begun = self.source.calls, 0
        assert calls is not None
        for stop in sorted({*calls.emptied, calls.reset}):
            self.run_events(begun, stop)
            begun = stop
            for _ in range(calls.emptied.count(stop)):
                self.allocator.empty_cache()
            if stop == calls.reset:
                self.allocator.statistics.reset_peak()
        self.run_events(begun, len(self.source.device.events))

    def release(self, event: int, address: int, size: int, stream: int, pool: PoolId) -> None:
        """Ignore recorded releases: `empty_cache` releases the model's own memory."""


def divergence(source: Source, replayed: Replayed, total: int | None = None) -> int | None:
    """Return the recorded event at which this replay of the recorded settings first differs from the recording.

    None where it does all that is recorded, up to where it ran out. `total` is the whole card that it was on.
    """
    recorded = reserved_after(source.device)
    ours = reserved_after_events(replayed, len(source.device.events))
    # Segments that a malloc allocates and frees are before it in a recording, and within it in a replay.
    passing = [ReplayStep.NOTHING, ReplayStep.RELEASE, ReplayStep.GROW, ReplayStep.COPY, ReplayStep.ANNOTATE]
    settled = np.flatnonzero(~np.isin(source.steps.step, passing)[: len(ours) - 1]) + 1
    differs = settled[ours[settled] != recorded[settled]]
    if len(differs):
        # The recording has the releases of a malloc before it.
        malloc = int(differs[0]) - 1
        ladders = (ladder for ladder in source.steps.before_mallocs if ladder.malloc not in source.steps.out_of_memory)
        return next((ladder.first for ladder in ladders if ladder.malloc == malloc), malloc)
    failed = source.steps.out_of_memory
    if replayed.oom is not None and replayed.oom.event not in failed:
        return replayed.oom.event
    if not source.steps.before_mallocs and not failed and not replayed.retries:
        return None
    return _ComparedReplay(source, replayed.memory, total).divergence()


def why_diverged(source: Source, recorded: Replayed, base: Replayed, total: int | None = None) -> str:
    """In words that go on after a colon; empty where the replay does what is recorded."""
    first = recorded.agreement.first_mismatch if recorded.agreement else None
    if first is not None:
        return f"the allocator model matches it only up to event {count_text(first.event)}"
    if base.is_placed_anew:
        return PLACED_ANEW
    at = divergence(source, base, total)
    if at is None:
        return ""
    where, event = "without a limit" if base.memory is None else f"in {bytes_text(base.memory)}", count_text(at)
    if at in source.steps.out_of_memory:
        return f"it ran out of memory at event {event}, and {where} it does not"
    actions = source.device.events.action
    if 0 <= at < len(actions) and actions[at] in (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP):
        return f"it released its cache for lack of memory at event {event}; {where} that is not needed"
    if base.oom is not None and base.oom.event <= at:
        return f"it went on at event {event}, and {where} no memory is left"
    return f"it allocated more at event {event} than there is {where}"


PLACED_ANEW = "memory cached before recording started is left out of the comparison"


class _Diverged(Exception):
    pass


class _ComparedReplay(OtherSettings):
    """On recorded addresses, held against the recording entry by entry."""

    def __init__(self, source: Source, memory: int | None, total: int | None) -> None:
        wanted = source.recorded if total is not None else replace(source.recorded, per_process_memory_fraction=1.0)
        super().__init__(source, wanted, memory=memory, total=total)
        self.recording = RecordedDevice(source.spaces, memory, total=total)
        self.device = self.allocator.device = self.recording
        events = source.device.events
        columns = (events.action, unsigned(events.address), events.size)
        self.entries: list[Entry] = list(zip(*(column.tolist() for column in columns), strict=True))
        self.compared: list[int] = np.flatnonzero(events.action <= Action.SEGMENT_UNMAP).tolist()
        self.reached = 0

    def divergence(self) -> int | None:
        is_whole = False
        try:
            self._run_to_its_end(None, self._compare)
            is_whole = self.reached == len(self.compared) or self.oom is not None
        except _Diverged:
            pass
        return None if is_whole and not self.starts_afresh else [*self.compared, len(self.entries)][self.reached]

    def _compare(self, action: Action, address: int, size: int, stream: int, pool: PoolId) -> None:
        if action is Action.OOM:
            # It ends there; what the driver called free need not be the same number.
            return
        if self.reached == len(self.compared) or self.entries[self.compared[self.reached]] != (action, address, size):
            raise _Diverged
        self.reached += 1

    def malloc(self, event: int, address: int, size: int, stream: int, pool: PoolId) -> None:
        grown, there = int(self.source.steps.grown[event]), self.allocator.segments
        self.recording.offer(entry for entry in self.entries[event - grown : event] if entry[1] not in there)
        super().malloc(event, address, size, stream, pool)

    def out_of_memory(self, event: int, address: int, size: int, stream: int, pool: PoolId) -> None:
        super().out_of_memory(event, address, size, stream, pool)
        # It got what the recording was refused.
        raise _Diverged


@dataclass(frozen=True)
class WhatIf:
    """One frozen answer: every sentence, line, row and figure of a what-if is taken from it."""

    recorded: Replayed
    """Under the recorded settings, guided by the file, to show how well the model knows it."""
    base: Replayed
    """The recorded settings on the requested card, from the recorded start; `recorded` where both are equal."""
    compared_with: Replayed
    """Counterpart of `replayed`: the recorded settings in the same memory and from the same start."""
    replayed: Replayed
    card: CardMemory | None
    recorded_peak_bytes: int
    """Peak reserved by the file itself; 0 where it does not tell."""
    divergence: str
    """Why `base` does not do what is recorded, in words that go on after a colon; empty where it does."""
    device: str = "0"
    events: int = 0
    """Number of recorded events."""
    devices: int = 1
    """Number of devices in the trace; with several, sentences name the device."""
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
        reasons = [self.divergence] if self.compared_with is self.base else [self.divergence, PLACED_ANEW]
        return "; ".join(dict.fromkeys(reason for reason in reasons if reason))

    @property
    def change_bytes(self) -> int:
        """Change of peak reserved against the recorded settings."""
        return self.replayed.peak_reserved_bytes - self.compared_with.peak_reserved_bytes


@dataclass(frozen=True)
class Doubt:
    """Uncertainty of a run on a card."""

    context: CudaContext
    more: float = 0.0
    """Share by which the run may need more than predicted; `less` is the share for less."""
    less: float = 0.0
    more_bytes: int = 0
    """Bytes that the prediction does not count, at most; `more` holds as well."""

    def surely_fitting_peak(self, card_bytes: int) -> int:
        """Return the usable memory at worst, in bytes of the prediction."""
        left = card_bytes - self.context.most_bytes
        return max(0, int(min(left / (1 + self.more), (left - self.more_bytes) / (1 + self.less))))

    def perhaps_fitting_peak(self, card_bytes: int) -> int:
        """Return the usable memory at best, in bytes of the prediction."""
        return max(0, int((card_bytes - self.context.least_bytes) / (1 - self.less)))


ESTIMATE = "an estimate from the trace"


@dataclass(frozen=True)
class ReplayedEstimate:
    """Both in memory without end, under the recorded settings but for what was changed."""

    before: Figures
    after: Figures

    @property
    def requested_change(self) -> int:
        return self.after.peak_requested_bytes - self.before.peak_requested_bytes

    @property
    def reserved_change(self) -> int:
        return self.after.peak_reserved_bytes - self.before.peak_reserved_bytes


class Replayer(Source):
    """Replays of one device's requests. Without settings they are the recorded ones, without a card memory has no end.

    `afresh` places blocks live before the first event anew under any settings.
    """

    def as_recorded(self, progress: Progress | None = None) -> Replayed:
        """Replay under the recorded settings and at the recorded addresses, as a check of the model."""
        return replay_as_recorded(self, progress)

    def replay(
        self,
        settings: Settings | None = None,
        card: CardMemory | None = None,
        *,
        afresh: bool = False,
        progress: Progress | None = None,
    ) -> Replayed:
        return self._replay_of(settings, card, afresh).result(progress)

    def figures(
        self,
        settings: Settings | None = None,
        card: CardMemory | None = None,
        *,
        afresh: bool = False,
        progress: Progress | None = None,
    ) -> Figures:
        """Return the figures of `replay`, in half the time."""
        return self._replay_of(settings, card, afresh).only_figures(progress)

    def _replay_of(self, settings: Settings | None, card: CardMemory | None, afresh: bool) -> OtherSettings:
        kind = OtherSettings if self.calls is None else SameRequests
        wanted = self.recorded if settings is None else settings
        if card is None:
            # Of memory without end there is no share.
            endless = replace(wanted, per_process_memory_fraction=1.0)
            return kind(self, endless, memory=None, total=None, afresh=afresh)
        check_room(card)
        return kind(self, wanted, memory=card.usable_bytes, total=card.total_bytes, afresh=afresh)

    def smallest_card(
        self,
        settings: Settings | None = None,
        *,
        overhead_bytes: int = OVERHEAD_BYTES,
        afresh: bool = False,
        free: Figures | None = None,
        progress: Progress | None = None,
    ) -> CardMemory | None:
        """Return the smallest of the usual sizes on which it runs to its end; None where none of them does.

        `free` is the same without a memory limit, if the caller has it already.
        """
        # How many cards will have to be tried is not known.
        half_done: Progress | None = None if progress is None else lambda done, total: progress(total, 2 * total)
        wanted = self.recorded if settings is None else settings
        endless = free or self.figures(wanted, afresh=afresh, progress=part_of(progress, 0, 2))
        for card in (CardMemory(size, overhead_bytes) for size in CARD_BYTES):
            if card.usable_bytes < endless.peak_requested_bytes:
                continue
            if card.usable_bytes >= endless.peak_reserved_bytes and wanted.per_process_memory_fraction >= 1:
                return card
            if self.figures(wanted, card, afresh=afresh, progress=half_done).oom is None:
                return card
        return None

    def smallest_for(
        self, replayed: Replayed, overhead_bytes: int = OVERHEAD_BYTES, progress: Progress | None = None
    ) -> CardMemory | None:
        """Return the smallest card for settings that were replayed already."""
        was_free = replayed.memory is None and replayed.agreement is None
        return self.smallest_card(
            replayed.settings,
            overhead_bytes=overhead_bytes,
            afresh=replayed.is_placed_anew,
            free=replayed if was_free or always_had_room(replayed) else None,
            progress=progress,
        )

    def fits(
        self,
        settings: Settings | None,
        card_bytes: int,
        doubt: Doubt,
        *,
        known: Figures,
        progress: Progress | None = None,
    ) -> FitWord:
        """`known` is the same in some memory or without a limit, which often says enough without another replay."""
        surely, perhaps = doubt.surely_fitting_peak(card_bytes), doubt.perhaps_fitting_peak(card_bytes)
        limit, ends = known.memory, known.oom is not None

        def is_within(usable: int) -> bool:
            return limit is not None and limit <= usable

        def runs(usable: int, part: int) -> bool:
            card, told = CardMemory(usable, 0), part_of(progress, part, 2)
            return usable > 0 and self.figures(settings, card, progress=told).oom is None

        if not ends and (is_within(surely) or known.peak_reserved_bytes <= surely and always_had_room(known)):
            return "yes"
        if known.peak_requested_bytes > perhaps or ends and not is_within(perhaps - 1):
            return "no"
        if not (ends and not is_within(surely - 1)) and runs(surely, 0):
            return "yes"
        if not ends and is_within(perhaps):
            return "close"
        return "close" if runs(perhaps, 1) else "no"

    def what_if(
        self,
        settings: Settings | None = None,
        card: CardMemory | None = None,
        *,
        overhead_bytes: int | None = None,
        progress: Progress | None = None,
    ) -> WhatIf:
        """Like is compared with like.

        `overhead_bytes` are taken from the cards of the usual sizes; without it as much as from `card`.
        """
        wanted = self.recorded if settings is None else settings
        if wanted != self.recorded and card is None and wanted.per_process_memory_fraction < 1:
            raise UsageError("per_process_memory_fraction is a share of the card's memory: give the size of the card.")
        recorded, rest = self.as_recorded(part_of(progress, 0, 5)), rest_of(progress, 5)
        starts_late = bool(self.layout.segments)
        does_the_same = card is None and recorded.exact and not self.releases.was_short
        base = recorded if does_the_same else self.replay(self.recorded, card, progress=part_of(rest, 0, 4))
        replayed = compared_with = base
        if wanted != self.recorded:
            replayed = self.replay(wanted, card, afresh=starts_late, progress=part_of(rest, 1, 4))
            if replayed.is_placed_anew and not base.is_placed_anew:
                compared_with = self.replay(self.recorded, card, afresh=True, progress=part_of(rest, 2, 4))
        fit, context = self._fit_of(recorded, replayed, card, part_of(rest, 3, 4))
        total = card.total_bytes if card else None
        if overhead_bytes is None:
            overhead_bytes = card.overhead_bytes if card else OVERHEAD_BYTES
        return WhatIf(
            recorded=recorded,
            base=base,
            compared_with=compared_with,
            replayed=replayed,
            card=card,
            recorded_peak_bytes=int(reserved_after(self.device).max()),
            divergence="" if does_the_same else why_diverged(self, recorded, base, total),
            device=self.device.name,
            events=len(self.device.events),
            devices=len(self.trace.devices),
            smallest_card=self.smallest_for(replayed, overhead_bytes, part_of(progress, 4, 5)),
            fit=fit,
            context=context,
        )

    def _fit_of(
        self, recorded: Replayed, replayed: Replayed, card: CardMemory | None, progress: Progress | None
    ) -> tuple[FitWord | None, CudaContext | None]:
        if card is None:
            return None, None
        if not card.overhead_bytes:
            # Memory of which nothing is set aside is all the allocator's, and leaves nothing open.
            return "yes" if replayed.oom is None else "no", None
        about, nccl = self.trace.about, 0
        context = CudaContext("this card", card.overhead_bytes, card.overhead_bytes, "as you said")
        if card.overhead_bytes == OVERHEAD_BYTES:
            # The default was not changed: the overhead measured on the trace's own card is more exact.
            context = context_on(about.on, about.facts)
            _, nccl = nccl_bytes(communicators_of(about.facts), about.on)
        live = max(replayed.peak_requested_bytes, recorded.peak_requested_bytes)
        known = replace(replayed, peak_requested_bytes=live)
        fit = self.fits(
            replayed.settings, card.total_bytes, Doubt(context, more_bytes=nccl), known=known, progress=progress
        )
        return fit, context

    # Estimates run in memory without end, under the recorded settings but for what was changed. Where the history
    # starts late, blocks from before it are placed anew: memory reserved for them says nothing of what would have been.

    def estimate(self, changed: Trace | None = None, *, expandable: bool = False) -> Figures:
        """Return the figures of `changed`, requests of the same device, or else of the recorded ones."""
        return self._estimating(changed, expandable).only_figures()

    def estimated_trace(
        self, changed: Trace | None, name: str, assumptions: tuple[str, ...], *, expandable: bool = False
    ) -> Trace:
        """Return the history of an estimate, marked as one."""
        replayed = self._estimating(changed, expandable).result()
        about = replace(replayed.trace.about, on=f"{name}, {ESTIMATE}")
        text = f"It is {ESTIMATE}, not a recording. It assumes: {' '.join(assumptions)}"
        note = Note(ESTIMATE_CODE, text, level="warning", device=replayed.trace.devices[0].name)
        return replace(replayed.trace, about=about, notes=(note, *replayed.trace.notes))

    def _estimating(self, changed: Trace | None, expandable: bool) -> OtherSettings:
        replayer = self if changed is None else Replayer(changed)
        settings = replace(self.recorded, expandable_segments=True) if expandable else None
        return replayer._replay_of(settings, None, afresh=bool(self.layout.segments))


def always_had_room(on_card: Figures) -> bool:
    """Then more memory would have changed nothing. Two kinds of settings give memory back without a retry."""
    settings = on_card.settings
    gives_back = settings.max_split_size is not None or settings.garbage_collection_threshold > 0
    return on_card.oom is None and on_card.retries == 0 and not gives_back


def check_room(card: CardMemory) -> None:
    if card.usable_bytes == 0:
        total, overhead = bytes_text(card.total_bytes), bytes_text(card.overhead_bytes)
        raise UsageError(
            f"A card of {total} has no memory left after {overhead} for the CUDA context; choose a larger card or a "
            "smaller overhead."
        )
