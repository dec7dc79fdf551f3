"""The answer in one sentence, the facts behind it, and what to know about the recording."""

from __future__ import annotations

from memviz.analysis.fragmentation import fragmentation_at
from memviz.analysis.health import health, history
from memviz.analysis.overview import overview
from memviz.analysis.timeline import timeline
from memviz.headlines.explore import explore
from memviz.headlines.names import counted
from memviz.trace.model import DeviceTrace, Note, Trace
from memviz.ui.views.headline import headline_html
from memviz.ui.views.markup import Html, esc, joined, tag
from memviz.units import bytes_text

_HISTORY = {"complete": "complete, from zero bytes", "late": "started late", "none": "none, only the end is known"}
_ORDER = {"warning": 0, "info": 1}


def verdict_html(trace: Trace, device: DeviceTrace) -> Html:
    return tag(
        "header",
        headline_html(explore(overview(trace, device))),
        tag(
            "p", *(tag("span", words, " ", tag("b", value)) for words, value in facts(trace, device)), class_="mv-facts"
        ),
        notes_html((*health(trace), *trace.notes)),
    )


def facts(trace: Trace, device: DeviceTrace) -> list[tuple[str, str]]:
    line = timeline(device)
    unused = fragmentation_at(trace, device, line.peak_event)
    found = [
        ("", trace.about.label),
        ("peak live", bytes_text(line.peak_bytes)),
        ("reserved", bytes_text(line.reserved_peak_bytes)),
        ("cached and unused at the peak", bytes_text(unused.cached)),
        ("history", _HISTORY[history(device)]),
        ("", counted(len(device.events), "event")),
    ]
    if "synthetic" in trace.about.facts:
        found.insert(1, ("", "synthetic: no GPU ran"))
    if line.start_bytes:
        found.insert(-1, ("there before", bytes_text(line.start_bytes)))
    return found


def notes_html(notes: tuple[Note, ...]) -> Html:
    """One is shown, the rest counted."""
    ordered = sorted(notes, key=lambda note: _ORDER[note.level])
    if not ordered:
        words = "Nothing unusual. The history is complete and the totals agree with the segments."
        return tag("p", words, class_="mv-note")
    rest = ordered[1:]
    more = (
        tag("details", tag("summary", f"{len(rest)} more note{'s' if len(rest) > 1 else ''}"), *map(_note, rest))
        if rest
        else ""
    )
    return tag("div", _note(ordered[0]), more, class_="mv-notes")


def _note(note: Note) -> Html:
    head, dot, tail = note.text.partition(": " if ": " in note.text[:90] else ". ")
    body = joined(tag("b", head + dot.strip()), " ", tail) if tail else tag("b", head)
    remedy = joined(" ", tag("span", note.remedy, class_="mv-remedy")) if note.remedy else esc("")
    return tag("p", body, remedy, class_=f"mv-note mv-{note.level}")
