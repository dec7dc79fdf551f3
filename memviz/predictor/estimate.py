"""Result of a predicted program: its peaks, what was alive at the highest, and whether it fits a card."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from memviz.allocator.blocks import Platform
from memviz.allocator.context import CudaContext, context_on, context_sentence
from memviz.allocator.replayer import FitWord, Replayer
from memviz.errors import UsageError
from memviz.predictor.accuracy import doubt_on, expected_error, fit_on, reserved_elsewhere
from memviz.predictor.assumptions import Assumption
from memviz.predictor.cards import KnownCard, card_named, common_cards
from memviz.predictor.cuda.memory import HistoryWindow
from memviz.predictor.expected_error import NOTHING, ExpectedError, Fit
from memviz.predictor.group.ranks import GroupRank, Layout
from memviz.predictor.host import HostPeak
from memviz.predictor.ledger import live_changes, trains
from memviz.predictor.rules import Unproven
from memviz.trace.model import Action, Category, Trace
from memviz.units import bytes_text

if TYPE_CHECKING:
    from memviz.predictor.device import PredictedDevice


_SEVERAL = "several cards in one process"
_SIZES = "sizes that depend on assumed values"


class Needs(NamedTuple):
    reserved_bytes: int
    beyond_bytes: int
    """More than a process gets of the card."""


@dataclass(frozen=True, repr=False)
class Estimate:
    """Predicted bytes of PyTorch's allocator, on a card and with the kernels of a release."""

    card: KnownCard
    torch: str
    """The release whose kernels and rules are followed, as '2.6'."""
    trace: Trace
    peak_requested: int
    peak_allocated: int
    """The blocks that held it."""
    peak_reserved: int
    """Peak of the segments reserved for them: the memory that has to fit."""
    peak_host: int = 0
    """Peak bytes of host tensors without values, such as weights before they are moved or offloaded."""
    host: HostPeak = HostPeak()
    """All tensors of the host that the program made, with values or without."""
    out_of_memory: int = 0
    """How often the card had no more."""
    wanted: int = 0
    """Reserved bytes that the first failed allocation would have needed."""
    went_beyond_card: bool = False
    """True if the program went on without a limit where memory ran out."""
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
    commands: Mapping[str, int] = field(default_factory=dict)
    """Other processes of Python that the program started, with how often: what they take is not predicted."""
    platform: Platform = "linux"
    """Operating system whose driver orders the addresses of segments."""
    elsewhere: Mapping[str, Any] = field(default_factory=dict)
    """Part of the expected error: how much is reserved on platforms with another order."""
    children_used_the_card: bool = False
    """True if a fork of the program allocated on the predicted card; its bytes are in no peak."""
    bound: str = ""
    """How code under torch.compile ran: "eager", an upper bound, "ideal fusion", a lower one, or empty: compiled."""
    gpu: int = 0
    """Number of the card that the figures are of."""
    gpus: tuple[Estimate, ...] = ()
    """Estimate of each card, where there are several: this one has the figures of the fullest, and the whole trace."""
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
        """Replay the requests on a card with the memory that a process gets there."""
        if card is None and not self.limited:
            raise UsageError('No card given. Name one, as in fits("A100 80GB"), or predict with card=.')
        chosen = self.card if card is None else card_named(card) if isinstance(card, str) else card
        if chosen.name not in self._fit:
            own = replace(self.trace, devices=(self.trace.devices[self.gpu],))
            error, platform = self.expected_error, self.platform
            self._fit[chosen.name] = fit_on(own, chosen, self.peak_reserved, error, platform=platform)
        return self._fit[chosen.name]

    def fit_word(self, card: str | KnownCard | None = None) -> FitWord:
        """Like `fits`, but "close" where the CUDA context or the expected error decides.

        A program that ran out of memory may need any amount, so it is never "close".
        """
        if self.gpus:
            return _worst_fit(one.fit_word(card) for one in self.gpus)
        if self.out_of_memory and card is None:
            return "no"
        verdicts: dict[str, FitWord] = {"yes": "yes", "close": "close"}
        return verdicts.get(self.fit(card).word, "no")

    def common_fits(self) -> dict[str, FitWord]:
        """The verdict on common cards, smallest first; the kernels stay those that were predicted."""
        cards = self.gpus or (self,)
        return {card.name: _worst_fit(one._fit_word(card) for one in cards) for card in common_cards()}

    def _fit_word(self, card: KnownCard) -> FitWord:
        doubt = doubt_on(card, self.expected_error, self.trace)
        if self.peak_reserved <= doubt.surely_fitting_peak(card.memory_bytes):
            return "yes"
        return "no" if self.peak_requested > doubt.perhaps_fitting_peak(card.memory_bytes) else self.fit_word(card)

    @property
    def is_limited_by_itself(self) -> bool:
        """True if the program ran out below the card's memory, by `set_per_process_memory_fraction`."""
        surely = doubt_on(self.card, self.expected_error, self.trace).surely_fitting_peak(self.card.memory_bytes)
        return self.out_of_memory > 0 and self.wanted <= surely

    @property
    def fingerprint(self) -> str:
        """Equal for ranks that allocate and free the same bytes in the same order."""
        return fingerprint_of(self.trace)

    @property
    def context(self) -> CudaContext:
        """Memory on the card outside PyTorch's allocator, from the least to the most."""
        return context_on(self.card.name)

    @property
    def expected_error(self) -> ExpectedError:
        error = expected_error(self.operators, trains=trains(self.trace), card=self.card, unproven=self.unproven)
        error = replace(error, **self.elsewhere)
        parts = {_SEVERAL: len(self.trace.devices) > 1, _SIZES: any(one.is_size for one in self.assumed)}
        error = replace(error, not_covered=(*error.not_covered, *(name for name, is_part in parts.items() if is_part)))
        if self.commands or self.children_used_the_card:
            return replace(error, not_counted=(*error.not_counted, "child processes"), estimates_all=False)
        if not self.peak_reserved:
            return replace(error, kind=NOTHING, live=None, allocated=None, reserved=None, recordings=0, published=0)
        return error

    @property
    def peak_reserved_on_card(self) -> int | None:
        """Reserved peak on the named card, where cached memory is released when it runs short."""
        return self.peak_reserved if self.limited else None

    @property
    def peak_reserved_without_limit(self) -> int | None:
        """Return the reserved peak without a card's limit; None if the program ran out of memory."""
        if not self.limited:
            return self.peak_reserved
        if self.out_of_memory:
            return None
        return Replayer(self.trace, self.trace.devices[self.gpu]).figures().peak_reserved_bytes

    def fits(self, card: str | KnownCard | None = None) -> bool:
        """Return whether it fits the named card, or another with the same choice of kernels; several are all such."""
        if self.gpus:
            return all(one.fits(card) for one in self.gpus)
        if self.out_of_memory and card is None:
            return False
        return self.fit(card).fits

    @property
    def needs(self) -> Needs | None:
        """Memory of the whole program, if it ran out of memory and went on beyond the card."""
        if not (self.went_beyond_card and self.out_of_memory):
            return None
        return Needs(self.peak_reserved, max(0, self.peak_reserved - self.fit().usable_bytes))

    def by_category(self) -> dict[str, int]:
        """Return the live bytes at the peak by category; their sum is `peak_requested`."""
        events, labels = self.trace.devices[self.gpu].events, self.trace.devices[self.gpu].event_labels
        change = live_changes(events.action, events.size)
        if not len(change):
            return {}
        until = int(np.cumsum(change).argmax()) + 1
        category = np.zeros(until, dtype=np.uint8) if labels is None else labels.category[:until]
        columns = (events.action[:until], events.address[:until], category, events.size[:until])
        live: dict[int, tuple[int, int]] = {}
        for action, address, number, size in zip(*(column.tolist() for column in columns), strict=True):
            if action == Action.ALLOC:
                live[address] = number, size
            elif action == Action.FREE_COMPLETED:
                live.pop(address, None)
        bytes_of: Counter[str] = Counter()
        for number, size in live.values():
            bytes_of[Category(number).name.lower()] += size
        return dict(bytes_of.most_common())


