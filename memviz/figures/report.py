"""One self-contained page about one trace or several: what to know, the timeline, the peak, what differs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from memviz.analysis.annotations import annotated
from memviz.analysis.callstacks.stacks import TreeOptions, stack_tree
from memviz.analysis.comparing.changes import Changes, changes, letter, telling
from memviz.analysis.decimate import by_event
from memviz.analysis.groups import Groups
from memviz.analysis.health import health
from memviz.analysis.leaks import never_freed
from memviz.analysis.live import live_rows
from memviz.analysis.out_of_memory import out_of_memory
from memviz.analysis.overview import overview
from memviz.analysis.peak import LiveSet, peak
from memviz.analysis.timeline import timeline
from memviz.figures.icicle import plot_icicle
from memviz.figures.page import Drawing, Section, Table, html_page
from memviz.figures.peak import plot_peak
from memviz.figures.timeline import plot_timeline
from memviz.figures.waterfall import plot_waterfall
from memviz.headlines.compare import compare
from memviz.headlines.explore import explore
from memviz.headlines.headline import Headline
from memviz.headlines.names import counted
from memviz.trace.model import DeviceTrace, Note, Trace
from memviz.units import bytes_text, count_text, delta_text, percent_text

_COLUMNS = 800
_NODES = 250
_ROWS = 25
_MOST_OOM = 5
Side = tuple[Trace, DeviceTrace]


def report_page(sides: Sequence[Side], by: str = "site") -> str:
    """The page as HTML. It stays under 3 MB however many events there are; most of that is plotly.js.

    `by` is what a row of the comparison is, where there are several.
    """
    sections = [_comparison(sides, by)] if len(sides) > 1 else []
    for number, side in enumerate(sides):
        sections.append(_trace(side, f"{letter(number)}: " if len(sides) > 1 else ""))
    title = _title(sides)
    return html_page(title.answer, f"{title.reason} {_facts(sides)}".strip(), _notes(sides), sections)


def _title(sides: Sequence[Side]) -> Headline:
    return compare(telling(sides)) if len(sides) > 1 else explore(overview(*sides[0]))


def _facts(sides: Sequence[Side]) -> str:
    return " · ".join(
        f"{trace.about.source}: {trace.about.label}, device {device.name}, {counted(len(device.events), 'event')}"
        for trace, device in sides
    )


def _notes(sides: Sequence[Side]) -> list[Note]:
    """Each with the trace it is about, where there are several; what all have stands once."""
    found = [tuple(dict.fromkeys((*trace.notes, *health(trace)))) for trace, _ in sides]
    shared = [note for note in found[0] if all(note in each for each in found)]
    own = [
        replace(note, text=f"{letter(number)}, {trace.about.source}: {note.text}")
        for number, (trace, _) in enumerate(sides)
        for note in found[number]
        if note not in shared
    ]
    return [*own, *shared]


def _trace(side: Side, prefix: str) -> Section:
    trace, device = side
    line = timeline(device)
    text = (
        f"{bytes_text(line.peak_bytes)} live at the peak, {bytes_text(line.start_bytes)} at the start, "
        f"{bytes_text(line.end_bytes)} at the end; {bytes_text(line.reserved_peak_bytes)} reserved at most."
    )
    parts: list[Section | Drawing | Table] = [_timeline(side), *_out_of_memory(side), _peak(side)]
    kept = never_freed(trace, device, top=_ROWS)
    if kept.count:
        were = "was" if kept.count == 1 else "were"
        words = f"{counted(kept.count, 'allocation')}, {bytes_text(kept.bytes)}, {were} made here and never freed."
        parts.append(Section("Never freed", words, [_groups_table(kept)]))
    return Section(f"{prefix}{trace.about.source}", text, parts)


def _timeline(side: Side) -> Drawing:
    trace, device = side
    return Drawing.of(
        plot_timeline,
        by_event(device, min(_COLUMNS, len(device.events) + 1)),
        intervals=annotated(device).intervals,
        strings=trace.strings,
        out_of_memory=out_of_memory(trace, device, chosen=slice(_MOST_OOM)),
        caption="Bytes over events. A column shows the most and the least of its events, so no peak is lost.",
    )


def _peak(side: Side) -> Section:
    trace, device = side
    sites = peak(trace, device, "site", top=_ROWS)
    rows = live_rows(device, sites.event)
    tree = stack_tree(trace, device, rows, TreeOptions(most_nodes=_NODES))
    return Section(
        "What the peak is made of",
        parts=[
            Drawing.of(plot_peak, peak(trace, device, "category"), caption="The peak by category."),
            Drawing.of(plot_icicle, tree, trace, caption="The peak by call stack; library frames are folded."),
            _live_table(sites),
        ],
    )


def _out_of_memory(side: Side) -> list[Section]:
    trace, device = side
    return [
        Section(
            f"Out of memory at event {count_text(each.then.event)}",
            f"{bytes_text(each.asked_bytes)} were asked for in {each.site}; the device had "
            f"{bytes_text(each.device_free_bytes)} left. {bytes_text(each.then.live_bytes)} were live and "
            f"{bytes_text(each.then.reserved_bytes)} reserved.",
            [_live_table(each.then)],
        )
        for each in out_of_memory(trace, device, top=_ROWS, chosen=slice(_MOST_OOM))
    ]


def _live_table(live: LiveSet) -> Table:
    return _groups_table(live.live)


def _groups_table(found: Groups) -> Table:
    whole = found.bytes
    rows = [_row(each.bytes, whole, each.count, each.label) for each in found.groups]
    if found.rest_count:
        rows.append(_row(found.rest_bytes, whole, found.rest_count, "(all others)"))
    return Table(["bytes", "share", "blocks", found.by], rows, 3, _row(whole, whole, found.count, "together"))


def _row(size: int, whole: int, count: int, label: str) -> list[str]:
    return [bytes_text(size), percent_text(size, whole), count_text(count), label]


def _comparison(sides: Sequence[Side], by: str) -> Section:
    found = changes(sides, by, with_kinds=False)
    parts: list[Section | Drawing | Table] = []
    for other in range(1, len(sides)):
        caption = f"From the peak of A to the peak of {letter(other)}, by {by}."
        parts.append(Drawing.of(plot_waterfall, found, other=other, caption=caption))
    parts.append(_changes_table(found))
    exact = " and ".join(f"{count_text(found.delta(other))} B" for other in range(1, len(sides)))
    several = "differences" if len(sides) > 2 else "difference"
    return Section("What differs", f"The rows add up to the {several} of the peaks, {exact}, to the byte.", parts)


def _changes_table(found: Changes) -> Table:
    others = range(1, len(found.moments))

    def cells(sizes: Sequence[int], deltas: Sequence[int], name: str) -> list[str]:
        return [*map(bytes_text, sizes), *map(delta_text, deltas), name]

    rows = [cells(row.bytes, [row.delta(i) for i in others], row.thing.name) for row in found.rows[:_ROWS]]
    rest = found.after(_ROWS)
    if any(rest.counts):
        rows.append(cells(rest.bytes, [rest.delta(i) for i in others], "(all others)"))
    total = cells([each.live_bytes for each in found.moments], [found.delta(i) for i in others], "peak")
    letters = [letter(number) for number in range(len(found.moments))]
    head = [*letters, *(f"{each} − A" for each in letters[1:]), found.by]
    return Table(head, rows, len(head) - 1, total)
