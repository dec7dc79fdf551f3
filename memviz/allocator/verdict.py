"""The answer of a what-if in two sentences: where it ends, and what helps. It claims only what was replayed."""

from __future__ import annotations

from memviz.allocator.replayer import RanOut, Replayed
from memviz.allocator.search import Search
from memviz.allocator.settings import Settings
from memviz.allocator.what_if import WhatIf
from memviz.trace.model import Action
from memviz.units import bytes_text, count_text, percent_text

_WORDS = {"": "PyTorch's default settings", "expandable_segments:True": "expandable segments"}


def verdict(found: WhatIf, searched: Search | None = None) -> tuple[str, str]:
    if not addresses(found.recorded):
        return "There is nothing to replay.", "The file holds no history of allocations, only the state at its end."
    if found.card is None:
        return _without_limit(found, searched)
    if found.base.oom is None:
        return _fits(found, searched)
    where, live = bytes_text(found.card.usable_bytes), _live_at_once(found, searched)
    if found.replayed.oom is not None and live > found.card.usable_bytes:
        return f"It does not fit in {where} under any setting: {bytes_text(live)} are live at once.", ""
    return f"In {where} this run stops {_at(found.base.oom)}.", _what_helps(found, found.base.oom, searched)


def exactness(recorded: Replayed) -> str:
    """How well the model knows this file, which is how far its other answers can be trusted."""
    first = recorded.agreement.first_mismatch if recorded.agreement else None
    if first is not None:
        return f"replay of the recording exact up to event {count_text(first.event)}. {first.why}"
    return f"replay of the recording exact, 0 of {count_text(addresses(recorded))} addresses differ"


def addresses(recorded: Replayed) -> int:
    """How many there are to land on."""
    return int((recorded.trace.devices[0].events.action == Action.ALLOC).sum())


def in_words(settings: Settings) -> str:
    text = settings.to_text()
    return _WORDS.get(text, text)


def _begun(settings: Settings) -> str:
    """The same at the beginning of a sentence; PyTorch's own names stay as they are."""
    words = in_words(settings)
    return f"{words[0].upper()}{words[1:]}" if words in _WORDS.values() else words


def _at(oom: RanOut) -> str:
    return f"at event {count_text(oom.event)}" if oom.event >= 0 else "before its first event"


def _live_at_once(found: WhatIf, searched: Search | None) -> int:
    """A recording that failed itself does not show all that it wanted; a search does."""
    seen = found.recorded.peak_requested_bytes
    return max(seen, searched.recorded.peak_requested_bytes) if searched else seen


def _spare(bytes_reserved: int, found: WhatIf) -> str:
    assert found.card is not None
    return bytes_text(found.card.usable_bytes - bytes_reserved)


def _what_helps(found: WhatIf, stopped: RanOut, searched: Search | None) -> str:
    ours = found.replayed
    if ours is not found.base:
        if ours.oom is None:
            spare = _spare(ours.peak_reserved_bytes, found)
            return f"{_begun(ours.settings)} would carry it through, with {spare} to spare."
        return f"With {in_words(ours.settings)} it stops {_at(ours.oom)}."
    if searched is None:
        cached = bytes_text(stopped.reserved_bytes - stopped.allocated_bytes)
        asked = bytes_text(stopped.requested_bytes)
        return f"{asked} are asked for then; {cached} are cached, in no piece that it could take."
    if searched.advised.fits:
        spare = _spare(searched.advised.reserved_on_card_bytes, found)
        return f"{_begun(searched.advised.settings)} would carry it through, with {spare} to spare."
    return "None of the settings tried carries it through."


def _fits(found: WhatIf, searched: Search | None) -> tuple[str, str]:
    assert found.card is not None
    base, ours = found.base, found.replayed
    spare = _spare(base.peak_reserved_bytes, found)
    first = f"In {bytes_text(found.card.usable_bytes)} this run fits, with {spare} to spare."
    if ours is base:
        return first, _advised(base, searched)
    if ours.oom is not None:
        return first, f"With {in_words(ours.settings)} it would stop {_at(ours.oom)}."
    return first, f"{_begun(ours.settings)} would {_reserves(found, base, searched)}."


def _without_limit(found: WhatIf, searched: Search | None) -> tuple[str, str]:
    recorded, ours = found.recorded, found.replayed
    floor = f"{bytes_text(recorded.peak_requested_bytes)} are live at once, and no setting goes below that."
    if recorded.oom is not None:
        first = f"This run ran out of memory at event {count_text(recorded.oom.event)}."
        if ours is recorded:
            return first, _advised(recorded, searched)
        return first, f"Without a limit {in_words(ours.settings)} would {_reserves(found, recorded, searched)}."
    if ours is recorded:
        return _kept(recorded), _advised(recorded, searched)
    return f"{_begun(ours.settings)} would {_reserves(found, recorded, searched)}.", floor


def _kept(recorded: Replayed) -> str:
    peak, live = recorded.peak_reserved_bytes, recorded.peak_requested_bytes
    more = f"{bytes_text(peak - live)} ({percent_text(peak - live, peak)})"
    return f"This run reserves {bytes_text(peak)} at its peak, {more} more than it ever holds."


def _reserves(found: WhatIf, base: Replayed, searched: Search | None) -> str:
    """Against the recorded settings, as far as both begin alike: cache from before the recording is nobody's merit."""
    ours = found.replayed
    peak = f"reserve {bytes_text(ours.peak_reserved_bytes)} at the peak"
    if ours.is_placed_anew and searched is None:
        return peak
    before = searched.recorded.peak_reserved_bytes if ours.is_placed_anew and searched else base.peak_reserved_bytes
    change = ours.peak_reserved_bytes - before
    if not change:
        return f"{peak}, as much as without"
    return f"{peak}, {bytes_text(abs(change))} {'more' if change > 0 else 'less'}"


def _advised(base: Replayed, searched: Search | None) -> str:
    if searched is None:
        return f"{bytes_text(base.peak_requested_bytes)} are live at once, and no setting goes below that."
    best = searched.advised
    if best.is_recorded:
        return "No setting tried reserves noticeably less."
    saved = searched.recorded.peak_reserved_bytes - best.peak_reserved_bytes
    return f"{_begun(best.settings)} would reserve {bytes_text(saved)} less."
