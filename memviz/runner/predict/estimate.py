"""What a predicted program came to: its peaks, what was alive at the highest, and whether it fits a card."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from memviz.runner.predict.assumptions import Stated
from memviz.runner.predict.cards import KnownCard, card_named
from memviz.runner.predict.cuda_history import Window
from memviz.runner.predict.evidence import Unproven
from memviz.runner.predict.predicted_run import fit_on
from memviz.runner.run import Fit
from memviz.trace.model import Action, Category, DeviceTrace, Trace

if TYPE_CHECKING:
    from memviz.runner.predict.predicted_device import PredictedDevice


@dataclass(frozen=True)
class Estimate:
    """Bytes of PyTorch's allocator, on the card and with the kernels of the release that were asked for."""

    card: KnownCard
    torch: str
    """The release whose kernels and rules are followed, as '2.6'."""
    trace: Trace
    peak_requested: int
    """What the program held at most."""
    peak_allocated: int
    """The blocks that held it."""
    peak_reserved: int
    """What was taken from the card for them: what has to fit."""
    peak_host: int = 0
    """Beside the card: tensors on the host without values, such as weights before they are moved or offloaded."""
    out_of_memory: int = 0
    """How often the card had no more."""
    steps: int = 0
    """Of an optimizer."""
    windows: tuple[Window, ...] = ()
    assumed: tuple[Stated, ...] = ()
    notes: tuple[str, ...] = ()
    unproven: tuple[Unproven, ...] = ()
    """Rules that it rests on and that no recording proves, with their bytes."""
    _fit: dict[str, Fit] = field(default_factory=dict, repr=False, compare=False)

    @property
    def peak(self) -> int:
        """Reserved: `torch.cuda.max_memory_reserved()`."""
        return self.peak_reserved

    def fit(self, card: str | KnownCard | None = None) -> Fit:
        """Its requests, replayed on a card with the memory that a process gets there."""
        chosen = self.card if card is None else card_named(card) if isinstance(card, str) else card
        if chosen.name not in self._fit:
            self._fit[chosen.name] = fit_on(self.trace, chosen, self.peak_reserved)
        return self._fit[chosen.name]

    def fits(self, card: str | KnownCard | None = None) -> bool:
        """On the card that was asked for, or on another; the choice of kernels stays that of the first."""
        if self.out_of_memory and card is None:
            return False
        return self.fit(card).fits

    def by_category(self) -> dict[str, int]:
        """Bytes that the program held at its highest moment, by what they were for; their sum is `peak_requested`."""
        return _by_category(self.trace.devices[0])


def estimate_of(device: PredictedDevice, trace: Trace, *, steps: int = 0) -> Estimate:
    return Estimate(
        card=device.card,
        torch=".".join(map(str, device.release)),
        trace=trace,
        peak_requested=device.highest_requested_bytes,
        peak_allocated=device.highest_allocated_bytes,
        peak_reserved=device.highest_reserved_bytes,
        peak_host=device.recorder.host.unknown.peak_bytes,
        out_of_memory=len(device.out_of_memory),
        steps=steps,
        windows=device.windows,
        assumed=device.recorder.assumptions.stated,
        notes=device.unseen(),
        unproven=device.unproven(),
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
    found: dict[str, int] = {}
    for category, size in held.values():
        name = Category(category).name.lower()
        found[name] = found.get(name, 0) + size
    return dict(sorted(found.items(), key=lambda item: -item[1]))
