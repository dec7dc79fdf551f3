"""The answer in one sentence, the facts behind it, and what to know about the recording."""

from __future__ import annotations

from collections.abc import Sequence

from memviz.analysis.fragmentation import fragmentation_at
from memviz.analysis.health import health, history
from memviz.analysis.overview import overview
from memviz.analysis.timeline import has_reserved, timeline
from memviz.analysis.which_device import others_out_of_memory
from memviz.headlines.explore import explore
from memviz.trace.model import DeviceTrace, Note, Trace
from memviz.ui.html.headline import headline_html
from memviz.ui.html.markup import Html, esc, joined, tag
from memviz.units import bytes_text, counted

_HISTORY = {"complete": "complete, from zero bytes", "late": "started late", "none": "none, only the end is known"}
_ORDER = {"warning": 0, "info": 1}


def verdict_html(trace: Trace, device: DeviceTrace, key: str = "") -> Html:
    """`key` is the open trace's, for the way to another of its devices."""
    return tag(
        "header",
        headline_html(explore(overview(trace, device))),
        tag(
            "p", *(tag("span", words, " ", tag("b", value)) for words, value in facts(trace, device)), class_="mv-facts"
        ),
        notes_html((*health(trace), *trace.notes), trace, device, key),
    )


def facts(trace: Trace, device: DeviceTrace) -> list[tuple[str, str]]:
    line = timeline(device)
    unused = fragmentation_at(trace, device, line.peak_event)
    # Of a state alone nothing is known to be a peak.
    peak, at_the_peak = ("peak ", " at the peak") if len(device.events) else ("", "")
    # A profile of the host has allocations, and nothing that is reserved for them.
    reserved = [
        (f"{peak}reserved", bytes_text(line.reserved_peak_bytes)),
        (f"cached and unused{at_the_peak}", bytes_text(unused.cached)),
    ]
    pairs = [
        ("", trace.about.label),
        (f"{peak}live", bytes_text(line.peak_bytes)),
        *(reserved if has_reserved(device) else [("reserved", "not in the file")]),
        ("history", _HISTORY[history(device)]),
        ("", counted(len(device.events), "event")),
    ]
    if line.start_bytes and len(device.events):
        pairs.insert(-1, ("there before", bytes_text(line.start_bytes)))
    return pairs


def notes_html(notes: Sequence[Note], trace: Trace, device: DeviceTrace, key: str) -> Html:
    """One is shown, the rest counted: first that another device ran out of memory, last what is true of every file."""
    elsewhere = others_out_of_memory(trace, device)

    def rank(note: Note) -> tuple[int, ...]:
        failed = note.code == "out_of_memory" and note.device in elsewhere
        return not failed, note.code == "unseen_memory", _ORDER[note.level], note.device not in ("", device.name)

    ordered = [_note(note, key if note.device in elsewhere else "") for note in sorted(notes, key=rank)]
    if not ordered:
        words = "Nothing unusual. The history is complete and the totals agree with the segments."
        return tag("p", words, class_="mv-note")
    rest = ordered[1:]
    more = tag("details", tag("summary", f"{counted(len(rest), 'more note')}"), *rest) if rest else ""
    return tag("div", ordered[0], more, class_="mv-notes")


def _note(note: Note, key: str) -> Html:
    """With a way to its device, where that is another one: `key` is the open trace's then."""
    head, dot, tail = note.text.partition(": " if ": " in note.text[:90] else ". ")
    body = joined(tag("b", head + dot.strip()), " ", tail) if tail else tag("b", head)
    remedy = joined(" ", tag("span", note.remedy, class_="mv-remedy")) if note.remedy else esc("")
    words = f"Look at device {note.device}"
    way = _button(words, key, note.device) if key else esc("")
    return tag("p", body, remedy, way, class_=f"mv-note mv-{note.level}")


def _button(words: str, key: str, device: str) -> Html:
    act = {"data_act": "device", "data_key": key, "data_device": device}
    return joined(" ", tag("button", words, type="button", class_="mv-quiet", **act))
