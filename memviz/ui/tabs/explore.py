"""Explore: one trace, from the answer in a sentence down to each allocation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gradio as gr

from memviz.analysis.peak import at
from memviz.analysis.timeline import timeline
from memviz.ui.components.memory_timeline import MemoryTimeline
from memviz.ui.components.panel import Panel
from memviz.ui.context import Context, timeline_key
from memviz.ui.session import Session
from memviz.ui.views.live_set import live_table_html
from memviz.ui.views.timeline import timeline_value
from memviz.ui.views.verdict import verdict_html


@dataclass(frozen=True)
class Explore:
    verdict: Panel
    timeline: MemoryTimeline
    live: Panel

    @property
    def outputs(self) -> list[Any]:
        return [self.verdict, self.timeline, self.live]


def build(context: Context, session: gr.State) -> Explore:
    parts = Explore(
        verdict=Panel(elem_id="verdict"),
        timeline=MemoryTimeline(context.find, elem_id="timeline"),
        live=Panel(elem_id="live-set"),
    )

    def select(current: Session, event: gr.EventData) -> str:
        return live(context, current, event._data if isinstance(event._data, dict) else {})

    parts.timeline.select(
        select, [session], [parts.live], queue=False, show_progress="hidden", api_visibility="private"
    )
    return parts


def show(context: Context, session: Session, state: dict[str, Any] | None = None) -> list[Any]:
    """The values of `Explore.outputs`."""
    found = context.current(session)
    if found is None or session.current is None:
        return ["", {}, ""]
    trace, device = found
    value = timeline_value(trace, device, timeline_key(session.current), state=state)
    return [verdict_html(trace, device), value, live(context, session, state or {})]


def live(context: Context, session: Session, chosen: dict[str, Any]) -> str:
    found = context.current(session)
    if found is None:
        return ""
    trace, device = found
    wanted = chosen.get("at")
    event = wanted if isinstance(wanted, int) else timeline(device).peak_event
    event = min(max(event, -1), len(device.events) - 1)
    return live_table_html(at(trace, device, event, "site", top=40))
