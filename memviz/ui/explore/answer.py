"""The answers of Explore as HTML: the sentence at the top, and the views of one moment or range below the timeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from memviz.analysis.allocations import allocation
from memviz.analysis.breakdown import (
    Breakdown,
    Path,
    WeightedRows,
    breakdown,
    parse_path,
    path_text,
    rows_below,
    weighted_breakdown,
    weighted_stacks,
)
from memviz.analysis.devices import others_out_of_memory
from memviz.analysis.find import find_sites
from memviz.analysis.health import health, history
from memviz.analysis.leaks import freed_at_once, growth, never_freed_rows
from memviz.analysis.lifetimes import lifetimes, live_rows
from memviz.analysis.overview import overview
from memviz.analysis.peak import RangeSummary, Total, event_state, summarize_range
from memviz.analysis.segments import fragmentation_at
from memviz.analysis.timeline import has_reserved, timeline
from memviz.errors import UsageError
from memviz.figures.colouring import Colouring
from memviz.results.device_bill import device_bill, host_bill
from memviz.results.headline import Headline
from memviz.results.summary import trace_headline
from memviz.text import Html, joined, tag
from memviz.trace.model import DeviceTrace, Note, Trace
from memviz.ui.explore.icicle import icicle_html
from memviz.ui.explore.inspector import allocation_html, moment_html, source_lines
from memviz.ui.explore.live_set import (
    BYTES,
    CHURN_ROWS,
    Measure,
    TableLook,
    colours_of,
    head_html,
    lifetime_total_html,
    matches_html,
    matches_section,
    moment_total_html,
    never_freed_html,
    paint_of,
    range_html,
    recoloured,
    table_html,
    weights_by_bytes,
    weights_by_lifetime,
)
from memviz.ui.explore.state import Chosen, ExploreState, chosen_of, groupings_of
from memviz.ui.html.elements import button, facts_html
from memviz.ui.html.labels import headline_html
from memviz.ui.payloads.event_rows import list_value
from memviz.ui.payloads.segment_view import map_value
from memviz.units import bytes_text, counted

_HISTORY = {"late": "started late", "none": "none, only the final state is known"}
_ORDER = {"warning": 0, "info": 1}


def verdict_html(trace: Trace, device: DeviceTrace, key: str = "") -> Html:
    """One sentence and one line of facts; all else is folded. `key` is the open trace's, for links to its devices."""
    headline = trace_headline(overview(trace, device))
    bill = device_bill(trace, device)
    host = host_bill(trace, device)
    notes = [*health(trace), *trace.notes]
    for at, note in enumerate(notes):
        if bill is not None and note.code == "unseen_memory":
            # What lies beside the allocator, and on the host, in place of the note that something does.
            text = f"{bill.headline} {host.headline}" if host else str(bill.headline)
            notes[at] = replace(note, text=text, remedy="" if bill.is_measured else note.remedy)
    shown, folded = notes_html(notes, trace, device, key)
    reason = tag("p", headline.reason, class_="mv-note") if headline.reason else ""
    count = len(folded) + bool(reason)
    look = "mv-notes mv-warning" if any("mv-warning" in note for note in folded) else "mv-notes"
    more = tag("details", tag("summary", counted(count, "note")), reason, *folded, class_=look) if count else ""
    known = tag("div", facts_html(facts(trace, device, headline.answer)), more, class_="mv-known")
    return tag("header", headline_html(Headline(headline.answer)), known, *shown)


def facts(trace: Trace, device: DeviceTrace, said: str = "") -> list[tuple[str, str]]:
    """Figures of a trace, without the peak where the sentence `said` has it already."""
    line = timeline(device)
    unused = fragmentation_at(trace, device, line.peak_event)
    # Of a state alone nothing is known to be a peak.
    peak, at_the_peak = ("peak ", " at peak") if len(device.events) else ("", "")
    # A profile of the host has allocations, and nothing that is reserved for them.
    reserved = [("reserved", "not in the file")]
    if has_reserved(device):
        reserved = [(f"{peak}reserved", bytes_text(line.reserved_peak_bytes))]
        reserved.append((f"cached{at_the_peak}", bytes_text(unused.cached)))
    live = bytes_text(line.peak_bytes)
    known = history(device)
    # A late start is said once, as what was there before it; a complete history is what is expected.
    began = [("history", _HISTORY[known])] if known in _HISTORY else []
    if line.start_bytes and len(device.events):
        began = [("allocated before recording", bytes_text(line.start_bytes))]
    return [
        ("", trace.about.label),
        *([] if live in said else [(f"{peak}live", live)]),
        *reserved,
        *began,
        ("", counted(len(device.events), "event")),
    ]


