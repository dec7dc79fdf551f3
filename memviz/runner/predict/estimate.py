"""Result of a predicted program: its peaks, what was alive at the highest, and whether it fits a card."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from memviz.allocator.context import CudaContext, context_on, context_sentence
from memviz.allocator.replayer import FitWord, Replayer
from memviz.errors import UsageError
from memviz.runner.expected_error import ExpectedError
from memviz.runner.predict.accuracy import expected_error
from memviz.runner.predict.assumptions import Assumption
from memviz.runner.predict.cards import KnownCard, card_named, common_cards
from memviz.runner.predict.cuda_memory import HistoryWindow
from memviz.runner.predict.evidence import Unproven
from memviz.runner.predict.group.ranks import GroupRank, Layout
from memviz.runner.predict.predicted_run import doubt_on, fit_on
from memviz.runner.predict.predicted_trace import trains
from memviz.runner.run import Fit
from memviz.trace.model import Action, Category, DeviceTrace, Trace
from memviz.units import bytes_text

if TYPE_CHECKING:
    from memviz.runner.predict.predicted_device import PredictedDevice

_CHILDREN = "processes that it started"


@dataclass(frozen=True, repr=False)
class Estimate:
    """Bytes of PyTorch's allocator, on the card and with the kernels of the release that were asked for."""

    card: KnownCard
    torch: str
    """The release whose kernels and rules are followed, as '2.6'."""
    trace: Trace
    peak_requested: int
    """Peak of the bytes that tensors requested."""
    peak_allocated: int
    """The blocks that held it."""
    peak_reserved: int
    """Peak of the segments reserved for them: the memory that has to fit."""
    peak_host: int = 0
    """Beside the card: tensors on the host without values, such as weights before they are moved or offloaded."""
    out_of_memory: int = 0
    """How often the card had no more."""
    wanted: int = 0
    """Bytes that would have been reserved where the card had no more, the first time."""
    limited: bool = False
    """True if the memory of a named card is the limit; otherwise there is no limit and no verdict."""
    steps: int = 0
    """Optimizer steps."""
    rank: GroupRank | None = None
    """Which process of a group ran."""
    windows: tuple[HistoryWindow, ...] = ()
    assumed: tuple[Assumption, ...] = ()
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    """Dtypes that were used and that the card has no hardware for."""
    operators: frozenset[str] = frozenset()
    unproven: tuple[Unproven, ...] = ()
    """Rules that it rests on and that no recording proves, with their bytes."""
    layout: Layout = field(default_factory=Layout)
    """Process groups of the program, as seen from this rank."""
    commands: Mapping[str, int] = field(default_factory=dict)
    """Other processes of Python that the program started, with how often: what they take is not predicted."""
    children_used_the_card: bool = False
    """True if a fork of the program allocated on the predicted card; its bytes are in no peak."""
    _fit: dict[str, Fit] = field(default_factory=dict, repr=False, compare=False)

    def __repr__(self) -> str:
        parts = ("live", self.peak_requested), ("allocated", self.peak_allocated), ("reserved", self.peak_reserved)
        peaks = ", ".join(f"{name} {bytes_text(size)}" for name, size in parts)
        on = f" on {self.card.name}" if self.limited else ""
        return f"<Estimate{on}: {peaks} at most>"

    @property
    def peak(self) -> int:
        """Reserved bytes, as `torch.cuda.max_memory_reserved()`; `memviz.open(...).peak()` is of live bytes."""
        return self.peak_reserved

    def fit(self, card: str | KnownCard | None = None) -> Fit:
        """Its requests, replayed on a card with the memory that a process gets there."""
        if card is None and not self.limited:
            raise UsageError('No card was named. Ask of one, as in fits("A100 80GB"), or predict with card=.')
        chosen = self.card if card is None else card_named(card) if isinstance(card, str) else card
        if chosen.name not in self._fit:
            self._fit[chosen.name] = fit_on(self.trace, chosen, self.peak_reserved, self.expected_error)
        return self._fit[chosen.name]

    def fit_word(self, card: str | KnownCard | None = None) -> FitWord:
        """Like `fits`, but "close" where what is not known exactly decides: the context, or the prediction itself.

        How much a program needs that ran out of memory is not known, so nothing shows that it is close.
        """
        if self.out_of_memory and card is None:
            return "no"
        words: dict[str, FitWord] = {"yes": "yes", "close": "close"}
        return words.get(self.fit(card).word, "no")

    def common_fits(self) -> dict[str, FitWord]:
        """The verdict on common cards, smallest first; the kernels stay those that were predicted."""
        return {card.name: self._quick_fit(card) for card in common_cards()}

    def _quick_fit(self, card: KnownCard) -> FitWord:
        """Without a replay where the peaks decide."""
        doubt = doubt_on(card, self.expected_error)
        if self.peak_reserved <= doubt.surely_usable(card.memory_bytes):
            return "yes"
        return "no" if self.peak_requested > doubt.perhaps_usable(card.memory_bytes) else self.fit_word(card)

    @property
    def is_limited_by_itself(self) -> bool:
        """It ran out where the card has more in any case: `set_per_process_memory_fraction` allowed it no more."""
        surely = doubt_on(self.card, self.expected_error).surely_usable(self.card.memory_bytes)
        return self.out_of_memory > 0 and self.wanted <= surely

    @property
    def fingerprint(self) -> str:
        """The same for ranks that took and gave back the same bytes in the same order."""
        return fingerprint_of(self.trace)

    @property
    def context(self) -> CudaContext:
        """Memory on the card outside PyTorch's allocator, from the least to the most."""
        return context_on(self.card.name)

    @property
    def expected_error(self) -> ExpectedError:
        """How true it is likely to be: what recordings of its class say of predictions."""
        error = expected_error(self.operators, trains=trains(self.trace), card=self.card, unproven=self.unproven)
        if not self.commands and not self.children_used_the_card:
            return error
        return replace(error, not_counted=(*error.not_counted, _CHILDREN), estimates_all=False)

    @property
    def peak_reserved_on_card(self) -> int | None:
        """On the card that was named: where memory is short what is cached goes back."""
        return self.peak_reserved if self.limited else None

    @property
    def peak_reserved_without_limit(self) -> int | None:
        """Return the reserved peak without a card's limit; None if the program ran out of memory."""
        if not self.limited:
            return self.peak_reserved
        if self.out_of_memory:
            return None
        return Replayer(self.trace, self.trace.devices[0]).figures().peak_reserved_bytes

    def fits(self, card: str | KnownCard | None = None) -> bool:
        """On the card that was named, or on another; the choice of kernels stays that of the first."""
        if self.out_of_memory and card is None:
            return False
        return self.fit(card).fits

    def by_category(self) -> dict[str, int]:
        """Bytes that the program held at its highest moment, by what they were for; their sum is `peak_requested`."""
        return _by_category(self.trace.devices[0])


