"""The answer of the What if tab in words: verdict, facts, captions of the maps, and the ranked settings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from memviz.allocator.replay_result import RanOut, Replayed, allocation_count, exactness
from memviz.allocator.replayer import CardMemory, WhatIf
from memviz.allocator.search import Search, SettingsTrial
from memviz.analysis.timeline import timeline
from memviz.results.replay_headline import event_text, replay_headline, settings_name
from memviz.text import Html, exact, joined, rounded, tag, when
from memviz.trace.model import DeviceTrace
from memviz.ui.html.elements import button, facts_html, number, table
from memviz.ui.html.labels import headline_html
from memviz.units import bytes_text, count_text, counted, percent_text


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
    tried: SettingsTrial | None
    knows_reserved: bool = True
    """False if the recording lacks reserved bytes."""

    @property
    def name(self) -> str:
        return self.settings or "PyTorch's default settings"

    @property
    def called(self) -> str:
        return f"{self.name}, {self.remark}" if self.remark else self.name

    @property
    def reserved(self) -> str:
        return bytes_text(self.reserved_bytes) if self.knows_reserved else "not in file"


def ranked_rows(outcome: WhatIf, searched: Search) -> Iterator[RankedRow]:
    """The recording has a row of its own where no replay in the table does what is recorded."""
    if not any(tried.is_as_recorded for tried in searched.tried):
        yield _recording_row(outcome, searched.is_placed_anew)
    recorded = "the recorded settings, replayed"
    for tried in searched.tried:
        yield RankedRow(
            settings=tried.text,
            remark="as recorded" if tried.is_as_recorded else recorded if tried.is_recorded else "",
            reserved_bytes=tried.peak_reserved_bytes,
            retries=count_text(tried.retries),
            fits_on=tried.smallest_card.name if tried.smallest_card else "none",
            fits=tried.fits,
            ends=_ends(tried.oom, outcome, tried.reserved_on_card_bytes),
            tried=tried,
        )


def about_ranked_rows(outcome: WhatIf, searched: Search) -> str:
    """Return the assumptions that the listed figures share, and why the recording has a row of its own, if it has."""
    how = "Reserved is without a limit"
    if searched.is_placed_anew:
        how += ", and each starts with memory from before the first event placed into empty segments"
    if any(tried.is_as_recorded for tried in searched.tried):
        return f"{how}."
    reason = outcome.divergence or outcome.why_not_as_recorded
    if searched.is_placed_anew and not reason:
        return f"{how}. The recording also had memory that was cached before its first event."
    return f"{how}. The recording differs: {reason or 'its settings alone do not explain it'}."


def _recording_row(outcome: WhatIf, is_late: bool) -> RankedRow:
    """On a card, with how the recorded settings end there from where memory lay."""
    base, failed = outcome.base, outcome.recorded.oom
    on_card = outcome.card is not None and (is_late or not outcome.divergence)
    ends = f"ran out {event_text(failed)}" if failed else "\N{EN DASH}"
    return RankedRow(
        settings=outcome.recorded.settings.to_text(),
        remark="the recording",
        reserved_bytes=outcome.recorded_peak_bytes,
        retries=count_text(outcome.recorded.retries),
        fits_on=outcome.smallest_card.name if outcome.smallest_card and outcome.replayed is base else "\N{EN DASH}",
        fits=base.oom is None if on_card else None,
        ends=_ends(base.oom, outcome, base.peak_reserved_bytes) if on_card else ends,
        tried=None,
        knows_reserved=outcome.knows_recorded_peak,
    )


def _ends(oom: RanOut | None, outcome: WhatIf, reserved_bytes: int) -> str:
    if oom is not None:
        return f"stops {event_text(oom)}"
    if outcome.card is None:
        return "runs to its end"
    return f"fits, {bytes_text(outcome.card.usable_bytes - reserved_bytes)} to spare"


_REPLAY_NOTES = {
    "settings_inferred",
    "settings_not_modelled",
    "start_rebuilt",
    "start_waits",
    "start_unplaced",
    "streams_as_recorded",
    "replay_differs",
}
"""Codes of notes that a replay adds."""


_FIRST_FACTS = ("fragmentation", "smallest card", "replay of the recording")
"""Beginnings of the names of facts that are shown; the others are folded."""


@dataclass(frozen=True)
class Answer:
    """The result for one question."""

    device: DeviceTrace
    what_if: WhatIf
    searched: Search | None
    at: int
    """The moment that the maps show."""

    @property
    def has_history(self) -> bool:
        return allocation_count(self.what_if.recorded) > 0


def what_if_html(answer: Answer) -> Html:
    title = headline_html(replay_headline(answer.what_if, answer.searched))
    if not answer.has_history:
        return tag("header", title)
    # Explore has the notes on the recording itself.
    notes = [note for note in answer.what_if.replayed.trace.notes if note.code in _REPLAY_NOTES]
    figures = _facts(answer)
    shown = [pair for pair in figures if pair[0].startswith(_FIRST_FACTS)]
    folded = [pair for pair in figures if pair not in shown]
    summary = tag("summary", counted(len(folded) + len(notes), "detail"))
    texts = [tag("p", note.text, class_=f"mv-note mv-{note.level}") for note in notes]
    look = "mv-notes mv-warning" if any(note.level == "warning" for note in notes) else "mv-notes"
    details = tag("details", summary, facts_html(folded), *texts, class_=look)
    return tag("header", title, tag("div", facts_html(shown), details, class_="mv-known"))


def _facts(answer: Answer) -> list[tuple[str, str]]:
    outcome = answer.what_if
    stopped = outcome.base if outcome.base.oom is not None else outcome.replayed
    replayed = outcome.replayed
    facts = [
        ("live at the peak", bytes_text(replayed.peak_requested_bytes)),
        ("allocated", bytes_text(replayed.peak_allocated_bytes)),
        ("reserved", bytes_text(replayed.peak_reserved_bytes)),
        ("fragmentation", _fragmentation(replayed)),
        ("retries", count_text(replayed.retries)),
    ]
    if stopped.oom:
        facts = _facts_at_oom(stopped, stopped.oom)
    exactness_name, _, value = exactness(outcome.recorded).partition(" exact")
    # "replayed with ..." marks the figures of a replay as no measurement.
    provenance, _, how = outcome.replayed.trace.about.label.partition(" with ")
    # The smallest card that a search found for these settings.
    tried = answer.searched.tried if answer.searched else ()
    same_settings = (other for other in tried if other.settings == outcome.replayed.settings)
    card = outcome.smallest_card or next((candidate.smallest_card for candidate in same_settings), None)
    sizes = [("smallest card", card.name)] if card else []
    if stopped is not outcome.replayed and outcome.replayed.oom is None:
        sizes.insert(0, ("fragmentation", _fragmentation(outcome.replayed)))
    context_facts = [("CUDA context", f"{outcome.context.interval} in addition")] if outcome.context else []
    return [*facts, (f"{provenance} with", how), *context_facts, *sizes, (exactness_name, f"exact{value}")]


def _facts_at_oom(replayed: Replayed, oom: RanOut) -> list[tuple[str, str]]:
    cached = oom.reserved_bytes - oom.allocated_bytes
    facts = [
        ("asked", bytes_text(oom.requested_bytes)),
        ("needed a new segment of", bytes_text(oom.asked_of_device_bytes)),
        ("allocated then", bytes_text(oom.allocated_bytes)),
        ("cached, but too fragmented", bytes_text(cached)),
    ]
    if replayed.memory is not None:
        facts.append(("free under the limit", bytes_text(replayed.memory - oom.reserved_bytes)))
    return [*facts, ("retries", count_text(replayed.retries))]


def _fragmentation(replayed: Replayed) -> str:
    unused = replayed.unused_at_peak_bytes
    return f"{bytes_text(unused)}, {percent_text(unused, replayed.peak_reserved_bytes)} of the peak"


def refusal_html(message: str) -> Html:
    """In the place of a verdict."""
    return tag("header", tag("h1", message, class_="mv-verdict"))


def waiting_html(share: float, *, events: int) -> Html:
    """The line at the top of the tab; nothing is covered by it."""
    percent = round(100 * share)
    text = tag("span", f"Replaying {count_text(events)} events, {percent} %", role="status")
    bar = tag("i", style=f"width:{percent}%")
    return tag("div", bar, text, button("Cancel", "cancel", None), class_="mv-waits")


def blocks_html(are_shown: bool) -> Html:
    label = "Hide blocks" if are_shown else "Show blocks"
    return button(label, "blocks", aria_expanded="true" if are_shown else "false")


def keep_html() -> Html:
    return joined(button("Open the replay in Explore", "explore"), button("Compare with the recording", "compare"))


def segments_head_html(at: int, *, matters: bool) -> Html:
    why = tag("small", "the decisive moment" if matters else "chosen on the plot above")
    return tag("h2", f"Segments {'at ' if at >= 0 else ''}{when(at)}", " ", why, class_="mv-h2")


def caption(replayed: Replayed, *, is_recording: bool) -> str:
    if is_recording:
        return "As recorded"
    limit = f", limit {bytes_text(replayed.memory)}" if replayed.memory is not None else ", without limit"
    name = settings_name(replayed.settings)
    return f"{name[0].upper()}{name[1:]}{limit}"


def search_html(answer: Answer, search: Search | None) -> Html:
    """The ranked settings; before a search, what one would do."""
    if search is None:
        text = " replays relevant settings and ranks them."
        return tag("p", tag("b", "Find the best"), text, class_="mv-soft")
    live = max(candidate.peak_requested_bytes for candidate in search.tried)
    order = "those that fit first, then by peak reserved" if answer.what_if.card else "by peak reserved"
    refused = ", with the failed request," if live > timeline(answer.device).peak_bytes else ","
    floor = tag("small", f"the live peak, {bytes_text(live)}{refused} is the minimum for all")
    return joined(
        tag("h2", "Settings, ", order, " ", floor, class_="mv-h2"),
        tag("p", search.advice, class_="mv-advice"),
        tag("p", about_ranked_rows(answer.what_if, search), class_="mv-soft"),
        _table(answer, search, live),
    )


def _table(answer: Answer, search: Search, live: int) -> Html:
    card = answer.what_if.card
    where = f"In {bytes_text(card.usable_bytes)}" if card else "Without limit"
    heads = (("Setting", None), ("", "mv-scale"), ("Reserved", "mv-number"), ("Retries", "mv-number"))
    rows = list(ranked_rows(answer.what_if, search))
    most = max(max(row.reserved_bytes for row in rows), card.usable_bytes if card else 0)
    body = [_row(row, answer, live=live, most=most) for row in rows]
    ranked = table((*heads, ("Fits on", None), (where, None)), body, "mv-table mv-tried")
    return tag("div", ranked, class_="mv-scroll")


def _row(row: RankedRow, answer: Answer, *, live: int, most: int) -> Html:
    outcome = answer.what_if
    settings = row.tried.settings if row.tried else None
    sign, kind = ("✓", "mv-good") if row.fits else ("✗", "mv-bad")
    fate = "" if row.fits is None else tag("span", sign, class_=kind, aria_hidden="true")
    # Breakable between keys; a button, except for the recording itself.
    parts = [joined(part, Html("<wbr>")) for part in row.name.replace(",", ",\0").split("\0")]
    content = joined(tag("code", *parts), tag("small", f" {row.remark}") if row.remark else "")
    return tag(
        "tr",
        tag("td", button(content, "use", None, data_settings=row.settings) if row.tried else content),
        tag("td", _bar(row, outcome.card, live=live, most=most) if row.knows_reserved else "", class_="mv-scale"),
        number(rounded(row.reserved_bytes) if row.knows_reserved else row.reserved),
        number(row.retries if row.retries != "0" else "–"),
        tag("td", "no card" if row.fits_on == "none" else row.fits_on),
        tag("td", fate, row.ends if row.fits is None else f" {row.ends}"),
        aria_current="true" if settings == outcome.replayed.settings else None,
    )


def _bar(row: RankedRow, card: CardMemory | None, *, live: int, most: int) -> Html:
    """Light up to what is live at once, dark up to what is reserved; the line is the limit."""
    sizes = [("i", "width", live), ("i", "width", max(row.reserved_bytes - live, 0))]
    sizes += [("b", "left", card.usable_bytes)] if card else []
    parts = [tag(name, style=f"{edge}:{100 * size / max(most, 1):.2f}%") for name, edge, size in sizes]
    return tag("div", *parts, class_="mv-reach", title=exact(row.reserved_bytes))
