"""Explore: one trace, from the answer in a sentence down to each allocation.

Above, the timeline; below it the views that answer for the moment or range chosen there, and at the side the
pinned allocation. Of the inner tabs only the one that is seen is computed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gradio as gr

from memviz.errors import UsageError
from memviz.figures.colouring import MEANINGS, telling_meaning
from memviz.trace.model import DeviceTrace, Trace
from memviz.ui.components.event_list import EventList
from memviz.ui.components.find_field import FindField, typed
from memviz.ui.components.lit_panel import LitPanel
from memviz.ui.components.memory_timeline import MemoryTimeline
from memviz.ui.components.panel import Panel, clicked
from memviz.ui.components.segment_map import SegmentMap
from memviz.ui.explore import answer
from memviz.ui.explore.downloads import groups_csv
from memviz.ui.explore.estimates import offers, offers_at_hand
from memviz.ui.explore.findings import findings_html
from memviz.ui.explore.state import ExploreState
from memviz.ui.explore.verdict import verdict_html
from memviz.ui.payloads.segments_over_time import KEY_ENDING, segments_over_time_piece, segments_over_time_value
from memviz.ui.payloads.timeline_value import timeline_value
from memviz.ui.shell.context import Context, timeline_key
from memviz.ui.shell.session import Session
from memviz.ui.shell.wiring import NO_PROGRESS

_PLUMBING: dict[str, Any] = {"queue": False, "api_visibility": "private", **NO_PROGRESS}
# A dragged moment asks faster than an answer comes: the last one asked for is the one to answer.
_LATEST: dict[str, Any] = {**_PLUMBING, "trigger_mode": "always_last"}


@dataclass(frozen=True)
class ExploreTab:
    verdict: Panel
    findings: LitPanel
    """Its clicks are the page's affair: they turn to other tabs, or open one more trace."""
    timeline: MemoryTimeline
    find: FindField
    head: Panel
    found: LitPanel
    live: LitPanel
    segments_box: gr.Column
    segments: SegmentMap
    over_time: MemoryTimeline
    """Of segments."""
    events_box: gr.Column
    events: EventList
    inspector: Panel
    shown: gr.State
    """The key of the trace that the details are about."""
    chosen: gr.State
    """What the timeline's `select` said last, or under `linked` what a link says of a trace that comes next. The
    controls below write `state` alone, so that two clicks at once never undo each other."""
    state: gr.State

    @property
    def outputs(self) -> list[Any]:
        return [self.verdict, self.findings, self.timeline, self.shown, self.chosen]

    @property
    def panels(self) -> list[Any]:
        return [self.head, self.found, self.live, self.inspector]

    @property
    def maps(self) -> list[Any]:
        return [self.segments_box, self.events_box, self.segments, self.over_time, self.events]


def build(context: Context, session: gr.State) -> ExploreTab:
    verdict = Panel(elem_id="verdict")
    findings = LitPanel(_csv(context), elem_id="findings")
    line = MemoryTimeline(context.find, elem_id="timeline")
    with gr.Column(elem_id="lower"):
        find = FindField(elem_id="find")
        with gr.Column(elem_id="lower-main"):
            head = Panel(elem_id="lower-head")
            lit_panel = LitPanel(_csv(context), elem_id="found")
            live = LitPanel(_csv(context), elem_id="live-set")
            with gr.Column(visible="hidden", elem_id="segments-box") as segments_box:
                segments = SegmentMap(context.find, elem_id="segments")
                over_time = _segments_over_time(context)
            with gr.Column(visible="hidden", elem_id="events-box") as events_box:
                events = EventList(context.find, elem_id="events")
        inspector = Panel(elem_id="inspector")
    parts = ExploreTab(
        verdict=verdict,
        findings=findings,
        timeline=line,
        find=find,
        head=head,
        found=lit_panel,
        live=live,
        segments_box=segments_box,
        segments=segments,
        over_time=over_time,
        events_box=events_box,
        events=events,
        inspector=inspector,
        shown=gr.State(""),
        chosen=gr.State({}),
        state=gr.State(ExploreState()),
    )
    _wire(context, session, parts)
    return parts


def _segments_over_time(context: Context) -> MemoryTimeline:
    """Not there before there is something to show: it draws only once it is seen."""

    def find(key: str) -> tuple[Trace, DeviceTrace] | None:
        return context.find(key.removesuffix(KEY_ENDING))

    return MemoryTimeline(find, segments_over_time_piece, elem_id="segments-over-time", visible=False)


