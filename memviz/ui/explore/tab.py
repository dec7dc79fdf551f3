"""Explore: one trace, from the answer in a sentence to each allocation, and the files it is saved as.

Of the inner tabs only the visible one is computed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import gradio as gr

from memviz.analysis.allocations import write_allocations
from memviz.analysis.breakdown import Breakdown
from memviz.figures.colouring import MEANINGS, telling_meaning
from memviz.results.headline import trace_name
from memviz.results.summary import summary_result
from memviz.trace.model import DeviceTrace, Trace
from memviz.trace.strip import strip_paths
from memviz.trace.write import csv_text, safe
from memviz.ui.components.component import FindField, Panel, clicked, requested_trace, typed
from memviz.ui.components.plots import MemoryTimeline, SegmentMap
from memviz.ui.components.tables import EventList, HighlightPanel
from memviz.ui.explore import answer
from memviz.ui.explore.answer import verdict_html
from memviz.ui.explore.findings import findings_html, offers, offers_at_hand
from memviz.ui.explore.state import ExploreState, LatestInput
from memviz.ui.payloads.timelines import KEY_ENDING, segments_over_time_piece, segments_over_time_value, timeline_value
from memviz.ui.saved.report import report_page
from memviz.ui.shell.gradio_events import NO_PROGRESS
from memviz.ui.shell.housekeeping import wait_until_idle
from memviz.ui.shell.session import Context, Session, timeline_key
from memviz.ui.shell.temporary_files import SharedFiles, file_stem, json_writer, snapshot_writer, text_writer


def trace_files(trace: Trace, device: DeviceTrace) -> SharedFiles:
    def write_table(path: Path) -> None:
        with path.open("w", encoding="utf-8", errors="backslashreplace", newline="") as table:
            write_allocations(trace, table)

    stem = file_stem(trace_name(trace.about.source))
    return {
        "page": (f"{stem}.html", text_writer(lambda: report_page([(trace, device)]))),
        "csv": (f"{stem}-allocations.csv", write_table),
        "json": (f"{stem}.json", json_writer(lambda: summary_result(trace, device.name).as_json())),
        "snapshot": (f"{stem}-stripped.pickle", snapshot_writer(lambda: strip_paths(trace))),
    }


def groups_csv(breakdown: Breakdown, unit: str = "bytes") -> str:
    """All of a table of groups, to the byte; or to the byte times event, where those were counted."""
    groups = breakdown.groups.groups
    mostly = [breakdown.dominant[group.key] for group in groups]
    return csv_text(
        {
            breakdown.groups.by: [safe(group.label) for group in groups],
            "kind": [group.kind for group in mostly],
            f"kind_{unit}": [group.bytes for group in mostly],
            "blocks": [group.count for group in groups],
            unit: [group.bytes for group in groups],
        }
    )


_PRIVATE: dict[str, Any] = {"queue": False, "api_visibility": "private", **NO_PROGRESS}
# Dragging sends requests faster than they are answered: only the last one counts.
_LATEST: dict[str, Any] = {**_PRIVATE, "trigger_mode": "always_last"}


class ExploreTab:
    """The tab's components, laid out by `__init__` and wired by `_wire`. It keeps nothing of any visitor."""

    def __init__(self, context: Context, session: gr.State) -> None:
        self.context = context
        self.verdict = Panel(elem_id="verdict")
        self.findings = HighlightPanel(self._csv, elem_id="findings")
        """Its clicks are the page's affair: they turn to other tabs, or open one more trace."""
        with gr.Column(elem_id="stage"):
            self.timeline = MemoryTimeline(context.find, elem_id="timeline")
            with gr.Column(elem_id="lower"):
                self.find = FindField(elem_id="find")
                with gr.Column(elem_id="lower-main"):
                    self.head = Panel(elem_id="lower-head")
                    self.found = HighlightPanel(self._csv, elem_id="found")
                    self.live = HighlightPanel(self._csv, elem_id="live-set")
                    with gr.Column(visible="hidden", elem_id="segments-box") as self.segments_box:
                        self.segments = SegmentMap(context.find, elem_id="segments")
                        # Not there before there is something to show: it draws only once it is seen.
                        self.over_time = MemoryTimeline(
                            lambda key: context.find(key.removesuffix(KEY_ENDING)),
                            segments_over_time_piece,
                            elem_id="segments-over-time",
                            visible=False,
                        )
                    with gr.Column(visible="hidden", elem_id="events-box") as self.events_box:
                        self.events = EventList(context.find, elem_id="events")
                self.inspector = HighlightPanel(self._csv, elem_id="inspector")
                self.number = Panel(visible="hidden", elem_id="answer-number")
                """Number of the answer that the details show; see `LatestInput`."""
        self.shown = gr.State("")
        """The key of the trace that the details are about."""
        self.chosen = gr.State({})
        """The timeline's last `select`, or under `linked` the selection in a link to a trace that opens next."""
        self.heard = gr.State(LatestInput())
        self.outputs = [self.verdict, self.findings, self.timeline, self.shown, self.chosen]
        self.panels = [self.head, self.found, self.live, self.inspector]
        self.maps = [self.segments_box, self.events_box, self.segments, self.over_time, self.events]
        self._wire(session)

    def _wire(self, session: gr.State) -> None:
        selection_inputs, turned = [session, self.chosen, self.heard], [session, self.heard]
        details, all_details = [*self.panels, self.number], [self.chosen, *self.panels, *self.maps, self.number]
        self.timeline.select(self._select, selection_inputs, [self.chosen, *details], **_LATEST)
        self.shown.change(self._offer, [session, self.heard], [self.findings], **_LATEST)
        self.find.input(self._search, turned, details, **_LATEST)
        self.shown.change(self._show_other, selection_inputs, all_details, **_LATEST)
        self.number.click(self._again, [self.heard], all_details, **_LATEST)
        for panel in (self.head, self.live):
            panel.click(self._act, turned, [*self.panels, *self.maps, self.number], **_LATEST)

    def _select(
        self, current: Session, before: Mapping[str, Any], heard: LatestInput, event: gr.EventData
    ) -> list[Any]:
        chosen = event._data if isinstance(event._data, dict) else {}
        moved = any(before.get(key) != chosen.get(key) for key in ("key", "at", "range"))
        recoloured = before.get("colour", "category") != chosen.get("colour", "category")
        due = (answer.MOMENT if moved else answer.PIN) | (answer.TABLE if recoloured else frozenset())
        heard.hear(current)
        heard.chosen = chosen
        return [chosen, *heard.answer_latest(partial(panels, self.context, parts=due))]

    def _act(self, current: Session, heard: LatestInput, event: gr.EventData) -> list[Any]:
        before = heard.state.tab
        turned = heard.state.clicked(clicked(event), timeline_key(current.current))
        heard.hear(current)
        heard.state = turned

        def details(session: Session, state: ExploreState, selection: Mapping[str, Any]) -> list[Any]:
            shown = panels(self.context, session, state, selection, answer.TABLE)
            is_same = turned.tab == before
            return [
                *shown,
                *([gr.skip()] * len(self.maps) if is_same else maps(self.context, session, state, selection)),
            ]

        return heard.answer_latest(details)

    def _search(self, current: Session, heard: LatestInput, event: gr.EventData) -> list[Any]:
        heard.hear(current)
        heard.state = heard.state.finding(typed(event))
        return heard.answer_latest(partial(panels, self.context, parts=answer.FOUND))

    def _show_other(self, current: Session, chosen: Mapping[str, Any], heard: LatestInput) -> list[Any]:
        heard.session, heard.chosen = current, initial_selection(current, chosen, heard.chosen)
        return self._again(heard)

    def _again(self, heard: LatestInput) -> list[Any]:
        def everything(session: Session, state: ExploreState, selection: Mapping[str, Any]) -> list[Any]:
            return [
                selection,
                *panels(self.context, session, state, selection, answer.ALL),
                *maps(self.context, session, state, selection),
            ]

        return heard.answer_latest(everything)

    async def _offer(self, current: Session, heard: LatestInput) -> Any:
        """Add the estimated fixes after everything else is shown, since they need several replays."""
        current_trace, before = self.context.current(current), heard.session
        if current_trace is None or current.current is None:
            return gr.skip()
        key = timeline_key(current.current)

        def is_shown() -> bool:
            # `_show_other` may not have heard of it yet.
            now = heard.session
            return now is before or timeline_key(now.current) == key

        if not await wait_until_idle(self.context.reading.is_used, is_shown):
            return gr.skip()
        made = await asyncio.to_thread(offers, *current_trace)
        return findings_html(*current_trace, key, made) if is_shown() else gr.skip()

    def _csv(self, request: Mapping[str, str]) -> str:
        unit = "byte_events" if request.get("what") == "lifetime" else "bytes"
        return groups_csv(answer.full_table(*requested_trace(self.context.find, request), request), unit)


def initial_selection(session: Session, before: Mapping[str, Any], heard: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the selection with which another trace opens: from a link, or made on it already, else none.

    The selection on the previous trace is dropped. Gradio may report one change twice."""
    key = timeline_key(session.current)
    candidates: list[Mapping[str, Any]] = [heard, before.get("linked") or before]
    return next((each for each in candidates if each.get("key") == key), {})


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
    context: Context, session: Session, state: ExploreState, chosen: Mapping[str, Any], parts: frozenset[str]
) -> list[Any]:
    """The values of `ExploreTab.panels`; what is not due stays as it is."""
    current = context.current(session)
    if current is None or session.current is None:
        return [""] * 4
    folders = context.store.source_folders(session.current.key)
    key = timeline_key(session.current)
    shown = answer.details(*current, key, state, selection=chosen, parts=parts, source_folders=folders)
    return [gr.skip() if panel is None else panel for panel in shown.panels]


def maps(context: Context, session: Session, state: ExploreState, chosen: Mapping[str, Any]) -> list[Any]:
    """The values of `ExploreTab.maps`. Once they are shown they follow the timeline in the browser, by themselves."""
    pair = context.current(session)
    key = timeline_key(session.current)
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
