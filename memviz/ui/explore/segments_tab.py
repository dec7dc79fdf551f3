"""Segments: what the allocator holds from the device at the chosen moment, and what lies in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gradio as gr

from memviz.ui.components.segment_map import SegmentMap
from memviz.ui.explore.segments import map_value
from memviz.ui.shell.context import Context, timeline_key
from memviz.ui.shell.session import Session


@dataclass(frozen=True)
class Segments:
    segments: SegmentMap

    @property
    def outputs(self) -> list[Any]:
        return [self.segments]


def build(context: Context, session: gr.State) -> Segments:
    """The map asks the server by itself and follows the timeline in the browser, so nothing is wired here."""
    return Segments(segments=SegmentMap(context.find, elem_id="segments"))


def show(context: Context, session: Session, chosen: dict[str, Any]) -> list[Any]:
    """The values of `Segments.outputs`. `chosen` is what the timeline's `select` gives."""
    found = context.current(session)
    if found is None or session.current is None:
        return [{}]
    return [map_value(found[1], timeline_key(session.current), chosen)]
