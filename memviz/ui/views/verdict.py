"""The answer in one sentence, the facts behind it, and what to know about the recording."""

from __future__ import annotations

from memviz.analysis.annotations import steps
from memviz.analysis.fragmentation import fragmentation_at
from memviz.analysis.health import health, history
from memviz.analysis.out_of_memory import out_of_memory
from memviz.analysis.peak import peak
from memviz.analysis.timeline import timeline
from memviz.trace.model import Category, DeviceTrace, Note, Trace
from memviz.ui.views.markup import Html, esc, joined, tag
from memviz.units import bytes_text, count_text, percent_text

_LEAST_SHARE = 0.2
_HISTORY = {"complete": "complete, from zero bytes", "late": "started late", "none": "none, only the end is known"}
_ORDER = {"warning": 0, "info": 1}


def verdict_html(trace: Trace, device: DeviceTrace) -> Html:
    first, second = sentences(trace, device)
    return tag(
        "header",
        tag("h1", first, " ", tag("span", second), class_="mv-verdict"),
        tag(
            "p", *(tag("span", words, " ", tag("b", value)) for words, value in facts(trace, device)), class_="mv-facts"
        ),
        notes_html((*health(trace), *trace.notes)),
    )


def sentences(trace: Trace, device: DeviceTrace) -> tuple[str, str]:
    line = timeline(device)
    failures = out_of_memory(trace, device, top=1, chosen=slice(-1, None))
    if failures:
        last = failures[-1]
        asked = f"It ran out of memory: {bytes_text(last.asked_bytes)} were asked for in {last.site}."
        free = last.then.reserved_bytes - last.then.live_bytes
        return asked, f"{bytes_text(last.then.live_bytes)} were live, and {bytes_text(free)} reserved and not live."
    if not len(device.events):
        return f"{bytes_text(line.peak_bytes)} are live.", "The file holds no history, only the state at its end."
    largest = peak(trace, device, "category", top=1).live.groups
    known = [
        each for each in largest if each.key != Category.UNKNOWN.label and each.bytes > _LEAST_SHARE * line.peak_bytes
    ]
    made_of = (
        f", and {percent_text(known[0].bytes, line.peak_bytes)} of it is {_plural(known[0].label)}" if known else ""
    )
    return f"The peak is {bytes_text(line.peak_bytes)}{made_of}.", _when(trace, device, line.peak_event)


def _plural(category: str) -> str:
    single = {"temporary": "temporary tensors", "optimizer state": "optimizer state", "workspace": "workspace"}
    return single.get(category, f"{category}s")


def _when(trace: Trace, device: DeviceTrace, event: int) -> str:
    if event < 0:
        return "It was there before the first event."
    around = [each for each in steps(trace, device) if each.start_event <= event <= each.end_event]
    inside = f", in {around[0].name}" if around else ""
    return f"It comes at event {count_text(event)} of {count_text(len(device.events))}{inside}."


def facts(trace: Trace, device: DeviceTrace) -> list[tuple[str, str]]:
    line = timeline(device)
    unused = fragmentation_at(trace, device, line.peak_event)
    found = [
        ("", trace.about.label),
        ("peak live", bytes_text(line.peak_bytes)),
        ("reserved", bytes_text(line.reserved_peak_bytes)),
        ("cached and unused at the peak", bytes_text(unused.cached)),
        ("history", _HISTORY[history(device)]),
        ("", f"{count_text(len(device.events))} events"),
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