def notes_html(notes: Sequence[Note], trace: Trace, device: DeviceTrace, key: str) -> tuple[list[Html], list[Html]]:
    """That another device ran out of memory, which is shown; and all else, last what is true of every file."""
    failed_devices = others_out_of_memory(trace, device)

    def rank(note: Note) -> tuple[int, ...]:
        return note.code == "unseen_memory", _ORDER[note.level], note.device not in ("", device.name)

    # A late start explains why its bytes have no stack.
    late = {note.device for note in notes if note.code == "late_history"}
    shown: list[Html] = []
    folded: list[Html] = []
    for note in sorted(notes, key=rank):
        if note.code != "earlier_bytes_without_stack" or note.device not in late:
            has_failed = note.code == "out_of_memory" and note.device in failed_devices
            (shown if has_failed else folded).append(_note(note, key if note.device in failed_devices else ""))
    return shown, folded


def _note(note: Note, key: str) -> Html:
    """With a way to its device, where that is another one: `key` is the open trace's then."""
    head, dot, tail = note.text.partition(": " if ": " in note.text[:90] else ". ")
    body = joined(tag("b", head + dot.strip()), " ", tail) if tail else tag("b", head)
    remedy = joined(" ", tag("span", note.remedy, class_="mv-remedy")) if note.remedy else ""
    look = button(f"Look at device {note.device}", "device", data_key=key, data_device=note.device)
    return tag("p", body, remedy, joined(" ", look) if key else "", class_=f"mv-note mv-{note.level}")


MOMENT = frozenset({"head", "found", "live", "inspector"})
"""Due after another moment or range was chosen."""
ALL = MOMENT | {"end"}
"""Parts due after another trace was chosen. The part about the end is the same at every moment."""
PIN = frozenset({"inspector"})
TABLE = frozenset({"head", "live", "end"})
"""After a click on a tab or on a control of the tables."""
FOUND = frozenset({"found"})


@dataclass(frozen=True)
class Details:
    """HTML of each part; None where it is not due."""

    head: Html | None
    found: Html | None
    live: Html | None
    inspector: Html | None

    @property
    def panels(self) -> list[Html | None]:
        return [self.head, self.found, self.live, self.inspector]


@dataclass(frozen=True)
class _View:
    trace: Trace
    device: DeviceTrace
    state: ExploreState
    chosen: Chosen
    during: RangeSummary | None
    """Summary of the selected range, if there is one."""

    @property
    def event(self) -> int:
        return self.during.peak_event if self.during else self.chosen.at

    @property
    def span(self) -> tuple[int, int]:
        """Events over which bytes × lifetime are summed: the range, or the whole trace."""
        return self.chosen.range or (-1, len(self.device.events) - 1)

    def colours(self, meaning: str) -> Colouring:
        return colours_of(self.trace, self.device, meaning)

    @property
    def is_still(self) -> bool:
        """Only the state at the end is known."""
        return not len(self.device.events)


def details(
    trace: Trace,
    device: DeviceTrace,
    key: str,
    state: ExploreState,
    *,
    selection: Mapping[str, Any],
    parts: frozenset[str],
    source_folders: tuple[str, ...] = (),
) -> Details:
    """`selection` is what the timeline's `select` said last, of this trace or of another one."""
    chosen = chosen_of(selection, key, device)
    during = summarize_range(device, *chosen.range) if chosen.range else None
    view = _View(trace, device, state, chosen, during)
    inspector = None
    if "inspector" in parts and chosen.pin >= 0:
        inspector = allocation_html(
            trace, allocation(trace, device, chosen.pin), partial(source_lines, folders=source_folders)
        )
    elif "inspector" in parts:
        at = event_state(trace, device, view.event)
        inspector = moment_html(at, of_range=during is not None, is_still=view.is_still)
    found = None
    if "found" in parts:
        try:
            result = find_sites(trace, device, state.query, view.event) if state.query else None
            found = matches_html(result, state.query) if result else Html("")
        except UsageError as error:
            found = matches_section(tag("p", str(error), class_="mv-soft", role="alert"))
    live = None
    if "live" in parts and (state.tab != "never" or "end" in parts):
        views = {"live": _live_set, "never": _never_freed}
        live = tag("div", *(views[state.tab](view) if state.tab in views else ()), data_trace=chosen.key)
    return Details(_head(view) if "head" in parts else None, found, live, inspector)


def segments_value(device: DeviceTrace, key: str, selection: Mapping[str, Any]) -> dict[str, object]:
    """Return the map's value at the chosen moment; later the map follows the timeline by itself."""
    chosen = chosen_of(selection, key, device)
    return map_value(device, key, at=chosen.at, pin=chosen.pin, colour=str(selection.get("colour") or "category"))


def events_value(trace: Trace, device: DeviceTrace, key: str, selection: Mapping[str, Any]) -> dict[str, object]:
    """Return the list's value at the chosen moment; later the list follows the timeline by itself."""
    return list_value(trace, device, key, chosen_of(selection, key, device).at)


