"""Explore in a saved page: the timeline with its data, views of a few moments, and stacks of pinned allocations.

The tables are of the peak and of out-of-memory moments, in all groupings, with the first boxes of the icicle.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from html import unescape
from typing import Any

import numpy as np

from memviz.analysis.lifetimes import lifetimes
from memviz.analysis.sums import sum_by
from memviz.analysis.timeline import timeline
from memviz.trace.model import Action, DeviceTrace, Trace
from memviz.ui.explore.answer import ALL, Details, details, verdict_html
from memviz.ui.explore.findings import findings_html
from memviz.ui.explore.inspector import stack_html
from memviz.ui.explore.state import GROUPINGS, ExploreState
from memviz.ui.html.markup import Html, joined, tag, when
from memviz.ui.payloads.timelines import timeline_value
from memviz.ui.saved.document import SavedPanel, SizeBudget, State, Texts, rewrite_links, without_links
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
        html = stack_html(trace, number - 1, "Stack, our frames first")
        room -= len(html)
        if room < 0:
            break
        numbers[str(number)] = texts.number(html)
    return {"texts": numbers, "are_all": len(numbers) == len(used)}


_OFFERED_TABS = ("live", "never")
_LIGHT = re.compile(r' data-light-by="(\w+)" data-light-group="([^"]*)"')
_ZOOM = re.compile(r' data-light-by="path" data-light-group="([^"]*)"')
_OTHER_TAB = re.compile(r'<button[^>]* role="tab"[^>]* data-value="(?:segments|events)"[^>]*>.*?</button>')
_MORE_PATHS = re.compile(r' data-light-by="path" data-light-group="[^"]*"')


@dataclass(frozen=True)
class _SavedView:
    """One state of the lower shown."""

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


def saved_trace(trace: Trace, device: DeviceTrace, name: str, texts: Texts, thrift: SizeBudget) -> SavedTrace:
    kept = saved_pieces(trace, device, thrift.columns)
    moments = _moments(device, thrift.moments)
    views = dict(_views(trace, device, name, moments, thrift, lights_paths="frames" in kept.pieces))
    value = timeline_value(trace, device, name)
    start = _SavedView("live", "stack", "", moments[0])
    data = {
        "value": {**value, "has_times": kept.has_times},
        "pieces": kept.pieces,
        "sites": site_labels(trace, device),
        "stacks": saved_stacks(trace, device, texts, thrift.stacks),
        "lights": _lights(trace, device, views, has_modules="modules" in kept.pieces),
        "moments": moments,
    }
    above = joined(
        rewrite_links(verdict_html(trace, device), without_links), findings_html(trace, device), _remark(kept.note)
    )
    panels: dict[str, dict[tuple[str, ...], Html]] = {"verdict": {(name,): above}}
    for place in ("lower-head", "live-set", "inspector"):
        panels[place] = {(name, *view.state): shown[place] for view, shown in views.items()}
    return SavedTrace(name, data, dict(zip(FIELDS, (name, *start.state), strict=True)), panels)


def _remark(note: str) -> Html:
    return tag("p", note, class_="mv-note") if note else Html("")


def _moments(device: DeviceTrace, most: int) -> list[int]:
    """The peak first."""
    failed = np.flatnonzero(device.events.action == Action.OOM)[: most - 1].tolist()
    return list(dict.fromkeys((timeline(device).peak_event, *failed)))


def _views(
    trace: Trace, device: DeviceTrace, name: str, moments: list[int], thrift: SizeBudget, *, lights_paths: bool
) -> Iterator[tuple[_SavedView, dict[str, Html]]]:
    first = {
        (at, by): _details(trace, device, name, _SavedView("live", by, "", at), thrift)
        for at in moments
        for by in GROUPINGS
    }
    paths = _zooms(str(first[moments[0], "stack"].live))[: thrift.zooms]

    def drawn(view: _SavedView, shown: Details) -> dict[str, Html]:
        return _panels(view, shown, moments, paths, lights_paths=lights_paths)

    for (at, by), shown in first.items():
        view = _SavedView("live", by, "", at)
        yield view, drawn(view, shown)
    for path in paths:
        view = _SavedView("live", "stack", path, moments[0])
        yield view, drawn(view, _details(trace, device, name, view, thrift))
    never = _details(trace, device, name, _SavedView("never", "site", "", moments[0]), thrift)
    for at in moments:
        for by in GROUPINGS:
            view = _SavedView("never", by, "", at)
            yield view, {**drawn(view, never), "inspector": drawn(view, first[at, by])["inspector"]}


def _details(trace: Trace, device: DeviceTrace, name: str, view: _SavedView, thrift: SizeBudget) -> Details:
    state = ExploreState(tab=view.tab, by=view.by, is_long=thrift.every_row, path=view.path, path_key=name)
    return details(trace, device, name, state, said={"key": name, "at": view.at}, due=ALL)


def _zooms(icicle: str) -> list[str]:
    """Return the zoom paths of the boxes, level by level, with the most bytes first."""
    return [unescape(path) for path in dict.fromkeys(_ZOOM.findall(icicle))]


def _panels(
    view: _SavedView, shown: Details, moments: list[int], paths: list[str], *, lights_paths: bool
) -> dict[str, Html]:
    state = ExploreState(tab=view.tab, by=view.by, is_long=True, path=view.path, path_key="")

    def follow(data: Mapping[str, str]) -> State | None:
        if data.get("act") == "sort":
            return {}
        turned = replace(state.clicked(data, ""), sort=state.sort, is_rising=state.is_rising)
        path = turned.path if (turned.tab, turned.by) == ("live", "stack") else ""
        if turned.tab not in _OFFERED_TABS or data.get("act") == "more":
            return None
        if path and (path not in paths or view.at != moments[0]):
            return None
        return {"tab": turned.tab, "by": turned.by, "path": path}

    parts = {"lower-head": shown.head, "live-set": shown.live, "inspector": shown.inspector}
    panels = {place: rewrite_links(_OTHER_TAB.sub("", html or ""), follow) for place, html in parts.items()}
    if not lights_paths:
        panels["live-set"] = Html(_MORE_PATHS.sub("", panels["live-set"]))
    panels["lower-head"] = joined(_moments_html(moments, view.at), panels["lower-head"])
    return panels


def _moments_html(moments: list[int], at: int) -> Html:
    """Return buttons for the saved moments, if there are more than the peak."""
    if len(moments) < 2:
        return Html("")
    buttons = [
        rewrite_links(
            tag(
                "button",
                _moment_name(moment, moments),
                type="button",
                aria_pressed="true" if moment == at else "false",
                data_act="moment",
                data_mv_at=moment,
            ),
            lambda data: {"at": data["mvAt"], "path": ""},
        )
        for moment in moments
    ]
    switch = tag("div", *buttons, class_="mv-switch", role="group", aria_label="Moments that are kept in this file")
    return tag("div", tag("span", "Kept in this file"), switch, class_="mv-kept-moments")


def _moment_name(at: int, moments: list[int]) -> str:
    return f"the peak, {when(at)}" if at == moments[0] else f"out of memory, {when(at)}"


def _lights(
    trace: Trace, device: DeviceTrace, views: Mapping[_SavedView, dict[str, Html]], *, has_modules: bool
) -> dict[str, Any]:
    """Return the highlights of the saved tables' rows, by grouping."""
    wanted: dict[str, set[str]] = {}
    for html in {panels["live-set"] for panels in views.values()}:
        for by, group in _LIGHT.findall(html):
            wanted.setdefault(by, set()).add(unescape(group))
    groupings = ("site", "line", "module") if has_modules else ("site", "line")
    return {by: light_by(trace, device, by, wanted[by]) for by in groupings if by in wanted}


def explore_panels(saved: list[SavedTrace]) -> list[SavedPanel]:
    """Those of all traces together."""
    places = {place: FIELDS if place != "verdict" else FIELDS[:1] for place in saved[0].panels}
    return [
        SavedPanel(place, fields, {state: html for view in saved for state, html in view.panels[place].items()})
        for place, fields in places.items()
    ]


def explore_html(saved: SavedTrace) -> Html:
    """Return the first view, so that the page can be read and searched before any script has run."""
    start = tuple(saved.start[field] for field in FIELDS)
    shown = {place: views[start[:1] if place == "verdict" else start] for place, views in saved.panels.items()}
    main = tag("div", _place("lower-head", shown), _place("live-set", shown), id="lower-main")
    lower = tag("div", main, _place("inspector", shown), id="lower")
    return joined(_place("verdict", shown), tag("div", id="timeline"), lower)


def _place(name: str, shown: Mapping[str, Html]) -> Html:
    return tag("div", shown[name], id=name)
