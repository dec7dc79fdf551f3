"""The rows of the ranked settings, for the page, the file to keep and the command line: the same words in all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from memviz.allocator.replayed import RanOut
from memviz.allocator.search import Search
from memviz.allocator.tried import Tried
from memviz.allocator.what_if import WhatIf
from memviz.headlines.what_if import at_event
from memviz.units import bytes_text, count_text

HEADS = ("reserved", "retries", "smallest card", "ends", "settings")


@dataclass(frozen=True)
class RankedRow:
    settings: str
    """To paste behind `PYTORCH_CUDA_ALLOC_CONF=`; empty for PyTorch's defaults."""
    remark: str
    reserved_bytes: int
    retries: str
    fits_on: str
    fits: bool | None
    """None where it is the recording, which ended as it did."""
    ends: str
    tried: Tried | None
    knows_reserved: bool = True
    """Not where the recording does not tell."""

    @property
    def name(self) -> str:
        return self.settings or "PyTorch's default settings"

    @property
    def called(self) -> str:
        return f"{self.name}, {self.remark}" if self.remark else self.name

    @property
    def reserved(self) -> str:
        return bytes_text(self.reserved_bytes) if self.knows_reserved else "not in file"


def rows(outcome: WhatIf, searched: Search) -> Iterator[RankedRow]:
    """The recording has a row of its own where no replay in the table does what is recorded."""
    if not any(tried.is_as_recorded for tried in searched.tried):
        yield _recording(outcome, searched.is_placed_anew)
    for tried in searched.tried:
        yield RankedRow(
            settings=tried.text,
            remark=_remark(tried),
            reserved_bytes=tried.peak_reserved_bytes,
            retries=count_text(tried.retries),
            fits_on=tried.smallest_card.name if tried.smallest_card else "none",
            fits=tried.fits,
            ends=_ends(tried.oom, outcome, tried.reserved_on_card_bytes),
            tried=tried,
        )


def about_rows(outcome: WhatIf, searched: Search) -> str:
    """What the figures beside each other have in common."""
    how = "Reserved is without a limit"
    if searched.is_placed_anew:
        how += ", and each starts with what was live before the first event placed into empty memory"
    why = "" if any(tried.is_as_recorded for tried in searched.tried) else _why(outcome, searched)
    return f"{how}.{why}"


def _why(outcome: WhatIf, searched: Search) -> str:
    """Of the recording's own row."""
    reason = outcome.parted or outcome.why_not_as_recorded
    if searched.is_placed_anew and not reason:
        return " The recording had besides what was cached before its first event."
    return f" The recording differs: {reason or 'by its settings alone the allocator would not have done what it did'}."


def _remark(tried: Tried) -> str:
    if tried.is_as_recorded:
        return "as recorded"
    return "the recorded settings, replayed" if tried.is_recorded else ""


def _recording(outcome: WhatIf, is_late: bool) -> RankedRow:
    """On a card, with how the recorded settings end there from where memory lay."""
    base, failed = outcome.base, outcome.recorded.oom
    on_card = outcome.card is not None and (is_late or not outcome.parted)
    return RankedRow(
        settings=outcome.recorded.settings.to_text(),
        remark="the recording",
        reserved_bytes=outcome.recorded_peak_bytes,
        retries=count_text(outcome.recorded.retries),
        fits_on=outcome.smallest_card.name if outcome.smallest_card and outcome.replayed is base else "\N{EN DASH}",
        fits=base.oom is None if on_card else None,
        ends=_ends(base.oom, outcome, base.peak_reserved_bytes)
        if on_card
        else (f"ran out {at_event(failed)}" if failed else "\N{EN DASH}"),
        tried=None,
        knows_reserved=outcome.knows_recorded_peak,
    )


def _ends(oom: RanOut | None, outcome: WhatIf, reserved_bytes: int) -> str:
    if oom is not None:
        return f"stops {at_event(oom)}"
    if outcome.card is None:
        return "runs to its end"
    return f"fits, {bytes_text(outcome.card.usable_bytes - reserved_bytes)} to spare"