def _worst_fit(words: Iterable[FitWord]) -> FitWord:
    order: tuple[FitWord, ...] = ("yes", "close", "no")
    return max(words, key=order.index)


def fingerprint_of(trace: Trace) -> str:
    events = trace.devices[0].events
    return hashlib.sha256(events.action.tobytes() + events.size.tobytes()).hexdigest()


def requests_of(trace: Trace) -> str:
    """Hash what a program requests and frees, without the segments that the allocator makes of it."""
    events = trace.devices[0].events
    is_request = np.isin(events.action, (Action.ALLOC, Action.FREE_COMPLETED))
    return hashlib.sha256(events.action[is_request].tobytes() + events.size[is_request].tobytes()).hexdigest()


def estimate_of(device: PredictedDevice, trace: Trace, *, steps: int = 0) -> Estimate:
    cards = tuple(_estimate_of_card(device, trace, steps, card) for card in range(len(trace.devices)))
    if len(cards) == 1:
        return cards[0]
    fullest = max(cards, key=lambda one: (one.out_of_memory > 0, one.peak_reserved, one.peak_requested))
    return replace(fullest, gpus=cards, out_of_memory=sum(one.out_of_memory for one in cards))


def _estimate_of_card(device: PredictedDevice, trace: Trace, steps: int, card: int) -> Estimate:
    elsewhere: Mapping[str, Any] = {}
    failures = [failure for failure in device.out_of_memory if failure.card == card]
    requested, allocated, reserved = device.highest_bytes(card)
    if not device.memory_stats(card)["num_alloc_retries"] and not failures:
        calls = replace(device.allocator_calls(card), reset=0)
        elsewhere = reserved_elsewhere(trace, calls, device.platform, reserved, gpu=card)
    about_the_card = () if device.limited else (context_sentence(device.card.name),)
    return Estimate(
        card=device.card,
        torch=".".join(map(str, device.release)),
        trace=trace,
        peak_requested=requested,
        peak_allocated=allocated,
        peak_reserved=reserved,
        peak_host=device.recorder.host.unknown.peak_bytes,
        host=device.recorder.host_memory.peak,
        out_of_memory=len(failures),
        wanted=next((failure.reserved_bytes + failure.asked_bytes for failure in failures), 0),
        limited=device.limited,
        went_beyond_card=device.goes_beyond_card,
        operators=frozenset(device.recorder.operators),
        steps=steps,
        rank=device.rank,
        windows=device.windows,
        assumed=device.recorder.assumptions.stated,
        notes=tuple(note for note in device.unseen() if note not in about_the_card),
        warnings=device.warnings(),
        unproven=device.unproven(card),
        layout=device.layout,
        commands=dict(device.children.commands),
        platform=device.platform,
        elsewhere=elsewhere,
        children_used_the_card=device.children.used_the_card,
        bound=device.compiler.bound if device.compiler else "",
        gpu=card,
    )
