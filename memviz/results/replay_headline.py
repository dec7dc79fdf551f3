"""Headline of a replay: where it ends, and which settings help."""

from __future__ import annotations

from memviz.allocator.replay_result import RanOut, allocation_count
from memviz.allocator.replayer import WhatIf
from memviz.allocator.search import Search
from memviz.allocator.settings import Settings
from memviz.results.headline import Headline
from memviz.units import bytes_text, count_text, percent_text

_WORDS = {"": "PyTorch's default settings", "expandable_segments:True": "expandable segments"}


def replay_headline(outcome: WhatIf, searched: Search | None = None) -> Headline:
    if not allocation_count(outcome.recorded):
        only_state = "The file has no allocation history, only the final state."
        why = "None of the events is an allocation." if outcome.events else only_state
        result = Headline("Nothing to replay.", why)
    elif outcome.card is None:
        result = _unlimited_headline(outcome, searched)
    else:
        result = _card_headline(outcome, searched)
        if outcome.fit == "close" and outcome.context is not None:
            # The CUDA context decides, which is not known exactly.
            note = f"Close: the CUDA context uses {outcome.context.interval}."
            result = Headline(result.answer, _join(note, result.reason))
    if outcome.devices == 1:
        return result
    answer = result.answer if result.answer.startswith("PyTorch") else f"{result.answer[0].lower()}{result.answer[1:]}"
    return Headline(f"On device {outcome.device}, {answer}", result.reason)


def _card_headline(outcome: WhatIf, searched: Search | None) -> Headline:
    assert outcome.card is not None
    if outcome.base.oom is None:
        return _fitting_headline(outcome, searched)
    where, live = bytes_text(outcome.card.usable_bytes), _live_at_once(outcome, searched)
    if outcome.replayed.oom is not None and live > outcome.card.usable_bytes:
        return Headline(f"No setting fits this run in {where}: {bytes_text(live)} are live at once.")
    return Headline(
        f"In {where} this run runs out of memory {event_text(outcome.base.oom)}.", _reason_of_oom(outcome, searched)
    )


def settings_name(settings: Settings) -> str:
    text = settings.to_text()
    return _WORDS.get(text, text)


def recording_note(outcome: WhatIf) -> str:
    """Describe the recording where the replay differs from it; else return nothing."""
    why = outcome.why_not_as_recorded
    if not why:
        return ""
    if not outcome.knows_recorded_peak:
        return f"The file does not say how much the recording reserved: {why}."
    return f"The recording reserved {bytes_text(outcome.recorded_peak_bytes)}: {why}."


def event_text(oom: RanOut) -> str:
    return f"at event {count_text(oom.event)}" if oom.event >= 0 else "before the first event"


def _settings_title(settings: Settings) -> str:
    """Name the settings at the start of a sentence; PyTorch's own names keep their case."""
    name = settings_name(settings)
    return f"{name[0].upper()}{name[1:]}" if name in _WORDS.values() else name


def _live_at_once(outcome: WhatIf, searched: Search | None) -> int:
    """Return the peak of requested bytes. A recording that ran out of memory does not show all of it; a search does."""
    seen = max(outcome.recorded.peak_requested_bytes, outcome.base.peak_requested_bytes)
    return max(seen, searched.recorded.peak_requested_bytes) if searched else seen


def _spare_memory(bytes_reserved: int, outcome: WhatIf) -> str:
    assert outcome.card is not None
    return bytes_text(outcome.card.usable_bytes - bytes_reserved)


def _reason_of_oom(outcome: WhatIf, searched: Search | None) -> str:
    replayed, stopped = outcome.replayed, outcome.base.oom
    assert stopped is not None
    if replayed is not outcome.base:
        if replayed.oom is not None:
            return f"With {settings_name(replayed.settings)} it runs out of memory {event_text(replayed.oom)}."
        spare = _spare_memory(replayed.peak_reserved_bytes, outcome)
        through = f"{_settings_title(replayed.settings)} would fit, with {spare} to spare"
        # That the recorded settings fit too when placed anew is no merit of these settings.
        too = ", and so would the recorded settings with the memory from before the first event placed anew"
        do_both = outcome.compared_with is not outcome.base and outcome.compared_with.oom is None
        return f"{through}{too if do_both else ''}."
    if searched is None:
        cached = bytes_text(stopped.reserved_bytes - stopped.allocated_bytes)
        requested = bytes_text(stopped.requested_bytes)
        return f"{requested} requested; {cached} cached but too fragmented to use."
    best = searched.advised
    if not best.fits:
        return "None of the allocator settings tried avoids the OOM."
    spare = _spare_memory(best.reserved_on_card_bytes, outcome)
    if best.is_recorded:
        return f"With the memory from before the first event placed anew it would fit, with {spare} to spare."
    return f"{_settings_title(best.settings)} would fit, with {spare} to spare."


