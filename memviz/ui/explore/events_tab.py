"""Events: everything the recording holds, in order, one line each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gradio as gr

from memviz.analysis.timeline import timeline
from memviz.trace.model import DeviceTrace
from memviz.ui.components.event_list import EventList
from memviz.ui.explore.event_rows import list_value
from memviz.ui.shell.context import Context, timeline_key
from memviz.ui.shell.session import Session


@dataclass(frozen=True)
class Events:
    events: EventList

    @property
    def outputs(self) -> list[Any]:
        return [self.events]


def build(context: Context, session: gr.State) -> Events:
    """The list asks for its pages by itself and follows the timeline in the browser, so nothing is wired here."""
    return Events(events=EventList(context.find, elem_id="events"))


def show(context: Context, session: Session, chosen: dict[str, Any]) -> list[Any]:
    """The values of `Events.outputs`. `chosen` is what the timeline's `select` gives."""
    found = context.current(session)
    if found is None or session.current is None:
        return [{}]
    return [list_value(*found, timeline_key(session.current), _event(found[1], chosen.get("at")))]


def _event(device: DeviceTrace, wanted: Any) -> int:
    event = wanted if isinstance(wanted, int) else timeline(device).peak_event
    return min(max(event, -1), len(device.events) - 1)
