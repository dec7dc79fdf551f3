"""Explore in a saved page: the timeline with its data, views of a few moments, and stacks of pinned allocations.

The tables are of the peak and of out-of-memory moments, in all groupings, with the first boxes of the icicle.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from memviz.analysis.lifetimes import lifetimes
from memviz.analysis.sums import sum_by
from memviz.analysis.timeline import timeline
from memviz.text import Html, joined, tag, when
from memviz.trace.model import Action, DeviceTrace, Trace
from memviz.ui.explore.answer import ALL, Details, details, verdict_html
from memviz.ui.explore.findings import findings_html
from memviz.ui.explore.inspector import stack_html
from memviz.ui.explore.state import ExploreState, groupings_of
from memviz.ui.html.elements import button
from memviz.ui.payloads.timelines import timeline_value
from memviz.ui.saved.document import Follow, SavedLinks, SavedPanel, SizeBudget, State, Texts
from memviz.ui.saved.timeline import light_by, saved_pieces, site_labels

_MOST_STACKS = 400


def saved_stacks(trace: Trace, device: DeviceTrace, texts: Texts, most: int) -> dict[str, Any]:
    """Map numbers of the piece `stacks` to text numbers; if there are too many stacks, those with most bytes.

    `most`: characters of all together.
    """
    rows = lifetimes(device)
    sums = sum_by(rows.stack + 1, rows.size, len(trace.stacks) + 1)
    used = np.flatnonzero(np.bincount(rows.stack + 1, minlength=len(sums)))
    heaviest = used[np.argsort(-sums[used], kind="stable")]
    numbers, room = {}, most
    for number in heaviest[:_MOST_STACKS].tolist():
        html = stack_html(trace, number - 1, "Stack")
        room -= len(html)
        if room < 0:
            break
        numbers[str(number)] = texts.number(html)
    return {"texts": numbers, "are_all": len(numbers) == len(used)}


_OFFERED_TABS = ("live", "never")


@dataclass(frozen=True)
class _SavedView:
    """One state of the views below the timeline."""

    tab: str
    by: str
    path: str
    at: int

    @property
    def state(self) -> tuple[str, ...]:
        return self.tab, self.by, self.path, str(self.at)


@dataclass(frozen=True)
class SavedTrace:
    name: str
    """Name of the trace in the page's state."""
    data: dict[str, Any]
    start: State
    panels: dict[str, dict[tuple[str, ...], Html]]
    """Views by the panel's place, then by `FIELDS`."""


FIELDS = ("trace", "tab", "by", "path", "at")


def saved_trace(trace: Trace, device: DeviceTrace, name: str, texts: Texts, budget: SizeBudget) -> SavedTrace:
    saved = saved_pieces(trace, device, budget.columns)
    views = _Views(trace, device, name, budget, lights_paths="frames" in saved.pieces)
    panels = views.panels()
    value = timeline_value(trace, device, name)
    start = _SavedView("live", "stack", "", views.moments[0])
    groupings = ("site", "line", "holder", *(["module"] if "modules" in saved.pieces else []))
    data = {
        "value": {**value, "has_times": saved.has_times},
        "pieces": saved.pieces,
        "sites": site_labels(trace, device),
        "stacks": saved_stacks(trace, device, texts, budget.stacks),
        # The highlights of the saved tables' rows, by grouping.
        "lights": {by: light_by(trace, device, by, views.lights[by]) for by in groupings if by in views.lights},
        "moments": views.moments,
    }
    with SavedLinks():
        verdict = verdict_html(trace, device)
    note = tag("p", saved.note, class_="mv-note") if saved.note else Html("")
    panels["verdict"] = {(name,): joined(verdict, findings_html(trace, device), note)}
    return SavedTrace(name, data, dict(zip(FIELDS, (name, *start.state), strict=True)), panels)


