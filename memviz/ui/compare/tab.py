"""Compare: two to eight traces on one scale, and what makes the difference between their peaks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import gradio as gr

from memviz.analysis.comparing.align import START, ways
from memviz.analysis.comparing.changes import Changes, Telling, changes, says_most
from memviz.analysis.comparing.match_allocations import has_modules
from memviz.analysis.comparing.scores import scores
from memviz.analysis.comparing.setting_differences import setting_differences
from memviz.analysis.live import has_times
from memviz.figures.colouring import colouring
from memviz.headlines.compare import compare
from memviz.ui.compare.compare_state import LETTERS, CompareView, Side, changed, linked_name, sides_of
from memviz.ui.compare.controls import Controls, controls_html
from memviz.ui.compare.empty import compare_empty_html, offer_html
from memviz.ui.compare.linked_timelines import linked_values, overlay_value
from memviz.ui.compare.links import compare_query
from memviz.ui.compare.scoreboard import Board, scoreboard_html
from memviz.ui.compare.verdict import compare_verdict_html
from memviz.ui.compare.waterfall import Surroundings, waterfall, waterfall_html
from memviz.ui.components.memory_timeline import MemoryTimeline
from memviz.ui.components.overlay import Overlay
from memviz.ui.components.panel import Panel, clicked
from memviz.ui.components.waterfall import WaterfallTable
from memviz.ui.html.markup import tag
from memviz.ui.shell.context import Context
from memviz.ui.shell.session import Session
from memviz.ui.shell.wiring import PRIVATE

ID, LABEL = "compare", "Compare"
_CATEGORY_FIRST = "by category, because most of it sits in sites that only one of them has"


_PARTS = ("drawn", "empty", "offer", "top", "controls", *LETTERS, "overlay", "differences", "place")
_DUE = {
    "by": ("differences",),
    "sort": ("differences",),
    "rows": ("differences",),
    "other": ("top", "controls", "overlay", "differences"),
    "align": ("controls", *LETTERS),
    "axis": ("controls", *LETTERS),
    "overlay": ("controls", "overlay"),
}
"""Which parts a click can change, where it leaves the traces as they are."""


@dataclass(frozen=True)
class Compare:
    empty: Panel
    offer: Panel
    """Its button opens samples, which the page does."""
    top: Panel
    controls: Panel
    timelines: tuple[MemoryTimeline, ...]
    overlay: Overlay
    differences: WaterfallTable
    traces: gr.State
    """What of the session this tab shows. A change of it draws the tab anew, if it is being looked at."""
    place: Panel
    """What the address says of it; address.js reads it."""
    view: gr.State
    looked_at: gr.State
    drawn: gr.State
    """Of which traces the tab shows the state; coming back to the tab draws nothing twice."""

    @property
    def outputs(self) -> list[Any]:
        return [self.traces]

    @property
    def drawing(self) -> list[Any]:
        panels = [self.empty, self.offer, self.top, self.controls]
        return [self.drawn, *panels, *self.timelines, self.overlay, self.differences, self.place]


def build(context: Context, session: gr.State, tabs: gr.Tabs, tab: gr.Tab) -> Compare:
    with gr.Column(elem_classes="mv-compare"):
        empty, offer = Panel(elem_id="compare-empty"), Panel(elem_id="compare-offer")
        top, controls = Panel(elem_id="compare-top"), Panel(elem_id="compare-bar")
        with gr.Row(elem_classes="mv-linked"):
            timelines = tuple(MemoryTimeline(context.find, elem_id=f"compare-{each}") for each in LETTERS)
        overlay = Overlay(elem_id="compare-overlay")
        differences = WaterfallTable(context.find, elem_id="differences")
        place = Panel(elem_id="compare-place")
    parts = Compare(
        empty,
        offer,
        top,
        controls,
        timelines,
        overlay,
        differences,
        traces=gr.State(()),
        place=place,
        view=gr.State(CompareView()),
        looked_at=gr.State(False),
        drawn=gr.State(()),
    )
    _wire(context, session, parts)
    _watch(context, session, parts, tabs=tabs, tab=tab)
    return parts


def _wire(context: Context, session: gr.State, parts: Compare) -> None:
    def act(current: Session, view: CompareView, event: gr.EventData) -> list[Any]:
        data = clicked(event)
        after, then = _session_after(current, data), changed(view, data)
        values = draw(context, after, then)
        if after == current:
            due = (*_DUE.get(data.get("act", ""), ()), "place")
            values = [each if name in due else gr.skip() for name, each in zip(_PARTS, values, strict=True)]
        return [after, _shown(after), then, *values]

    for panel in (parts.empty, parts.top, parts.controls, parts.differences):
        panel.click(act, [session, parts.view], [session, parts.traces, parts.view, *parts.drawing], **PRIVATE)


def _watch(context: Context, session: gr.State, parts: Compare, *, tabs: gr.Tabs, tab: gr.Tab) -> None:
    """Draws only what is looked at. A tab that is chosen by the page tells of it itself; being left, only `tabs` do."""

    def follow(current: Session, view: CompareView, looked_at: bool, drawn: tuple[Any, ...]) -> list[Any]:
        return draw(context, current, view, drawn) if looked_at else [gr.skip()] * len(_PARTS)

    def arrive(current: Session, view: CompareView, drawn: tuple[Any, ...]) -> list[Any]:
        return [True, *draw(context, current, view, drawn)]

    def leave(event: gr.SelectData) -> Any:
        return gr.skip() if event.value == LABEL else False

    state = [session, parts.view]
    parts.traces.change(follow, [*state, parts.looked_at, parts.drawn], parts.drawing, **PRIVATE)
    tab.select(arrive, [*state, parts.drawn], [parts.looked_at, *parts.drawing], **PRIVATE)
    tabs.select(leave, None, [parts.looked_at], **PRIVATE)


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
    """The values of `Compare.outputs`: all that the tab needs to know to draw itself when it is looked at."""
    return [_shown(session)]


def _shown(session: Session) -> tuple[Any, ...]:
    return session.compared, tuple((each.key, each.device, each.name) for each in session.opened)


def draw(context: Context, session: Session, view: CompareView, drawn: tuple[Any, ...] = ()) -> list[Any]:
    """The values of `Compare.drawing`."""
    shown = _shown(session)
    if drawn == shown:
        return [gr.skip()] * len(_PARTS)
    sides = sides_of(context, session)
    if len(sides) < 2:
        words = compare_empty_html(session.opened, session.compared)
        return [shown, words, offer_html(), "", "", *[{}] * len(LETTERS), {}, "", ""]
    compared = Compared.of(sides, view)
    values = linked_values(sides, compared.view)
    return [
        shown,
        "",
        "",
        compared.top(session),
        compared.controls(),
        *values,
        *[{}] * (len(LETTERS) - len(values)),
        overlay_value(sides, compared.view),
        compared.differences(),
        tag("i", data_mv_query=compare_query(sides, view)),
    ]


@dataclass(frozen=True)
class Compared:
    """What several parts of the tab need, computed once a drawing."""

    sides: tuple[Side, ...]
    view: CompareView
    other: int
    best: str
    """The grouping that says most."""
    found: Changes

    @staticmethod
    def of(sides: tuple[Side, ...], view: CompareView) -> Compared:
        pairs = [side.pair for side in sides]
        other = view.number_of_other(sides)
        best = says_most(pairs, other)
        return Compared(sides, _sound(view, sides), other, best, changes(pairs, view.by or best))

    def top(self, session: Session) -> str:
        pairs = [side.pair for side in self.sides]
        main = self.found if self.found.by == self.best else changes(pairs, self.best)
        settings = setting_differences([side.trace for side in self.sides])
        also = tuple(each for each in session.opened if each.key not in session.compared)
        board = Board(self.sides, scores(pairs), self._order(), self.other, also)
        names = [side.name for side in self.sides]
        return compare_verdict_html(compare(Telling(main, pairs), names), settings) + scoreboard_html(board)

    def controls(self) -> str:
        pairs = [side.pair for side in self.sides]
        timed = all(has_times(side.device) for side in self.sides)
        names = tuple(side.name for side in self.sides)
        return controls_html(
            Controls(
                self.view,
                scores(pairs),
                self._order(),
                ways(pairs),
                has_times=timed,
                names=names,
                other=self.other,
            )
        )

    def differences(self) -> str:
        fall = waterfall(self.found, self.other, sort=self.view.sort, every_row=self.view.every_row)
        chosen_for_them = not self.view.by and self.best == "category"
        around = Surroundings(
            linked_name(self.sides),
            tuple(side.key for side in self.sides),
            why_by=_CATEGORY_FIRST if chosen_for_them else "",
            has_modules=any(has_modules(side.pair) for side in self.sides),
        )
        return waterfall_html(fall, around)

    def _order(self) -> tuple[str, ...]:
        """Of the categories from the bottom up, as the timelines stack them."""
        return colouring(*self.sides[0].pair).labels


def _sound(view: CompareView, sides: tuple[Side, ...]) -> CompareView:
    """Another set of traces may not have the step or annotation that the last one was aligned by."""
    return view if view.way in ways([side.pair for side in sides]) else replace(view, way=START)