def _fitting_headline(outcome: WhatIf, searched: Search | None) -> Headline:
    assert outcome.card is not None
    base, replayed = outcome.base, outcome.replayed
    spare = _spare_memory(base.peak_reserved_bytes, outcome)
    answer = f"In {bytes_text(outcome.card.usable_bytes)} this run fits, with {spare} to spare."
    if base.retries and not outcome.divergence:
        times = "once" if base.retries == 1 else f"{count_text(base.retries)} times"
        where = bytes_text(outcome.card.usable_bytes)
        answer = f"In {where} this run ends as recorded: the cache is released {times} to make room."
    if replayed is base:
        return Headline(answer, _join(recording_note(outcome), _advice(outcome, searched)))
    if replayed.oom is not None:
        stop, rival = f"it would run out of memory {event_text(replayed.oom)}", outcome.compared_with
        if rival is not base and rival.oom is not None:
            stop += f", and with the recorded settings from the same start {event_text(rival.oom)}"
        return Headline(answer, f"With {settings_name(replayed.settings)} {stop}.")
    would = f"{_settings_title(replayed.settings)} would {_reserves(outcome)}."
    return Headline(answer, _join(would, recording_note(outcome)))


def _unlimited_headline(outcome: WhatIf, searched: Search | None) -> Headline:
    recorded, replayed = outcome.recorded, outcome.replayed
    is_own = replayed is outcome.base
    peak = bytes_text(replayed.peak_reserved_bytes)
    if recorded.oom is not None:
        answer = f"This run ran out of memory at event {count_text(recorded.oom.event)}."
        if is_own:
            return Headline(answer, _join(f"Without a limit it would reserve {peak}.", _advice(outcome, searched)))
        return Headline(answer, f"Without a limit {settings_name(replayed.settings)} would {_reserves(outcome)}.")
    if not is_own:
        floor = f"{bytes_text(recorded.peak_requested_bytes)} are live at once; no setting can reserve less."
        would = f"{_settings_title(replayed.settings)} would {_reserves(outcome)}."
        return Headline(would, recording_note(outcome) or floor)
    if outcome.divergence:
        return Headline(f"Without a limit this run would reserve {peak} at the peak.", recording_note(outcome))
    unused = recorded.peak_reserved_bytes - recorded.peak_requested_bytes
    more = f"{bytes_text(unused)} ({percent_text(unused, recorded.peak_reserved_bytes)})"
    reserved = bytes_text(recorded.peak_reserved_bytes)
    answer = f"This run reserves {reserved} at the peak, {more} more than is ever live."
    return Headline(answer, _advice(outcome, searched))


def _reserves(outcome: WhatIf) -> str:
    """Compare with the recorded settings in the same memory and from the same start."""
    peak, change = f"reserve {bytes_text(outcome.replayed.peak_reserved_bytes)} at the peak", outcome.change_bytes
    if outcome.compared_with.oom is not None:
        return f"{peak}; with the recorded settings it runs out of memory {event_text(outcome.compared_with.oom)}"
    than = " than the recorded settings" if outcome.why_not_as_recorded else ""
    if not change:
        return f"{peak}, the same as the recorded settings"
    return f"{peak}, {bytes_text(abs(change))} {'more' if change > 0 else 'less'}{than}"


def _advice(outcome: WhatIf, searched: Search | None) -> str:
    """Advise on memory without a limit: under a limit the cache grows to fill it."""
    if searched is None:
        return f"{bytes_text(_live_at_once(outcome, None))} are live at once; no setting can reserve less."
    best, recorded = searched.advised, searched.recorded
    without = " without a limit" if outcome.card else ""
    if best.is_recorded:
        return f"No setting tried reserves noticeably less{without}."
    saved = bytes_text(recorded.peak_reserved_bytes - best.peak_reserved_bytes)
    if searched.is_placed_anew:
        name = settings_name(best.settings)
        return f"From an equal empty start {name} would reserve {saved} less than the recorded settings{without}."
    than = "" if recorded.is_as_recorded else " than the recorded settings"
    return f"{_settings_title(best.settings)} would reserve {saved} less{than}{without}."


def _join(*sentences: str) -> str:
    return " ".join(sentence for sentence in sentences if sentence)
