"""A what-if as one self-contained page, to keep or to send."""

from __future__ import annotations

from memviz.allocator.replayer import Replayed, reserved_by_event
from memviz.allocator.search import Search, Tried
from memviz.allocator.verdict import exactness, in_words, verdict
from memviz.allocator.what_if import WhatIf
from memviz.analysis import reserved_lines
from memviz.analysis.reserved_lines import Replay
from memviz.figures.page import Drawing, Section, Table, html_page
from memviz.figures.replay import plot_replay
from memviz.trace.model import DeviceTrace
from memviz.units import bytes_text, count_text

_COLUMNS = 1000


def what_if_page(device: DeviceTrace, found: WhatIf, searched: Search | None = None) -> str:
    first, second = verdict(found, searched)
    ours = found.replayed
    about = ours.trace.about
    facts = f"{about.source}: {about.label}, device {device.name}; {exactness(found.recorded)}"
    caption = (
        "Live bytes are the same whatever the settings. A column shows the most of its events, so no peak is lost."
    )
    drawing = Drawing.of(plot_replay, _lines(device, found), caption=caption)
    sections = [Section("Reserved memory", second or _in_figures(ours), [drawing])]
    if searched is not None:
        sections.append(Section("Settings, by peak reserved", searched.advice, [_table(searched)]))
    return html_page(first, facts, ours.trace.notes, sections)


def _lines(device: DeviceTrace, found: WhatIf) -> reserved_lines.ReservedLines:
    ours, base = found.replayed, found.base
    replays = [] if ours is found.recorded else [_line(device, ours, in_words(ours.settings))]
    if base.oom is not None and base is not ours:
        replays.append(_line(device, base, "recorded settings, same limit"))
    limit = found.card.usable_bytes if found.card else None
    return reserved_lines.reserved_by_event(device, replays, limit=limit, columns=_COLUMNS)


def _line(device: DeviceTrace, replayed: Replayed, name: str) -> Replay:
    return Replay(name, reserved_by_event(replayed, len(device.events)), replayed.oom is not None)


def _in_figures(ours: Replayed) -> str:
    return (
        f"{bytes_text(ours.peak_allocated_bytes)} allocated, {bytes_text(ours.peak_reserved_bytes)} reserved at most."
    )


def _table(searched: Search) -> Table:
    head = ("without limit", "retries", "smallest card", "ends", "settings")
    rows = [
        (
            bytes_text(each.peak_reserved_bytes),
            count_text(each.retries),
            each.smallest_card.name if each.smallest_card else "none",
            _ends(each),
            (each.text or "PyTorch's default settings") + (", as recorded" if each.is_recorded else ""),
        )
        for each in searched.tried
    ]
    return Table(head, rows, numbers=3)


def _ends(each: Tried) -> str:
    return "fits" if each.oom is None else f"stops at event {count_text(each.oom.event)}"