class _Views:
    """Draws the saved views of one trace, and notes the rows that they highlight."""

    def __init__(self, trace: Trace, device: DeviceTrace, name: str, budget: SizeBudget, *, lights_paths: bool) -> None:
        self.trace = trace
        self.device = device
        self.name = name
        self.budget = budget
        self.lights_paths = lights_paths
        failed = np.flatnonzero(device.events.action == Action.OOM)[: budget.moments - 1].tolist()
        self.moments: list[int] = list(dict.fromkeys((timeline(device).peak_event, *failed)))
        """The peak first."""
        self.lights: dict[str, set[str]] = {}
        """Groups to highlight, by grouping."""
        with SavedLinks() as links:
            self._details(_SavedView("live", "stack", "", self.moments[0]))
        # Boxes of the icicle, level by level, those with the most bytes first.
        self.paths = [group for by, group in links.lights if by == "path"][: budget.zooms]

    def panels(self) -> dict[str, dict[tuple[str, ...], Html]]:
        """Return the views by the panel's place, then by the state."""
        peak = self.moments[0]
        views = [_SavedView("live", by, "", at) for at in self.moments for by in groupings_of(self.device)]
        views += [_SavedView("live", "stack", path, peak) for path in self.paths]
        html_of = {view: self._drawn(view) for view in views}
        never = self._drawn(_SavedView("never", "site", "", peak))
        for view in [view for view in views if not view.path]:
            moments = _moments_html(self.moments, view.at)
            head = joined(moments, never["head"])
            html_of[replace(view, tab="never")] = {**never, "inspector": html_of[view]["inspector"], "head": head}
        places = {"lower-head": "head", "live-set": "live", "inspector": "inspector"}
        drawn = [((self.name, *view.state), html) for view, html in html_of.items()]
        return {place: {state: html[part] for state, html in drawn} for place, part in places.items()}

    def _drawn(self, view: _SavedView) -> dict[str, Html]:
        with SavedLinks(self._follow(view), lights_paths=self.lights_paths) as links:
            content = self._details(view)
        for by, group in links.lights:
            self.lights.setdefault(by, set()).add(group)
        head = content.head or Html("")
        if view.tab == "live":
            head = joined(_moments_html(self.moments, view.at), head)
        return {"head": head, "live": content.live or Html(""), "inspector": content.inspector or Html("")}

    def _details(self, view: _SavedView) -> Details:
        state = ExploreState(
            tab=view.tab, by=view.by, is_long=self.budget.every_row, path=view.path, path_key=self.name
        )
        selection = {"key": self.name, "at": view.at}
        return details(self.trace, self.device, self.name, state, selection=selection, parts=ALL)

    def _follow(self, view: _SavedView) -> Follow:
        state = ExploreState(tab=view.tab, by=view.by, is_long=True, path=view.path, path_key="")

        def follow(data: Mapping[str, str]) -> State | None:
            if data.get("act") == "sort":
                return {}
            turned = state.clicked(data, "")
            path = turned.path if (turned.tab, turned.by) == ("live", "stack") else ""
            if turned.tab not in _OFFERED_TABS or data.get("act") == "more":
                return None
            if path and (path not in self.paths or view.at != self.moments[0]):
                return None
            # The grouping is left out where it stays: "Never freed" is the same view for all of them.
            by = {"by": turned.by} if turned.by != state.by else {}
            return {"tab": turned.tab, **by, "path": path}

        return follow


def _moments_html(moments: list[int], at: int) -> Html:
    """Return buttons for the saved moments, if there are more than the peak."""
    if len(moments) < 2:
        return Html("")
    buttons = []
    for moment in moments:
        words = f"{'the peak' if moment == moments[0] else 'out of memory'}, {when(moment)}"
        change, pressed = json.dumps({"at": str(moment), "path": ""}), "true" if moment == at else "false"
        buttons.append(button(words, "moment", None, aria_pressed=pressed, data_mv_at=moment, data_set=change))
    switch = tag("div", *buttons, class_="mv-switch", role="group", aria_label="Moments saved in this file")
    return tag("div", tag("span", "Saved in this file"), switch, class_="mv-kept-moments")


def explore_panels(saved: list[SavedTrace]) -> list[SavedPanel]:
    """Those of all traces together."""
    panels = []
    for place in saved[0].panels:
        views = {state: html for view in saved for state, html in view.panels[place].items()}
        panels.append(SavedPanel(place, FIELDS if place != "verdict" else FIELDS[:1], views))
    return panels


def explore_html(saved: SavedTrace) -> Html:
    """Return the first view, so that the page can be read and searched before any script has run."""
    start = tuple(saved.start[field] for field in FIELDS)
    start_views = {place: views[start[:1] if place == "verdict" else start] for place, views in saved.panels.items()}
    places = {name: tag("div", html, id=name) for name, html in start_views.items()}
    main = tag("div", places["lower-head"], places["live-set"], id="lower-main")
    lower = tag("div", main, places["inspector"], id="lower")
    return joined(places["verdict"], tag("div", tag("div", id="timeline"), lower, id="stage"))
