"""Compare: two to eight traces on one scale, what makes their peaks differ, and the files they are saved as."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from io import StringIO
from typing import Any

import gradio as gr

from memviz.analysis.comparing.changes import Changes, changes
from memviz.analysis.comparing.matching import Pair
from memviz.errors import UsageError
from memviz.trace.write import safe, write_tables
from memviz.ui.compare.answer import comparison_parts
from memviz.ui.compare.state import LETTERS, CompareState, changed
from memviz.ui.components.component import Panel, clicked
from memviz.ui.components.plots import MemoryTimeline, Overlay
from memviz.ui.components.tables import WaterfallTable
from memviz.ui.saved.report import report_page
from memviz.ui.shell.gradio_events import PRIVATE, while_seen
from memviz.ui.shell.session import Context, Session


def comparison_file(sides: Sequence[Pair], kind: str, by: str) -> dict[str, Any]:
    if kind == "html":
        return {"name": "comparison.html", "type": "text/html;charset=utf-8", "text": report_page(sides, by)}
    if kind == "csv":
        text = changes_csv(changes(sides, by))
        return {"name": f"comparison-by-{by}.csv", "type": "text/csv;charset=utf-8", "text": text}
    raise UsageError(f"A comparison cannot be saved as {kind!r}.")


def changes_csv(comparison: Changes) -> str:
    """Every row, every trace, all digits, and the peaks they add up to."""
    rows = comparison.rows
    peaks = [moment.live_bytes for moment in comparison.moments]
    columns: dict[str, list[Any]] = {
        comparison.by: [*(safe(row.thing.label) for row in rows), "peak"],
        "function": [*(safe(row.thing.function) for row in rows), ""],
        "operator": [*(safe(row.thing.operator) for row in rows), ""],
        "mostly": [*(row.kind for row in rows), ""],
    }
    for number, peak in enumerate(peaks):
        columns[f"{LETTERS[number]}_bytes"] = [*(row.bytes[number] for row in rows), peak]
        counts = [row.counts[number] for row in rows]
        columns[f"{LETTERS[number]}_allocations"] = [*counts, sum(counts)]
    for other in range(1, len(peaks)):
        columns[f"{LETTERS[other]}_minus_A_bytes"] = [*(row.delta(other) for row in rows), comparison.delta(other)]
    file = StringIO(newline="")
    write_tables(file, [columns])
    return file.getvalue()


ID, LABEL = "compare", "Compare"


_PARTS = ("drawn", "empty", "offer", "top", "controls", *LETTERS, "overlay", "differences", "place")
_DUE = {
    "by": ("differences",),
    "sort": ("differences",),
    "rows": ("differences",),
    "other": ("top", "controls", "overlay", "differences"),
    "align": ("controls", *LETTERS),
    "axis": ("controls", *LETTERS),
    "colour": ("controls", *LETTERS),
    "overlay": ("controls", "overlay"),
}
"""Which parts a click can change, where it leaves the traces as they are."""


@dataclass(frozen=True)
class CompareTab:
    empty: Panel
    offer: Panel
    """Its button opens samples, which the page does."""
    top: Panel
    controls: Panel
    timelines: tuple[MemoryTimeline, ...]
    overlay: Overlay
    differences: WaterfallTable
    traces: gr.State
    """The part of the session that this tab shows. A change redraws the tab if it is visible."""
    place: Panel
    """The tab's part of the address; address.js reads it."""
    state: gr.State
    looked_at: gr.State
    drawn: gr.State
    """The traces whose state is drawn, so that returning to the tab does not redraw it."""

    @property
    def outputs(self) -> list[Any]:
        return [self.traces]

    @property
    def drawing(self) -> list[Any]:
        panels = [self.empty, self.offer, self.top, self.controls]
        return [self.drawn, *panels, *self.timelines, self.overlay, self.differences, self.place]


def build(context: Context, session: gr.State, tabs: gr.Tabs, tab: gr.Tab) -> CompareTab:
    with gr.Column(elem_classes="mv-compare"):
        empty, offer = Panel(elem_id="compare-empty"), Panel(elem_id="compare-offer")
        top, controls = Panel(elem_id="compare-top"), Panel(elem_id="compare-bar")
        with gr.Row(elem_classes="mv-linked"):
            timelines = tuple(MemoryTimeline(context.find, elem_id=f"compare-{letter}") for letter in LETTERS)
        overlay = Overlay(elem_id="compare-overlay")
        differences = WaterfallTable(context.find, comparison_file, elem_id="differences")
        place = Panel(elem_id="compare-place")
    parts = CompareTab(
        empty,
        offer,
        top,
        controls,
        timelines,
        overlay,
        differences,
        traces=gr.State(()),
        place=place,
        state=gr.State(CompareState()),
        looked_at=gr.State(False),
        drawn=gr.State(()),
    )
    _wire(context, session, parts)
    inputs = [session, parts.state, parts.drawn]
    while_seen(tabs, tab, parts.traces, parts.looked_at, partial(draw, context), inputs=inputs, outputs=parts.drawing)
    return parts


def _wire(context: Context, session: gr.State, parts: CompareTab) -> None:
    def act(current: Session, state: CompareState, event: gr.EventData) -> list[Any]:
        data = clicked(event)
        after, then = _session_after(current, data), changed(state, data)
        values = draw(context, after, then)
        if after == current:
            due = (*_DUE.get(data.get("act", ""), ()), "place")
            values = [value if name in due else gr.skip() for name, value in zip(_PARTS, values, strict=True)]
        return [after, _open_traces(after), then, *values]

    for panel in (parts.empty, parts.top, parts.controls, parts.differences):
        panel.click(act, [session, parts.state], [session, parts.traces, parts.state, *parts.drawing], **PRIVATE)


def _session_after(session: Session, data: Mapping[str, str]) -> Session:
    key = data.get("key", "")
    if session.of(key) is None:
        return session
    match data.get("act"):
        case "baseline":
            return session.with_baseline(key)
        case "toggle":
            return session.toggling(key)
    return session


def show(context: Context, session: Session) -> list[Any]:
    """The values of `CompareTab.outputs`: all that the tab needs to know to draw itself when it is looked at."""
    return [_open_traces(session)]


def _open_traces(session: Session) -> tuple[Any, ...]:
    return session.compared, tuple((trace.key, trace.device, trace.name) for trace in session.opened)


def draw(context: Context, session: Session, state: CompareState, drawn: tuple[Any, ...] = ()) -> list[Any]:
    """The values of `CompareTab.drawing`."""
    shown = _open_traces(session)
    if drawn == shown:
        return [gr.skip()] * len(_PARTS)
    return [shown, *comparison_parts(context, session, state)]