def fingerprint_of(trace: Trace) -> str:
    events = trace.devices[0].events
    return hashlib.sha256(events.action.tobytes() + events.size.tobytes()).hexdigest()


def estimate_of(device: PredictedDevice, trace: Trace, *, steps: int = 0) -> Estimate:
    about_the_card = () if device.limited else (context_sentence(device.card.name),)
    return Estimate(
        card=device.card,
        torch=".".join(map(str, device.release)),
        trace=trace,
        peak_requested=device.highest_requested_bytes,
        peak_allocated=device.highest_allocated_bytes,
        peak_reserved=device.highest_reserved_bytes,
        peak_host=device.recorder.host.unknown.peak_bytes,
        out_of_memory=len(device.out_of_memory),
        wanted=next((failure.reserved_bytes + failure.asked_bytes for failure in device.out_of_memory), 0),
        limited=device.limited,
        operators=frozenset(device.recorder.operators),
        steps=steps,
        rank=device.rank,
        windows=device.windows,
        assumed=device.recorder.assumptions.stated,
        notes=tuple(note for note in device.unseen() if note not in about_the_card),
        warnings=device.warnings(),
        unproven=device.unproven(),
        layout=device.layout,
        commands=dict(device.children.commands),
        children_used_the_card=device.children.used_the_card,
    )


def _by_category(device: DeviceTrace) -> dict[str, int]:
    events = device.events
    allocs = events.action == Action.ALLOC
    frees = events.action == Action.FREE_COMPLETED
    live = np.cumsum(np.where(allocs, events.size, 0) - np.where(frees, events.size, 0))
    if not len(live):
        return {}
    last = int(live.argmax())
    held: dict[int, tuple[int, int]] = {}
    rows = zip(allocs.tolist(), frees.tolist(), events.address.tolist(), events.size.tolist(), strict=True)
    categories = device.event_labels.category.tolist() if device.event_labels is not None else [0] * len(events.size)
    for number, (is_alloc, is_free, address, size) in enumerate(rows):
        if number > last:
            break
        if is_alloc:
            held[address] = (categories[number], size)
        elif is_free:
            held.pop(address, None)
    bytes_of: dict[str, int] = {}
    for category, size in held.values():
        name = Category(category).name.lower()
        bytes_of[name] = bytes_of.get(name, 0) + size
    return dict(sorted(bytes_of.items(), key=lambda item: -item[1]))
