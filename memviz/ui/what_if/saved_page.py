"""A what-if as one self-contained page, to keep or to send."""

from __future__ import annotations

from memviz.allocator.agreement import exactness
from memviz.allocator.replayed import Replayed
from memviz.allocator.search import Search
from memviz.allocator.what_if import WhatIf
from memviz.analysis.reserved import reserved_lines
from memviz.figures.page import Drawing, Section, Table, html_page
from memviz.figures.replay import plot_replay
from memviz.headlines.what_if import what_if
from memviz.trace.model import DeviceTrace
from memviz.ui.what_if.ranked_rows import HEADS, about_rows, rows
from memviz.ui.what_if.reserved_plot import lines
from memviz.units import bytes_text

_COLUMNS = 1000


def what_if_page(device: DeviceTrace, found: WhatIf, searched: Search | None = None) -> str:
    said = what_if(found, searched)
    ours = found.replayed
    about = ours.trace.about
    facts = f"{about.source}: {about.label}, device {device.name}; {exactness(found.recorded)}"
    caption = (
        "Live bytes are the same whatever the settings. A column shows the most of its events, so no peak is lost."
    )
    drawing = Drawing.of(plot_replay, _lines(device, found), caption=caption)
    sections = [Section("Reserved memory", said.reason or _in_figures(ours), [drawing])]
    if searched is not None:
        words = f"{about_rows(found, searched)} {searched.advice}"
        sections.append(Section("Settings, by peak reserved", words, [_table(found, searched)]))
    return html_page(said.answer, facts, ours.trace.notes, sections)


def _lines(device: DeviceTrace, found: WhatIf) -> reserved_lines.ReservedLines:
    limit = found.card.usable_bytes if found.card else None
    return reserved_lines.reserved_by_event(device, lines(device, found), limit=limit, columns=_COLUMNS)


def _in_figures(ours: Replayed) -> str:
    return (
        f"{bytes_text(ours.peak_allocated_bytes)} allocated, {bytes_text(ours.peak_reserved_bytes)} reserved at most."
    )


def _table(found: WhatIf, searched: Search) -> Table:
    cells = [(each.reserved, each.retries, each.fits_on, each.ends, each.called) for each in rows(found, searched)]
    return Table(HEADS, cells, numbers=3)
