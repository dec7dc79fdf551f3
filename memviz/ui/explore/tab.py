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
from memviz.ui.components.find_field import FindField, typed
from memviz.ui.components.lit_panel import LitPanel
from memviz.ui.components.memory_timeline import MemoryTimeline
from memviz.ui.components.panel import Panel, clicked
from memviz.ui.explore import details as halves
from memviz.ui.explore import events_tab as events
from memviz.ui.explore import segments_tab as segments
from memviz.ui.explore.explore_state import Look
from memviz.ui.explore.groups_csv import groups_csv
from memviz.ui.explore.timeline import timeline_value
from memviz.ui.explore.verdict import verdict_html
from memviz.ui.shell.context import Context, timeline_key
from memviz.ui.shell.session import Session

_PLUMBING: dict[str, Any] = {"queue": False, "show_progress": "hidden", "api_visibility": "private"}
# A dragged moment asks faster than an answer comes: the last one asked for is the one to answer.
_LATEST: dict[str, Any] = {**_PLUMBING, "trigger_mode": "always_last"}


@dataclass(frozen=True)
class Explore:
    verdict: Panel
    timeline: MemoryTimeline
    find: FindField
    head: Panel
    found: LitPanel
    live: LitPanel
    segments_box: gr.Column
    segments: segments.Segments
    events_box: gr.Column
    events: events.Events
    inspector: Panel
    shown: gr.State
    """The key of the trace that the lower half is about."""
    chosen: gr.State
    """What the timeline's `select` said last, or under `linked` what a link says of a trace that comes next. The
    controls below write `look` alone, so that two clicks at once never undo each other."""
    look: gr.State

    @property
    def outputs(self) -> list[Any]:
        return [self.verdict, self.timeline, self.shown, self.chosen]

    @property
    def panels(self) -> list[Any]:
        return [self.head, self.found, self.live, self.inspector]

    @property
    def maps(self) -> list[Any]:
        return [self.segments_box, self.events_box, *self.segments.outputs, *self.events.outputs]


def build(context: Context, session: gr.State) -> Explore:
    verdict = Panel(elem_id="verdict")
    line = MemoryTimeline(context.find, elem_id="timeline")
    with gr.Column(elem_id="lower"):
        find = FindField(elem_id="find")
        with gr.Column(elem_id="lower-main"):
            head = Panel(elem_id="lower-head")
            found = LitPanel(_csv(context), elem_id="found")
            live = LitPanel(_csv(context), elem_id="live-set")
            with gr.Column(visible="hidden", elem_id="segments-box") as segments_box:
                segment_parts = segments.build(context, session)
            with gr.Column(visible="hidden", elem_id="events-box") as events_box:
                event_parts = events.build(context, session)
        inspector = Panel(elem_id="inspector")
    parts = Explore(
        verdict=verdict,
        timeline=line,
        find=find,
        head=head,
        found=found,
        live=live,
        segments_box=segments_box,
        segments=segment_parts,
        events_box=events_box,
        events=event_parts,
        inspector=inspector,
        shown=gr.State(""),
        chosen=gr.State({}),
        look=gr.State(Look()),
    )
    _wire(context, session, parts)
    return parts


def _wire(context: Context, session: gr.State, parts: Explore) -> None:
    def select(current: Session, look: Look, before: Mapping[str, Any], event: gr.EventData) -> list[Any]:
        chosen = event._data if isinstance(event._data, dict) else {}
        moved = any(before.get(each) != chosen.get(each) for each in ("key", "at", "range"))
        return [chosen, *panels(context, current, look, chosen, due=halves.MOMENT if moved else halves.PIN)]

    def act(current: Session, look: Look, chosen: Mapping[str, Any], event: gr.EventData) -> list[Any]:
        turned = look.clicked(clicked(event), timeline_key(current.current) if current.current else "")
        shown = panels(context, current, turned, chosen, due=halves.TABLE)
        is_same = turned.tab == look.tab
        return [turned, *shown, *([gr.skip()] * 4 if is_same else maps(context, current, turned, chosen))]

    def search(current: Session, look: Look, chosen: Mapping[str, Any], event: gr.EventData) -> list[Any]:
        turned = look.finding(typed(event))
        return [turned, *panels(context, current, turned, chosen, due=halves.FOUND)]

    def another(current: Session, look: Look, chosen: Mapping[str, Any]) -> list[Any]:
        # The timeline of another trace begins at its peak, unless a link says where. What was chosen on the trace
        # before is forgotten, so that it does not come back with that one. Gradio may tell of one change twice.
        key = timeline_key(current.current) if current.current else ""
        said = chosen.get("linked") or (chosen if chosen.get("key") == key else {})
        return [said, *panels(context, current, look, said, due=halves.ALL), *maps(context, current, look, said)]

    asked = [session, parts.look, parts.chosen]
    parts.timeline.select(select, asked, [parts.chosen, *parts.panels], **_LATEST)
    parts.find.input(search, asked, [parts.look, *parts.panels], **_LATEST)
    parts.shown.change(another, asked, [parts.chosen, *parts.panels, *parts.maps], **_LATEST)
    for panel in (parts.head, parts.live):
        panel.click(act, asked, [parts.look, *parts.panels, *parts.maps], **_LATEST)


def show(context: Context, session: Session, state: dict[str, Any] | None = None) -> list[Any]:
    """The values of `Explore.outputs`. The lower half follows by itself when another trace is shown."""
    found = context.current(session)
    if found is None or session.current is None:
        return ["", {}, "", {}]
    key = timeline_key(session.current)
    value = timeline_value(*found, key, state=state)
    linked = {"linked": {**state, "key": key}} if state else gr.skip()
    return [verdict_html(*found, session.current.key), value, key, linked]


def panels(
    context: Context, session: Session, look: Look, chosen: Mapping[str, Any], *, due: frozenset[str]
) -> list[Any]:
    """The values of `Explore.panels`; what is not due stays as it is."""
    found = context.current(session)
    if found is None or session.current is None:
        return [""] * 4
    half = halves.lower_half(*found, timeline_key(session.current), look, said=chosen, due=due)
    return [gr.skip() if each is None else each for each in half.panels]


def maps(context: Context, session: Session, look: Look, chosen: Mapping[str, Any]) -> list[Any]:
    """The values of `Explore.maps`. Once they are shown they follow the timeline in the browser, by themselves."""
    seen = {"segments": look.tab == "segments", "events": look.tab == "events"}
    return [
        *(gr.update(visible=True if each else "hidden") for each in seen.values()),
        *(segments.show(context, session, dict(chosen)) if seen["segments"] else [gr.skip()]),
        *(events.show(context, session, dict(chosen)) if seen["events"] else [gr.skip()]),
    ]


def _csv(context: Context) -> Any:
    def make(asked: Mapping[str, str]) -> str:
        found = context.find(asked.get("key", ""))
        if found is None:
            raise UsageError("This trace is not open any more.")
        return groups_csv(halves.full_table(*found, asked))

    return make
