"""A what-if as one self-contained page, to keep or to send: the tab's own views."""

from __future__ import annotations

from typing import Any

from memviz.allocator.agreement import exactness
from memviz.allocator.search import Search
from memviz.allocator.what_if import WhatIf
from memviz.headlines.what_if import what_if
from memviz.trace.model import DeviceTrace, Trace
from memviz.ui.explore.segments import map_value, moment_in_replay
from memviz.ui.html.markup import Html, joined, tag
from memviz.ui.html.words import cut
from memviz.ui.saved.document import Document, html_text
from memviz.ui.saved.views import nowhere, with_ways
from memviz.ui.what_if.answer_html import Found, search_html, segments_head_html, what_if_html
from memviz.ui.what_if.maps import MapSide, map_sides
from memviz.ui.what_if.reserved_plot import moment_that_matters, plot_label, plot_value


def what_if_page(trace: Trace, device: DeviceTrace, asked: WhatIf, searched: Search | None = None) -> str:
    found = Found(device, asked, searched, moment_that_matters(device, asked))
    said = what_if(asked, searched)
    parts = [_facts(asked, device), what_if_html(found)]
    data: dict[str, Any] = {}
    if found.has_history:
        sides = list(zip(("left", "right"), map_sides(found), strict=False))
        data = {
            "plot": plot_value(device, asked, at=found.at, label=plot_label(asked, str(said))),
            "shown_maps": [
                {"caption": side.caption, "map": map_value(side.device, name, {"at": side.at})} for name, side in sides
            ],
            "maps": {name: _map(trace, side) for name, side in sides},
        }
        parts.append(tag("div", id="what-if-plot"))
        parts += [segments_head_html(found.at, matters=True), tag("div", id="what-if-maps")]
    if searched is not None:
        parts.append(search_html(found, searched))
    body = with_ways(joined(*parts), nowhere)
    return html_text(Document(str(said), tag("div", body, class_="mv-what-if-saved"), data=data))


def _facts(asked: WhatIf, device: DeviceTrace) -> Html:
    about = asked.replayed.trace.about
    words = f"{cut(about.source)}: {cut(about.label)}, device {device.name}; {exactness(asked.recorded)}"
    return tag("p", words, class_="mv-soft mv-of-file")


def _map(trace: Trace, side: MapSide) -> dict[str, Any]:
    whose = trace if side.is_recording else side.replayed.trace
    return moment_in_replay(whose, side.device, {"at": side.at, "table": True})