def _head(view: _View) -> Html:
    if view.state.tab != "live":
        return head_html(view.state)
    if view.state.weight == "lifetime":
        total = lifetime_total_html(view.span, *weights_by_lifetime(view.device, view.span, view.colours("category")))
        return head_html(view.state, total, groupings=groupings_of(view.device))
    rows = live_rows(view.device, view.event)
    live = Total(len(rows), int(lifetimes(view.device).size[rows].sum()))
    moment_text = moment_total_html(view.event, live, of_range=view.during is not None, is_still=view.is_still)
    facts = range_html(view.during) if view.during else Html("")
    return head_html(view.state, moment_text, facts, groupings_of(view.device))


def _live_set(view: _View) -> list[Html]:
    """Return the table grouped by the state's choice, below an icicle for stacks, in the timeline's colours."""
    trace, device, state, key = view.trace, view.device, view.state, view.chosen.key
    by = "site" if state.by == "stack" else state.by
    path: Path = ()
    if state.by == "stack":
        # A path that this trace does not have leads nowhere: all is shown.
        with suppress(UsageError):
            path = parse_path(trace, state.path_of(key))
    rows = live_rows(device, view.event)
    weights, measure = weights_by_bytes(device, rows, view.colours("category")), Measure(state.weight)
    request = {"key": key, "what": "live", "by": by, "event": str(view.event), "path": path_text(path)}
    name = f"live-at-{max(view.event, 0)}-by-{by}.csv"
    if state.weight == "lifetime":
        weights, measure = weights_by_lifetime(device, view.span, view.colours("category"))
        first, last = view.span
        request |= {"what": "lifetime", "first": str(first), "last": str(last)}
        name = f"lifetime-{max(first, 0)}-to-{last}-by-{by}.csv"
    below = weights.below(trace, device, path)
    look, download = _look(view, below, by, measure), {**request, "name": name}
    # Purposes are weighed by bytes, with their certainty; over a range by bytes × lifetime, without.
    is_range = state.weight == "lifetime"
    shown = weighted_breakdown(trace, device, below, by) if is_range else breakdown(trace, device, below.rows, by)
    table = table_html(shown, state, look=look, download=download)
    if state.by != "stack":
        return [table]
    if state.weight == "count":
        weights = replace(weights, weight=np.ones(len(rows), dtype=np.int64))
    colours = view.colours(view.chosen.colour)
    stacks = weighted_stacks(trace, device, recoloured(weights, colours), path)
    return [icicle_html(trace, stacks, paint=paint_of(colours), measure=measure), table]


def _look(view: _View, weights: WeightedRows, by: str, measure: Measure = BYTES) -> TableLook:
    colours = view.colours(view.chosen.colour)
    total = "Together" if measure.kind == "lifetime" else "Live"
    if colours.meaning == "category":
        return TableLook(measure=measure, total=total)
    colour = weighted_breakdown(view.trace, view.device, recoloured(weights, colours), by).dominant
    return TableLook(paint_of(colours), colour, measure, total)


def _never_freed(view: _View) -> list[Html]:
    trace, device = view.trace, view.device
    weights = weights_by_bytes(device, never_freed_rows(device), view.colours("category"))
    never_freed = breakdown(trace, device, weights.rows, "site")
    churn = freed_at_once(trace, device, top=CHURN_ROWS)
    download = {"key": view.chosen.key, "what": "never", "by": "site", "name": "never-freed.csv"}
    look = _look(view, weights, "site")
    grown = growth(trace, device, "holder" if device.holders else "site", within=view.chosen.range)
    return [never_freed_html(never_freed, grown, churn, view.state, look=look, download=download)]


def full_table(trace: Trace, device: DeviceTrace, request: Mapping[str, str]) -> Breakdown:
    """All rows of a table that the page shows the largest of. The request comes from a browser."""
    by = request.get("by", "site")
    if request.get("what") == "never":
        return breakdown(trace, device, never_freed_rows(device), by)
    path = parse_path(trace, request.get("path", ""))
    if request.get("what") == "lifetime":
        ends = [request.get(end, "") for end in ("first", "last")]
        if not all(map(_is_event, ends)):
            raise UsageError("A range is given by two event numbers.")
        first, last = sorted(map(int, ends))
        weights, _ = weights_by_lifetime(device, (first, last), colours_of(trace, device, "category"))
        return weighted_breakdown(trace, device, weights.below(trace, device, path), by)
    event = request.get("event", "")
    if not _is_event(event):
        raise UsageError("A moment is given by an event number.")
    return breakdown(trace, device, rows_below(trace, device, live_rows(device, int(event)), path), by)


def _is_event(text: str) -> bool:
    return text.removeprefix("-").isdecimal() and len(text) <= 18