def _wire(context: Context, session: gr.State, parts: ExploreTab) -> None:
    def select(current: Session, state: ExploreState, before: Mapping[str, Any], event: gr.EventData) -> list[Any]:
        chosen = event._data if isinstance(event._data, dict) else {}
        moved = any(before.get(key) != chosen.get(key) for key in ("key", "at", "range"))
        recoloured = before.get("colour", "category") != chosen.get("colour", "category")
        due = (answer.MOMENT if moved else answer.PIN) | (answer.TABLE if recoloured else frozenset())
        return [chosen, *panels(context, current, state, chosen, due=due)]

    def act(current: Session, state: ExploreState, chosen: Mapping[str, Any], event: gr.EventData) -> list[Any]:
        turned = state.clicked(clicked(event), timeline_key(current.current) if current.current else "")
        shown = panels(context, current, turned, chosen, due=answer.TABLE)
        is_same = turned.tab == state.tab
        return [turned, *shown, *([gr.skip()] * len(parts.maps) if is_same else maps(context, current, turned, chosen))]

    def search(current: Session, state: ExploreState, chosen: Mapping[str, Any], event: gr.EventData) -> list[Any]:
        turned = state.finding(typed(event))
        return [turned, *panels(context, current, turned, chosen, due=answer.FOUND)]

    def another(current: Session, state: ExploreState, chosen: Mapping[str, Any]) -> list[Any]:
        # The timeline of another trace begins at its peak, unless a link says where. What was chosen on the trace
        # before is forgotten, so that it does not come back with that one. Gradio may tell of one change twice.
        key = timeline_key(current.current) if current.current else ""
        said = chosen.get("linked") or (chosen if chosen.get("key") == key else {})
        return [said, *panels(context, current, state, said, due=answer.ALL), *maps(context, current, state, said)]

    def offer(current: Session) -> Any:
        """What could be done follows by itself: it takes some replays."""
        current_trace = context.current(current)
        if current_trace is None or current.current is None:
            return gr.skip()
        return findings_html(*current_trace, timeline_key(current.current), offers(*current_trace))

    inputs = [session, parts.state, parts.chosen]
    parts.timeline.select(select, inputs, [parts.chosen, *parts.panels], **_LATEST)
    parts.shown.change(offer, [session], [parts.findings], **_LATEST)
    parts.find.input(search, inputs, [parts.state, *parts.panels], **_LATEST)
    parts.shown.change(another, inputs, [parts.chosen, *parts.panels, *parts.maps], **_LATEST)
    for panel in (parts.head, parts.live):
        panel.click(act, inputs, [parts.state, *parts.panels, *parts.maps], **_LATEST)


def show(context: Context, session: Session, state: dict[str, Any] | None = None) -> list[Any]:
    """The values of `ExploreTab.outputs`. The details follow by themselves when another trace is shown."""
    current = context.current(session)
    if current is None or session.current is None:
        return ["", "", {}, "", {}]
    key = timeline_key(session.current)
    meaning = telling_meaning(*current)
    first = {"colour": meaning} if meaning != MEANINGS[0] else {}
    value = timeline_value(*current, key, state={**first, **(state or {})})
    linked = {"linked": {**state, "key": key}} if state else gr.skip()
    return [
        verdict_html(*current, session.current.key),
        findings_html(*current, key, offers_at_hand(*current)),
        value,
        key,
        linked,
    ]


def panels(
    context: Context, session: Session, state: ExploreState, chosen: Mapping[str, Any], *, due: frozenset[str]
) -> list[Any]:
    """The values of `ExploreTab.panels`; what is not due stays as it is."""
    current = context.current(session)
    if current is None or session.current is None:
        return [""] * 4
    shown = answer.details(*current, timeline_key(session.current), state, said=chosen, due=due)
    return [gr.skip() if panel is None else panel for panel in shown.panels]


def maps(context: Context, session: Session, state: ExploreState, chosen: Mapping[str, Any]) -> list[Any]:
    """The values of `ExploreTab.maps`. Once they are shown they follow the timeline in the browser, by themselves."""
    pair = context.current(session)
    key = timeline_key(session.current) if session.current else ""
    boxes = [gr.update(visible=True if state.tab == tab else "hidden") for tab in ("segments", "events")]
    if state.tab == "segments":
        if pair is None:
            return [*boxes, {}, gr.update(visible=False), gr.skip()]
        over_time = segments_over_time_value(pair[1], key)
        shown = gr.update(value=over_time, visible=bool(over_time))
        return [*boxes, answer.segments_value(pair[1], key, chosen), shown, gr.skip()]
    if state.tab == "events":
        return [*boxes, gr.skip(), gr.skip(), answer.events_value(*pair, key, chosen) if pair else {}]
    return [*boxes, gr.skip(), gr.skip(), gr.skip()]


def _csv(context: Context) -> Any:
    def make(request: Mapping[str, str]) -> str:
        pair = context.find(request.get("key", ""))
        if pair is None:
            raise UsageError("This trace is not open any more.")
        unit = "byte_events" if request.get("what") == "lifetime" else "bytes"
        return groups_csv(answer.full_table(*pair, request), unit)

    return make
